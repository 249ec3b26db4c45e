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
// An addition and a ReLU that follow a batch norm are computed in its passes, and so are the sum
// and the mask of the gradient in backward. A ReLU saves one bit per element: a word holds 32 rows
// of a channel, so that a vector of channels has a vector of words.
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
#include <type_traits>
#include <vector>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"

namespace cadre {
namespace {

// Sums of x and of its squares (see ForTiles).
template <typename T>
struct MomentTiles {
  int64_t channels;
  const T* x;
  double *sums, *squares;

  template <typename V, int kCount>
  CADRE_INLINE void Add(int64_t first_row, int64_t rows, int64_t c) const {
    constexpr int64_t kWidth = sizeof(V) / sizeof(float);
    const T* from = x + first_row * channels + c;
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

template <typename T>
CADRE_VECTOR_LOOP void AddSumsAndSquares(int64_t rows, int64_t channels, const T* x, double* sums,
                                         double* squares) {
  ForTiles(rows, channels, MomentTiles<T>{channels, x, sums, squares});
}

// Bits of elements (see NormKernels): row / 32 selects a row of words, row % 32 the bit.
CADRE_INLINE int32_t BitOf(int64_t row) { return static_cast<int32_t>(1U << (row % 32)); }
// bit where v > 0.
CADRE_INLINE IntVector BitsIfPositive(Vector v, int32_t bit) { return (v > Vector{}) & bit; }
CADRE_INLINE int32_t BitsIfPositive(float v, int32_t bit) { return v > 0 ? bit : 0; }
// v where the bit is set, elsewhere 0.
CADRE_INLINE Vector IfSet(const int32_t* words, int32_t bit, Vector v) {
  return (Load<IntVector>(words) & bit) != IntVector{} ? v : Vector{};
}
CADRE_INLINE float IfSet(const int32_t* words, int32_t bit, float v) {
  return (*words & bit) != 0 ? v : 0;
}

// The gradient of the output of a batch norm and of what is fused with it. Null: without.
template <typename T>
struct OutputGradient {
  const T* dy;
  const T* other_dy;
  const int32_t* positive;
  T* total_dy;
  bool is_plain() const {
    return other_dy == nullptr && positive == nullptr && total_dy == nullptr;
  }
};

// Sums of g and of g * (x - mean) from row `begin` on. kPlain: g is dy.
template <typename T, bool kPlain>
struct GradientTiles {
  int64_t channels, begin;
  const T* x;
  OutputGradient<T> g;
  const float* mean;
  double *sums, *products;

  template <typename V>
  CADRE_INLINE V Gradient(int64_t row, int64_t c) const {
    const int64_t at = row * channels + c;
    Prefetch(g.dy + at);
    V gradient = Load<V>(g.dy + at);
    if constexpr (!kPlain) {
      if (g.other_dy != nullptr) {
        Prefetch(g.other_dy + at);
        gradient = Rounded<T>(gradient + Load<V>(g.other_dy + at));
      }
      if (g.positive != nullptr) {
        gradient = IfSet(g.positive + row / 32 * channels + c, BitOf(row), gradient);
      }
      if (g.total_dy != nullptr) StoreExact(g.total_dy + at, gradient);
    }
    return gradient;
  }

  template <typename V, int kCount>
  CADRE_INLINE void Add(int64_t first_row, int64_t rows, int64_t c) const {
    constexpr int64_t kWidth = sizeof(V) / sizeof(float);
    V sum[kCount] = {}, product[kCount] = {}, middle[kCount];
    for (int i = 0; i < kCount; ++i) middle[i] = Load<V>(mean + c + i * kWidth);
    for (int64_t r = begin + first_row; r < begin + first_row + rows; ++r) {
      const T* const from = x + r * channels + c;
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) {
        Prefetch(from + i * kWidth);
        const V gradient = Gradient<V>(r, c + i * kWidth);
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

template <typename T, bool kPlain>
CADRE_VECTOR_LOOP void AddBackwardSums(int64_t begin, int64_t end, int64_t channels, const T* x,
                                       OutputGradient<T> g, const float* mean, double* sums,
                                       double* products) {
  ForTiles(end - begin, channels,
           GradientTiles<T, kPlain>{channels, begin, x, g, mean, sums, products});
}

// y = (x - mean) * factor + shift, plus the addend and then ReLU unless they are null. y may be the
// same as x or addend.
template <typename T>
struct Normalisation {
  const T* x;
  const float *mean, *factor, *shift;
  const T* addend;
  int32_t* positive;
  T* y;

  template <typename V>
  CADRE_INLINE void Compute(int64_t row, int64_t channels, int64_t c) const {
    const int64_t at = row * channels + c;
    V value = (Load<V>(x + at) - Load<V>(mean + c)) * Load<V>(factor + c) + Load<V>(shift + c);
    if (addend != nullptr) {
      Prefetch(addend + at);
      value = Rounded<T>(value) + Load<V>(addend + at);
    }
    if (positive == nullptr) return Store(y + at, value);
    value = Rounded<T>(value);
    value = value < V{} ? V{} : value;
    StoreExact(y + at, value);
    int32_t* const words = positive + row / 32 * channels + c;
    const auto bits = BitsIfPositive(value, BitOf(row));
    // The first row of the word stores it.
    Store(words, row % 32 == 0 ? bits : Load<std::remove_const_t<decltype(bits)>>(words) | bits);
  }
};

template <typename T>
CADRE_VECTOR_LOOP void Normalise(int64_t begin, int64_t end, int64_t channels,
                                 Normalisation<T> norm) {
  for (int64_t r = begin; r < end; ++r) {
    int64_t c = 0;
    for (; c + kVectorSize <= channels; c += kVectorSize) {
      Prefetch(norm.x + r * channels + c);
      norm.template Compute<Vector>(r, channels, c);
    }
    for (; c < channels; ++c) norm.template Compute<float>(r, channels, c);
  }
}

// The coefficients of dx, by channel.
struct Coefficients {
  const float *mean, *factor, *mean_dy, *slope;
};

// dx = factor * (g - mean_dy - (x - mean) * slope), where g is dy, or 0 if the bit is not set. dy
// and dx may be the same.
template <typename V, typename T>
CADRE_INLINE void DenormaliseAt(const Coefficients& by, int64_t c, const T* x, const T* dy,
                                const int32_t* positive, int32_t bit, T* dx) {
  V gradient = Load<V>(dy + c);
  if (positive != nullptr) gradient = IfSet(positive + c, bit, gradient);
  const V normal = (Load<V>(x + c) - Load<V>(by.mean + c)) * Load<V>(by.slope + c);
  Store(dx + c, Load<V>(by.factor + c) * (gradient - Load<V>(by.mean_dy + c) - normal));
}

template <typename T>
CADRE_VECTOR_LOOP void Denormalise(int64_t begin, int64_t end, int64_t channels, Coefficients by,
                                   const T* x, const T* dy, const int32_t* positive, T* dx) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t at = r * channels;
    const int32_t* const words = positive == nullptr ? nullptr : positive + r / 32 * channels;
    int64_t c = 0;
    for (; c + kVectorSize <= channels; c += kVectorSize) {
      Prefetch(x + at + c);
      Prefetch(dy + at + c);
      DenormaliseAt<Vector>(by, c, x + at, dy + at, words, BitOf(r), dx + at);
    }
    for (; c < channels; ++c) {
      DenormaliseAt<float>(by, c, x + at, dy + at, words, BitOf(r), dx + at);
    }
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

template <typename T>
CADRE_VECTOR_LOOP Statistics NormaliseRow(int64_t n, float epsilon, const T* x, const float* scale,
                                          const float* shift, T* y) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < n; ++c) sum += Load<float>(x + c);
  const float mean = sum / n;
  double squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < n; ++c) {
    const float difference = Load<float>(x + c) - mean;
    squares += difference * difference;
  }
  const float inverse = 1 / __builtin_sqrt(squares / n + epsilon);
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    Store(y + c, (Load<float>(x + c) - mean) * inverse * scale[c] + shift[c]);
  }
  return {mean, inverse};
}

// Computes a row of dx, and adds the row's terms to the gradients of scale and shift.
template <typename T>
CADRE_VECTOR_LOOP void DenormaliseRow(int64_t n, Statistics s, const T* __restrict x, const T* dy,
                                      const float* __restrict scale, T* dx,
                                      double* __restrict dscale, double* __restrict dshift) {
  double sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (int64_t c = 0; c < n; ++c) {
    const float normal = (Load<float>(x + c) - s.mean) * s.inverse;
    const float gradient = Load<float>(dy + c);
    const float g = gradient * scale[c];
    sum += g;
    product += g * normal;
    dscale[c] += gradient * normal;
    dshift[c] += gradient;
  }
  const float mean_g = sum / n;
  const float mean_product = product / n;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    const float normal = (Load<float>(x + c) - s.mean) * s.inverse;
    Store(dx + c, s.inverse * (Load<float>(dy + c) * scale[c] - mean_g - normal * mean_product));
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

template <typename A, typename B, typename Product>
CADRE_VECTOR_LOOP void Multiply(int64_t n, const A* __restrict a, const B* __restrict b,
                                Product* __restrict product) {
  for (int64_t c = 0; c < n; ++c) Store(product + c, Load<float>(a + c) * Load<float>(b + c));
}

// shares = dy * x * power / d: the gradient of the sum under the power.
template <typename T>
CADRE_VECTOR_LOOP void Shares(int64_t n, const T* __restrict x, const float* __restrict d,
                              const T* __restrict dy, const float* __restrict power,
                              float* __restrict shares) {
  for (int64_t c = 0; c < n; ++c) {
    shares[c] = Load<float>(dy + c) * Load<float>(x + c) * power[c] / d[c];
  }
}

// dx = dy * power + x * sums.
template <typename T>
CADRE_VECTOR_LOOP void Combine(int64_t n, const T* __restrict x, const T* __restrict dy,
                               const float* __restrict power, const float* __restrict sums,
                               T* __restrict dx) {
  for (int64_t c = 0; c < n; ++c) {
    Store(dx + c, Load<float>(dy + c) * power[c] + Load<float>(x + c) * sums[c]);
  }
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

  void BatchNormSums(const RowsDims& dims, ConstValues x, std::span<double> sums) {
    const int64_t n = dims.channels;
    ByType(x.type(), [&](auto zero) {
      const auto* const from = Data<decltype(zero)>(x);
      SumByThread(cpu_.threads, dims.rows, n, sums, [=](int64_t begin, int64_t end, double* to) {
        AddSumsAndSquares(end - begin, n, from + begin * n, to, to + n);
      });
    });
  }

  void BatchNormForward(const RowsDims& dims, ConstValues x, ConstFloatSpan mean,
                        ConstFloatSpan inverse, ConstFloatSpan scale, ConstFloatSpan shift,
                        ConstValues addend, std::span<int32_t> positive, Values y) {
    const int64_t n = dims.channels;
    ByChannel by(cpu_.workspace, CpuContext::kOwnSlot, n);
    const float* means = by.Copy(mean);
    const float* factors = by.Product(inverse, scale);
    const float* shifts = by.Copy(shift);
    // Threads do not share words of bits.
    const int64_t step = positive.empty() ? 1 : 32;
    ByType(x.type(), [&](auto zero) {
      using T = decltype(zero);
      const Normalisation<T> norm{.x = Data<T>(x),
                                  .mean = means,
                                  .factor = factors,
                                  .shift = shifts,
                                  .addend = Data<T>(addend),
                                  .positive = positive.data(),
                                  .y = Data<T>(y)};
      ForParts(cpu_.threads, (dims.rows + step - 1) / step, step * n,
               [&](int64_t begin, int64_t end) {
                 Normalise(step * begin, std::min(dims.rows, step * end), n, norm);
               });
    });
  }

  void BatchNormBackwardSums(const RowsDims& dims, ConstValues x, ConstValues dy,
                             ConstValues other_dy, std::span<const int32_t> positive,
                             ConstFloatSpan mean, ConstFloatSpan inverse, Values total_dy,
                             std::span<double> sums, FloatSpan dscale, FloatSpan dshift) {
    const int64_t n = dims.channels;
    ByType(x.type(), [&](auto zero) {
      using T = decltype(zero);
      const OutputGradient<T> g{.dy = Data<T>(dy),
                                .other_dy = Data<T>(other_dy),
                                .positive = positive.data(),
                                .total_dy = Data<T>(total_dy)};
      const auto add = g.is_plain() ? AddBackwardSums<T, true> : AddBackwardSums<T, false>;
      SumByThread(cpu_.threads, dims.rows, n, sums, [&](int64_t begin, int64_t end, double* to) {
        add(begin, end, n, Data<T>(x), g, mean.data(), to, to + n);
      });
    });
    for (size_t c = 0; c < inverse.size(); ++c) {
      sums[inverse.size() + c] *= inverse[c];
    }
    StoreHalves(sums, dshift, dscale);
  }

  void BatchNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                         std::span<const int32_t> positive, ConstFloatSpan mean,
                         ConstFloatSpan inverse, ConstFloatSpan scale, int64_t rows,
                         std::span<const double> sums, Values dx) {
    const int64_t n = dims.channels;
    const std::vector<float> all_means = MeansOf(sums, rows);
    const ConstFloatSpan means = all_means;
    ByChannel by(cpu_.workspace, CpuContext::kOwnSlot, n);
    const Coefficients coefficients{.mean = by.Copy(mean),
                                    .factor = by.Product(scale, inverse),
                                    .mean_dy = by.Copy(means.first(n)),
                                    .slope = by.Product(inverse, means.subspan(n))};
    ByType(x.type(), [&](auto zero) {
      using T = decltype(zero);
      ForParts(cpu_.threads, dims.rows, n, [&](int64_t begin, int64_t end) {
        Denormalise(begin, end, n, coefficients, Data<T>(x), Data<T>(dy), positive.data(),
                    Data<T>(dx));
      });
    });
  }

  void LayerNormForward(const RowsDims& dims, float epsilon, ConstValues x, ConstFloatSpan scale,
                        ConstFloatSpan shift, Values y, FloatSpan mean, FloatSpan inverse) {
    const int64_t n = dims.channels;
    if (n == 0) {
      cpu_.reference->norm().LayerNormForward(dims, epsilon, x, scale, shift, y, mean, inverse);
      return;
    }
    ByType(x.type(), [&](auto zero) {
      using T = decltype(zero);
      ForParts(cpu_.threads, dims.rows, n, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const Statistics s = NormaliseRow(n, epsilon, Data<T>(x) + r * n, scale.data(),
                                            shift.data(), Data<T>(y) + r * n);
          mean[r] = s.mean;
          inverse[r] = s.inverse;
        }
      });
    });
  }

