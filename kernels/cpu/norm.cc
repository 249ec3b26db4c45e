// Batch norm over rows of channels (Ioffe and Szegedy 2015).
//
// All loops run along the channels, the innermost dimension: a vector holds sixteen channels, and
// no sum crosses the elements of a vector. Memory bandwidth limits these loops, so two decisions
// provide accuracy at full bandwidth:
//
// - A variance as E[x^2] - E[x]^2 cancels, so sums must be more precise than fp32. Conversion to
//   double for each element would halve the throughput. Instead sums of a few rows are taken in
//   fp32, with the rounding errors of only a few additions, and these are added in double.
// - Several vectors of channels are summed side by side, so that each row is read in long runs,
//   which hardware prefetchers follow.
//
// Rows are divided among threads, and the threads' sums are added in order: the same bits for the
// same number of threads.
//
// Layer norm: statistics of each row.
//
// Local response normalisation across channels (Krizhevsky, Sutskever and Hinton 2012).
//
// With d = k + alpha / size * (sum of x^2 over the window around a channel), y = x d^-beta. The
// windows of neighbouring channels overlap; a padded copy of the row turns their sums into `size`
// shifted vector additions, without branches at the borders. Backward has the same form: with
// share[j] = dy[j] x[j] d[j]^(-beta - 1), dx[c] = dy[c] d[c]^-beta - 2 alpha beta / size x[c] (sum
// of share[j] over the windows j that contain c), and these windows mirror forward's.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"

namespace cadre {
namespace {

// Sums of x and of its squares (see ForTiles).
struct MomentTiles {
  int64_t channels;
  const float* x;
  double *sums, *squares;

  template <typename V, int kCount>
  CADRE_INLINE void Add(int64_t first_row, int64_t rows, int64_t c) const {
    constexpr int64_t kWidth = sizeof(V) / sizeof(float);
    const float* from = x + first_row * channels + c;
    V sum[kCount] = {}, square[kCount] = {};
    for (int64_t r = 0; r < rows; ++r, from += channels) {
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) {
        Prefetch(from + i * kWidth);
        const V value = Load<V>(from + i * kWidth);
        sum[i] += value;
        square[i] += value * value;
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      AddWide(sum[i], sums + c + i * kWidth);
      AddWide(square[i], squares + c + i * kWidth);
    }
  }
};

CADRE_VECTOR_LOOP void AddSumsAndSquares(int64_t rows, int64_t channels, const float* x,
                                         double* sums, double* squares) {
  ForTiles(rows, channels, MomentTiles{channels, x, sums, squares});
}

// Sums of dy and of dy * (x - mean).
struct GradientTiles {
  int64_t channels;
  const float *x, *dy, *mean;
  double *sums, *products;

