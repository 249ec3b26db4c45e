// Batch norm over rows of channels (Ioffe and Szegedy 2015).
//
// All loops run along the channels, the innermost dimension: a vector holds sixteen channels, and
// no sum crosses the elements of a vector. What limits these loops is memory bandwidth, so the two
// decisions here are about accuracy at full bandwidth:
//
// - A variance as E[x^2] - E[x]^2 cancels, so sums must be more precise than fp32. Conversion to
//   double for each element would halve the throughput. Instead sums of a few rows are taken in
//   fp32, where their error is that of a handful of additions, and these are added in double.
// - Several vectors of channels are summed side by side, so that each row is read in long runs,
//   which hardware prefetchers follow.
//
// Rows are divided among threads, and the threads' sums are added in order: the same bits for the
// same number of threads.
#include <algorithm>
#include <functional>
#include <initializer_list>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// Rows whose sums are taken in float before they go to the sums in double.
constexpr int64_t kRowsInFloat = 32;
// Vectors of channels that are summed together where there are so many channels, so that rows are
// read in long runs.
constexpr int kAbreast = 8;

// V: Vector or float. kCount of them side by side, over `rows` rows.
template <typename V, int kCount>
CADRE_INLINE void SumTile(int64_t rows, int64_t channels, const float* x, double* sums,
                          double* squares) {
  constexpr int64_t kWidth = sizeof(V) / sizeof(float);
  V sum[kCount] = {}, square[kCount] = {};
  for (int64_t r = 0; r < rows; ++r, x += channels) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      Prefetch(x + i * kWidth);
      const V value = Load<V>(x + i * kWidth);
      sum[i] += value;
      square[i] += value * value;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    AddWide(sum[i], sums + i * kWidth);
    AddWide(square[i], squares + i * kWidth);
  }
}

CADRE_VECTOR_LOOP void AddSumsAndSquares(int64_t rows, int64_t channels, const float* x,
                                         double* sums, double* squares) {
  for (int64_t r = 0; r < rows; r += kRowsInFloat, x += kRowsInFloat * channels) {
    const int64_t n = std::min(kRowsInFloat, rows - r);
    int64_t c = 0;
    for (; c + kAbreast * kVectorSize <= channels; c += kAbreast * kVectorSize) {
      SumTile<Vector, kAbreast>(n, channels, x + c, sums + c, squares + c);
    }
    for (; c + 4 * kVectorSize <= channels; c += 4 * kVectorSize) {
      SumTile<Vector, 4>(n, channels, x + c, sums + c, squares + c);
    }
    for (; c + kVectorSize <= channels; c += kVectorSize) {
      SumTile<Vector, 1>(n, channels, x + c, sums + c, squares + c);
    }
    for (; c < channels; ++c) SumTile<float, 1>(n, channels, x + c, sums + c, squares + c);
  }
}