  void LayerNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy, ConstFloatSpan mean,
                         ConstFloatSpan inverse, ConstFloatSpan scale, Values dx, FloatSpan dscale,
                         FloatSpan dshift) {
    const int64_t n = dims.channels;
    std::vector<double> sums(2 * n);
    ByType(x.type(), [&](auto zero) {
      using T = decltype(zero);
      SumByThread(cpu_.threads, dims.rows, n, sums, [&](int64_t begin, int64_t end, double* to) {
        for (int64_t r = begin; r < end; ++r) {
          const size_t at = r;
          DenormaliseRow(n, {mean[at], inverse[at]}, Data<T>(x) + r * n, Data<T>(dy) + r * n,
                         scale.data(), Data<T>(dx) + r * n, to, to + n);
        }
      });
    });
    StoreHalves(sums, dscale, dshift);
  }

  void LrnForward(const LrnDims& dims, ConstValues x, Values y, FloatSpan d) {
    const int64_t n = dims.channels;
    ByType(x.type(), [&](auto zero) {
      using T = decltype(zero);
      ForParts(cpu_.threads, dims.rows, n * dims.size, [&](int64_t begin, int64_t end) {
        RowBuffers buffers(n, dims.size / 2, (dims.size - 1) / 2);
        for (int64_t at = begin * n; at < end * n; at += n) {
          const T* const row = Data<T>(x) + at;
          Multiply(n, row, row, buffers.row);
          SlidingSums(n, dims.size, dims.k, dims.alpha / dims.size, buffers.padded.data(),
                      d.data() + at);
          Powers(n, dims.beta, d.data() + at, buffers.power.data());
          Multiply(n, row, buffers.power.data(), Data<T>(y) + at);
        }
      });
    });
  }

  void LrnBackward(const LrnDims& dims, ConstValues x, ConstFloatSpan d, ConstValues dy,
                   Values dx) {
    const int64_t n = dims.channels;
    const float factor = -2 * dims.alpha * dims.beta / dims.size;
    ByType(x.type(), [&](auto zero) {
      using T = decltype(zero);
      ForParts(cpu_.threads, dims.rows, n * dims.size, [&](int64_t begin, int64_t end) {
        // Channel c is in the windows of the channels (size - 1) / 2 before to size / 2 after it.
        RowBuffers buffers(n, (dims.size - 1) / 2, dims.size / 2);
        for (int64_t at = begin * n; at < end * n; at += n) {
          const T* const row = Data<T>(x) + at;
          const T* const gradients = Data<T>(dy) + at;
          Powers(n, dims.beta, d.data() + at, buffers.power.data());
          Shares(n, row, d.data() + at, gradients, buffers.power.data(), buffers.row);
          SlidingSums(n, dims.size, 0, factor, buffers.padded.data(), buffers.sums.data());
          Combine(n, row, gradients, buffers.power.data(), buffers.sums.data(), Data<T>(dx) + at);
        }
      });
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