  template <typename V, int kCount>
  CADRE_INLINE void Add(int64_t first_row, int64_t rows, int64_t c) const {
    constexpr int64_t kWidth = sizeof(V) / sizeof(float);
    const float* from = x + first_row * channels + c;
    const float* gradients = dy + first_row * channels + c;
    V sum[kCount] = {}, product[kCount] = {}, middle[kCount];
    for (int i = 0; i < kCount; ++i) middle[i] = Load<V>(mean + c + i * kWidth);
    for (int64_t r = 0; r < rows; ++r, from += channels, gradients += channels) {
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) {
        Prefetch(from + i * kWidth);
        Prefetch(gradients + i * kWidth);
        const V gradient = Load<V>(gradients + i * kWidth);
        sum[i] += gradient;
        product[i] += gradient * (Load<V>(from + i * kWidth) - middle[i]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      AddWide(sum[i], sums + c + i * kWidth);
      AddWide(product[i], products + c + i * kWidth);
    }
  }
};

CADRE_VECTOR_LOOP void AddBackwardSums(int64_t rows, int64_t channels, const float* x,
                                       const float* dy, const float* mean, double* sums,
                                       double* products) {
  ForTiles(rows, channels, GradientTiles{channels, x, dy, mean, sums, products});
}

// y = (x - mean) * factor + shift. x and y may be the same.
template <typename V>
CADRE_INLINE void NormaliseAt(const float* x, const float* mean, const float* factor,
                              const float* shift, float* y) {
  Store(y, (Load<V>(x) - Load<V>(mean)) * Load<V>(factor) + Load<V>(shift));
}

CADRE_VECTOR_LOOP void Normalise(int64_t rows, int64_t channels, const float* x, const float* mean,
                                 const float* factor, const float* shift, float* y) {
  for (int64_t r = 0; r < rows; ++r, x += channels, y += channels) {
    int64_t c = 0;
    for (; c + kVectorSize <= channels; c += kVectorSize) {
      Prefetch(x + c);
      NormaliseAt<Vector>(x + c, mean + c, factor + c, shift + c, y + c);
    }
    for (; c < channels; ++c) {
      NormaliseAt<float>(x + c, mean + c, factor + c, shift + c, y + c);
    }
  }
}

// The coefficients of dx, by channel.
struct Coefficients {
  const float *mean, *factor, *mean_dy, *slope;
};

// dx = factor * (dy - mean_dy - (x - mean) * slope). dy and dx may be the same.
template <typename V>
CADRE_INLINE void DenormaliseAt(const Coefficients& by, int64_t c, const float* x, const float* dy,
                                float* dx) {
  const V normal = (Load<V>(x + c) - Load<V>(by.mean + c)) * Load<V>(by.slope + c);
  Store(dx + c, Load<V>(by.factor + c) * (Load<V>(dy + c) - Load<V>(by.mean_dy + c) - normal));
}

CADRE_VECTOR_LOOP void Denormalise(int64_t rows, int64_t channels, Coefficients by, const float* x,
                                   const float* dy, float* dx) {
  for (int64_t r = 0; r < rows; ++r, x += channels, dy += channels, dx += channels) {
    int64_t c = 0;
    for (; c + kVectorSize <= channels; c += kVectorSize) {
      Prefetch(x + c);
      Prefetch(dy + c);
      DenormaliseAt<Vector>(by, c, x, dy, dx);
    }
    for (; c < channels; ++c) DenormaliseAt<float>(by, c, x, dy, dx);
  }
}

// A few values by channel, each aligned to a cache line, because loops over rows read them for
// every row.
class ByChannel {
 public:
  ByChannel(Workspace& workspace, size_t slot, int64_t channels)
      : stride_((channels + kVectorSize - 1) / kVectorSize * kVectorSize),
        next_(workspace.Floats(slot, kMaxValues * stride_)) {}

  const float* Copy(ConstFloatSpan values) {
    float* to = Next();
    std::copy(values.begin(), values.end(), to);
    return to;
  }
  const float* Product(ConstFloatSpan a, ConstFloatSpan b) {
    float* to = Next();
    std::transform(a.begin(), a.end(), b.begin(), to, std::multiplies<>());
    return to;
  }

 private:
  static constexpr int64_t kMaxValues = 4;

  float* Next() {
    float* next = next_;
    next_ += stride_;
    return next;
  }

  const int64_t stride_;
  float* next_;
};

struct Statistics {
  float mean, inverse;
};

CADRE_VECTOR_LOOP Statistics NormaliseRow(int64_t n, float epsilon, const float* x,
                                          const float* scale, const float* shift, float* y) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < n; ++c) sum += x[c];
  const float mean = sum / n;
  double squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < n; ++c) {
    squares += (x[c] - mean) * (x[c] - mean);
  }
  const float inverse = 1 / __builtin_sqrt(squares / n + epsilon);
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) y[c] = (x[c] - mean) * inverse * scale[c] + shift[c];
  return {mean, inverse};
}

// Computes a row of dx, and adds the row's terms to the gradients of scale and shift.
CADRE_VECTOR_LOOP void DenormaliseRow(int64_t n, Statistics s, const float* __restrict x,
                                      const float* dy, const float* __restrict scale, float* dx,
                                      double* __restrict dscale, double* __restrict dshift) {
  double sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (int64_t c = 0; c < n; ++c) {
    const float normal = (x[c] - s.mean) * s.inverse;
    const float g = dy[c] * scale[c];
    sum += g;
    product += g * normal;
    dscale[c] += dy[c] * normal;
    dshift[c] += dy[c];
  }
  const float mean_g = sum / n;
  const float mean_product = product / n;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    const float normal = (x[c] - s.mean) * s.inverse;
    dx[c] = s.inverse * (dy[c] * scale[c] - mean_g - normal * mean_product);
  }
}