// Also of dy, and of dy * (x - mean).
template <typename V, int kCount>
CADRE_INLINE void BackwardSumTile(int64_t rows, int64_t channels, const float* x, const float* dy,
                                  const float* mean, double* sums, double* products) {
  constexpr int64_t kWidth = sizeof(V) / sizeof(float);
  V sum[kCount] = {}, product[kCount] = {}, middle[kCount];
  for (int i = 0; i < kCount; ++i) middle[i] = Load<V>(mean + i * kWidth);
  for (int64_t r = 0; r < rows; ++r, x += channels, dy += channels) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      Prefetch(x + i * kWidth);
      Prefetch(dy + i * kWidth);
      const V gradient = Load<V>(dy + i * kWidth);
      sum[i] += gradient;
      product[i] += gradient * (Load<V>(x + i * kWidth) - middle[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    AddWide(sum[i], sums + i * kWidth);
    AddWide(product[i], products + i * kWidth);
  }
}

CADRE_VECTOR_LOOP void AddBackwardSums(int64_t rows, int64_t channels, const float* x,
                                       const float* dy, const float* mean, double* sums,
                                       double* products) {
  const int64_t step = kRowsInFloat * channels;
  for (int64_t r = 0; r < rows; r += kRowsInFloat, x += step, dy += step) {
    const int64_t n = std::min(kRowsInFloat, rows - r);
    int64_t c = 0;
    for (; c + kAbreast * kVectorSize <= channels; c += kAbreast * kVectorSize) {
      BackwardSumTile<Vector, kAbreast>(n, channels, x + c, dy + c, mean + c, sums + c,
                                        products + c);
    }
    for (; c + 4 * kVectorSize <= channels; c += 4 * kVectorSize) {
      BackwardSumTile<Vector, 4>(n, channels, x + c, dy + c, mean + c, sums + c, products + c);
    }
    for (; c + kVectorSize <= channels; c += kVectorSize) {
      BackwardSumTile<Vector, 1>(n, channels, x + c, dy + c, mean + c, sums + c, products + c);
    }
    for (; c < channels; ++c) {
      BackwardSumTile<float, 1>(n, channels, x + c, dy + c, mean + c, sums + c, products + c);
    }
  }
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
        next_(static_cast<float*>(
            workspace.Get(slot, kMost * static_cast<size_t>(stride_) * sizeof(float)))) {}

  const float* Copy(std::span<const float> values) {
    float* to = Next();
    std::copy(values.begin(), values.end(), to);
    return to;
  }
  const float* Product(std::span<const float> a, std::span<const float> b) {
    float* to = Next();
    std::transform(a.begin(), a.end(), b.begin(), to, std::multiplies<>());
    return to;
  }

 private:
  static constexpr size_t kMost = 4;

  float* Next() {
    float* next = next_;
    next_ += stride_;
    return next;
  }

  const int64_t stride_;
  float* next_;
};

void CheckChannels(const RowsDims& dims,
                   std::initializer_list<std::span<const float>> one_per_channel) {
  for (const auto& values : one_per_channel) {
    CheckSize("values by channel", values.size(), dims.channels);
  }
}

}  // namespace

void CpuNorm::BatchNormSums(const RowsDims& dims, ConstValues x_values, std::span<double> sums) {
  const auto x = x_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("sums", sums.size(), 2 * dims.channels);
  const int64_t n = dims.channels;
  SumByThread(cpu_.threads, dims.rows, n, sums, [=](int64_t begin, int64_t end, double* to) {
    AddSumsAndSquares(end - begin, n, x.data() + begin * n, to, to + n);
  });
}

void CpuNorm::BatchNormForward(const RowsDims& dims, ConstValues x_values,
                               std::span<const float> mean, std::span<const float> inverse,
                               std::span<const float> scale, std::span<const float> shift,
                               Values y_values) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("y", y.size(), SizeOf(dims));
  CheckChannels(dims, {mean, inverse, scale, shift});
  const int64_t n = dims.channels;
  ByChannel by(cpu_.workspace, CpuContext::kOwnSlot, n);
  const float* means = by.Copy(mean);
  const float* factors = by.Product(inverse, scale);
  const float* shifts = by.Copy(shift);
  ForParts(cpu_.threads, dims.rows, n, [=](int64_t begin, int64_t end) {
    Normalise(end - begin, n, x.data() + begin * n, means, factors, shifts, y.data() + begin * n);
  });
}

void CpuNorm::BatchNormBackwardSums(const RowsDims& dims, ConstValues x_values,
                                    ConstValues dy_values, std::span<const float> mean,
                                    std::span<const float> inverse, std::span<double> sums) {
  const auto x = x_values.floats(), dy = dy_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckChannels(dims, {mean, inverse});
  CheckSize("sums", sums.size(), 2 * dims.channels);
  const int64_t n = dims.channels;
  SumByThread(cpu_.threads, dims.rows, n, sums, [=](int64_t begin, int64_t end, double* to) {
    AddBackwardSums(end - begin, n, x.data() + begin * n, dy.data() + begin * n, mean.data(), to,
                    to + n);
  });
  for (size_t c = 0; c < inverse.size(); ++c) {
    sums[inverse.size() + c] *= static_cast<double>(inverse[c]);
  }
}

void CpuNorm::BatchNormBackward(const RowsDims& dims, ConstValues x_values, ConstValues dy_values,
                                std::span<const float> mean, std::span<const float> inverse,
                                std::span<const float> scale, std::span<const float> mean_dy,
                                std::span<const float> mean_dy_x, Values dx_values) {
  const auto x = x_values.floats(), dy = dy_values.floats();
  const auto dx = dx_values.floats();
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("dx", dx.size(), SizeOf(dims));
  CheckChannels(dims, {mean, inverse, scale, mean_dy, mean_dy_x});
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

}  // namespace cadre
