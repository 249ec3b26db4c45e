// Batch norm over rows of channels. Loops run along the channels, so that no sum crosses lanes:
// each channel's sums are taken in float over a few rows, and these in double over the rest.
#include <algorithm>
#include <functional>
#include <initializer_list>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// Rows whose sums are taken in float before they go to the sums in double.
constexpr int64_t kRowsInFloat = 32;
// Registers of channels, a cache line each, that are summed side by side where there are so many
// channels: the longer a row's part that is read in one piece, the better.
constexpr int kAbreast = 8;

// V: Lanes or float. kCount of them side by side, over `rows` rows.
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
    for (; c + kAbreast * kLanes <= channels; c += kAbreast * kLanes) {
      SumTile<Lanes, kAbreast>(n, channels, x + c, sums + c, squares + c);
    }
    for (; c + 4 * kLanes <= channels; c += 4 * kLanes) {
      SumTile<Lanes, 4>(n, channels, x + c, sums + c, squares + c);
    }
    for (; c + kLanes <= channels; c += kLanes) {
      SumTile<Lanes, 1>(n, channels, x + c, sums + c, squares + c);
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
    for (; c + kAbreast * kLanes <= channels; c += kAbreast * kLanes) {
      BackwardSumTile<Lanes, kAbreast>(n, channels, x + c, dy + c, mean + c, sums + c,
                                       products + c);
    }
    for (; c + 4 * kLanes <= channels; c += 4 * kLanes) {
      BackwardSumTile<Lanes, 4>(n, channels, x + c, dy + c, mean + c, sums + c, products + c);
    }
    for (; c + kLanes <= channels; c += kLanes) {
      BackwardSumTile<Lanes, 1>(n, channels, x + c, dy + c, mean + c, sums + c, products + c);
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
    for (; c + kLanes <= channels; c += kLanes) {
      Prefetch(x + c);
      NormaliseAt<Lanes>(x + c, mean + c, factor + c, shift + c, y + c);
    }
    for (; c < channels; ++c) {
      NormaliseAt<float>(x + c, mean + c, factor + c, shift + c, y + c);
    }
  }
}

// What dx takes of each channel.
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
    for (; c + kLanes <= channels; c += kLanes) {
      Prefetch(x + c);
      Prefetch(dy + c);
      DenormaliseAt<Lanes>(by, c, x, dy, dx);
    }
    for (; c < channels; ++c) DenormaliseAt<float>(by, c, x, dy, dx);
  }
}

// A few values by channel, each aligned to a cache line: in a loop over rows they are read as often
// as the rows.
class ByChannel {
 public:
  ByChannel(Workspace& workspace, size_t slot, int64_t channels)
      : stride_((channels + kLanes - 1) / kLanes * kLanes),
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

void CpuKernels::BatchNormSums(const RowsDims& dims, std::span<const float> x,
                               std::span<double> sums) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("sums", sums.size(), 2 * dims.channels);
  const int64_t n = dims.channels;
  SumByThread(threads_, dims.rows, n, sums, [=](int64_t begin, int64_t end, double* to) {
    AddSumsAndSquares(end - begin, n, x.data() + begin * n, to, to + n);
  });
}

void CpuKernels::BatchNormForward(const RowsDims& dims, std::span<const float> x,
                                  std::span<const float> mean, std::span<const float> inverse,
                                  std::span<const float> scale, std::span<const float> shift,
                                  std::span<float> y) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("y", y.size(), SizeOf(dims));
  CheckChannels(dims, {mean, inverse, scale, shift});
  const int64_t n = dims.channels;
  ByChannel by(workspace_, kOwnSlot, n);
  const float* means = by.Copy(mean);
  const float* factors = by.Product(inverse, scale);
  const float* shifts = by.Copy(shift);
  ForParts(threads_, dims.rows, n, [=](int64_t begin, int64_t end) {
    Normalise(end - begin, n, x.data() + begin * n, means, factors, shifts, y.data() + begin * n);
  });
}

void CpuKernels::BatchNormBackwardSums(const RowsDims& dims, std::span<const float> x,
                                       std::span<const float> dy, std::span<const float> mean,
                                       std::span<const float> inverse, std::span<double> sums) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckChannels(dims, {mean, inverse});
  CheckSize("sums", sums.size(), 2 * dims.channels);
  const int64_t n = dims.channels;
  SumByThread(threads_, dims.rows, n, sums, [=](int64_t begin, int64_t end, double* to) {
    AddBackwardSums(end - begin, n, x.data() + begin * n, dy.data() + begin * n, mean.data(), to,
                    to + n);
  });
  for (size_t c = 0; c < inverse.size(); ++c) {
    sums[inverse.size() + c] *= static_cast<double>(inverse[c]);
  }
}

void CpuKernels::BatchNormBackward(const RowsDims& dims, std::span<const float> x,
                                   std::span<const float> dy, std::span<const float> mean,
                                   std::span<const float> inverse, std::span<const float> scale,
                                   std::span<const float> mean_dy, std::span<const float> mean_dy_x,
                                   std::span<float> dx) {
  CheckSize("x", x.size(), SizeOf(dims));
  CheckSize("dy", dy.size(), SizeOf(dims));
  CheckSize("dx", dx.size(), SizeOf(dims));
  CheckChannels(dims, {mean, inverse, scale, mean_dy, mean_dy_x});
  const int64_t n = dims.channels;
  ByChannel by(workspace_, kOwnSlot, n);
  const Coefficients coefficients{.mean = by.Copy(mean),
                                  .factor = by.Product(scale, inverse),
                                  .mean_dy = by.Copy(mean_dy),
                                  .slope = by.Product(inverse, mean_dy_x)};
  ForParts(threads_, dims.rows, n, [=](int64_t begin, int64_t end) {
    Denormalise(end - begin, n, coefficients, x.data() + begin * n, dy.data() + begin * n,
                dx.data() + begin * n);
  });
}

}  // namespace cadre