// power[c] = d[c]^-beta.
CADRE_VECTOR_LOOP void Powers(int64_t n, float beta, const float* __restrict d,
                              float* __restrict power) {
  if (beta == 0.75F) {  // the usual exponent: two square roots
    for (int64_t c = 0; c < n; ++c) {
      const float root = __builtin_sqrtf(d[c]);
      power[c] = 1.0F / (root * __builtin_sqrtf(root));
    }
  } else {
    for (int64_t c = 0; c < n; ++c) power[c] = std::pow(d[c], -beta);
  }
}

// to[c] = first + factor * (from[c] + ... + from[c + size - 1]).
CADRE_VECTOR_LOOP void SlidingSums(int64_t n, int64_t size, float first, float factor,
                                   const float* __restrict from, float* __restrict to) {
  for (int64_t c = 0; c < n; ++c) to[c] = from[c];
  for (int64_t i = 1; i < size; ++i) {
    for (int64_t c = 0; c < n; ++c) to[c] += from[c + i];
  }
  for (int64_t c = 0; c < n; ++c) to[c] = first + factor * to[c];
}

CADRE_VECTOR_LOOP void Multiply(int64_t n, const float* __restrict a, const float* __restrict b,
                                float* __restrict product) {
  for (int64_t c = 0; c < n; ++c) product[c] = a[c] * b[c];
}

// shares = dy * x * power / d: the gradient of the sum under the power.
CADRE_VECTOR_LOOP void Shares(int64_t n, const float* __restrict x, const float* __restrict d,
                              const float* __restrict dy, const float* __restrict power,
                              float* __restrict shares) {
  for (int64_t c = 0; c < n; ++c) shares[c] = dy[c] * x[c] * power[c] / d[c];
}

// dx = dy * power + x * sums.
CADRE_VECTOR_LOOP void Combine(int64_t n, const float* __restrict x, const float* __restrict dy,
                               const float* __restrict power, const float* __restrict sums,
                               float* __restrict dx) {
  for (int64_t c = 0; c < n; ++c) dx[c] = dy[c] * power[c] + x[c] * sums[c];
}

// A row with zeros before and after it, and two more for intermediate results.
struct RowBuffers {
  RowBuffers(int64_t channels, int64_t before, int64_t after)
      : padded(before + channels + after),
        row(padded.data() + before),
        power(channels),
        sums(channels) {}

  std::vector<float> padded;
  float* row;
  std::vector<float> power, sums;
};

class CpuNorm {
 public:
  explicit CpuNorm(CpuContext& cpu) : cpu_(cpu) {}

  void BatchNormSums(const RowsDims& dims, ConstFloatSpan x, std::span<double> sums) {
    const int64_t n = dims.channels;
    SumByThread(cpu_.threads, dims.rows, n, sums, [=](int64_t begin, int64_t end, double* to) {
      AddSumsAndSquares(end - begin, n, x.data() + begin * n, to, to + n);
    });
  }

  void BatchNormForward(const RowsDims& dims, ConstFloatSpan x, ConstFloatSpan mean,
                        ConstFloatSpan inverse, ConstFloatSpan scale, ConstFloatSpan shift,
                        FloatSpan y) {
    const int64_t n = dims.channels;
    ByChannel by(cpu_.workspace, CpuContext::kOwnSlot, n);
    const float* means = by.Copy(mean);
    const float* factors = by.Product(inverse, scale);
    const float* shifts = by.Copy(shift);
    ForParts(cpu_.threads, dims.rows, n, [=](int64_t begin, int64_t end) {
      Normalise(end - begin, n, x.data() + begin * n, means, factors, shifts, y.data() + begin * n);
    });
  }

  void BatchNormBackwardSums(const RowsDims& dims, ConstFloatSpan x, ConstFloatSpan dy,
                             ConstFloatSpan mean, ConstFloatSpan inverse, std::span<double> sums) {
    const int64_t n = dims.channels;
    SumByThread(cpu_.threads, dims.rows, n, sums, [=](int64_t begin, int64_t end, double* to) {
      AddBackwardSums(end - begin, n, x.data() + begin * n, dy.data() + begin * n, mean.data(), to,
                      to + n);
    });
    for (size_t c = 0; c < inverse.size(); ++c) {
      sums[inverse.size() + c] *= inverse[c];
    }
  }

  void BatchNormBackward(const RowsDims& dims, ConstFloatSpan x, ConstFloatSpan dy,
                         ConstFloatSpan mean, ConstFloatSpan inverse, ConstFloatSpan scale,
                         ConstFloatSpan mean_dy, ConstFloatSpan mean_dy_x, FloatSpan dx) {
    const int64_t n = dims.channels;
    ByChannel by(cpu_.workspace, CpuContext::kOwnSlot, n);
    const Coefficients coefficients{.mean = by.Copy(mean),
                                    .factor = by.Product(scale, inverse),
                                    .mean_dy = by.Copy(mean_dy),
                                    .slope = by.Product(inverse, mean_dy_x)};
    ForParts(cpu_.threads, dims.rows, n, [=](int64_t begin, int64_t end) {
      Denormalise(end - begin, n, coefficients, x.data() + begin * n, dy.data() + begin * n,
                  dx.data() + begin * n);
    });
  }

  void LayerNormForward(const RowsDims& dims, float epsilon, ConstFloatSpan x, ConstFloatSpan scale,
                        ConstFloatSpan shift, FloatSpan y, FloatSpan mean, FloatSpan inverse) {
    const int64_t n = dims.channels;
    if (n == 0) {
      cpu_.reference->norm().LayerNormForward(dims, epsilon, x, scale, shift, y, mean, inverse);
      return;
    }
    ForParts(cpu_.threads, dims.rows, n, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const Statistics s = NormaliseRow(n, epsilon, x.data() + r * n, scale.data(), shift.data(),
                                          y.data() + r * n);
        mean[r] = s.mean;
        inverse[r] = s.inverse;
      }
    });
  }

  void LayerNormBackward(const RowsDims& dims, ConstFloatSpan x, ConstFloatSpan dy,
                         ConstFloatSpan mean, ConstFloatSpan inverse, ConstFloatSpan scale,
                         FloatSpan dx, FloatSpan dscale, FloatSpan dshift) {
    const int64_t n = dims.channels;
    std::vector<double> sums(2 * n);
    SumByThread(cpu_.threads, dims.rows, n, sums, [&](int64_t begin, int64_t end, double* to) {
      for (int64_t r = begin; r < end; ++r) {
        const size_t at = r;
        DenormaliseRow(n, {mean[at], inverse[at]}, x.data() + r * n, dy.data() + r * n,
                       scale.data(), dx.data() + r * n, to, to + n);
      }
    });
    for (size_t c = 0; c < dscale.size(); ++c) {
      dscale[c] = sums[c];
      dshift[c] = sums[dscale.size() + c];
    }
  }

  void LrnForward(const LrnDims& dims, ConstFloatSpan x, FloatSpan y, FloatSpan d) {
    const int64_t n = dims.channels;
    ForParts(cpu_.threads, dims.rows, n * dims.size, [&](int64_t begin, int64_t end) {
      RowBuffers buffers(n, dims.size / 2, (dims.size - 1) / 2);
      for (int64_t at = begin * n; at < end * n; at += n) {
        Multiply(n, x.data() + at, x.data() + at, buffers.row);
        SlidingSums(n, dims.size, dims.k, dims.alpha / dims.size, buffers.padded.data(),
                    d.data() + at);
        Powers(n, dims.beta, d.data() + at, buffers.power.data());
        Multiply(n, x.data() + at, buffers.power.data(), y.data() + at);
      }
    });
  }

  void LrnBackward(const LrnDims& dims, ConstFloatSpan x, ConstFloatSpan d, ConstFloatSpan dy,
                   FloatSpan dx) {
    const int64_t n = dims.channels;
    const float factor = -2 * dims.alpha * dims.beta / dims.size;
    ForParts(cpu_.threads, dims.rows, n * dims.size, [&](int64_t begin, int64_t end) {
      // Channel c is in the windows of the channels (size - 1) / 2 before to size / 2 after it.
      RowBuffers buffers(n, (dims.size - 1) / 2, dims.size / 2);
      for (int64_t at = begin * n; at < end * n; at += n) {
        Powers(n, dims.beta, d.data() + at, buffers.power.data());
        Shares(n, x.data() + at, d.data() + at, dy.data() + at, buffers.power.data(), buffers.row);
        SlidingSums(n, dims.size, 0, factor, buffers.padded.data(), buffers.sums.data());
        Combine(n, x.data() + at, dy.data() + at, buffers.power.data(), buffers.sums.data(),
                dx.data() + at);
      }
    });
  }

 private:
  CpuContext& cpu_;
};

}  // namespace

std::unique_ptr<NormKernels> MakeCpuNorm(CpuContext& cpu) {
  return std::make_unique<HostNorm<SpanCaller<CpuNorm>>>(cpu);
}

}  // namespace cadre
