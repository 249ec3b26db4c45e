// Layer norm (Ba, Kiros and Hinton 2016): a warp takes a row and computes mean and variance in two
// passes over it; the second reads the row from a cache, and unlike E[x^2] - E[x]^2 does not
// cancel. The gradients of scale and shift are sums over rows by column (column_sums.h).
#include "device/cuda/launch.h"
#include "kernels/cuda/block_sums.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launches.h"

namespace cadre {
namespace {

constexpr int kWarpsPerBlock = 4;

LaunchShape WarpPerRow(const CudaDevice& device, int64_t rows) {
  return Strided(device, rows * 32, kWarpsPerBlock * 32, 16);
}

// Sums in double: a mean far from zero must not swallow the variance. A row without columns has
// mean and variance 0.
template <typename T, int N>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    NormaliseRows(int64_t rows, int64_t columns, double epsilon, const T* __restrict__ x,
                  const float* __restrict__ scale, const float* __restrict__ shift,
                  T* __restrict__ y, float* __restrict__ mean, float* __restrict__ inverse) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const double counted = columns > 0 ? static_cast<double>(columns) : 1.0;
  for (int64_t row = ThreadIndex() / 32; row < rows; row += ThreadCount() / 32) {
    const T* const from = x + row * columns;
    double sum = 0;
    for (int64_t c = lane * N; c < columns; c += 32 * N) {
      float values[N];
      LoadGroup(from + c, values);
      for (int k = 0; k < N; ++k) sum += static_cast<double>(values[k]);
    }
    const double average = OverWarp(sum, Plus()) / counted;
    double squares = 0;
    for (int64_t c = lane * N; c < columns; c += 32 * N) {
      float values[N];
      LoadGroup(from + c, values);
      for (int k = 0; k < N; ++k) {
        const double away = static_cast<double>(values[k]) - average;
        squares += away * away;
      }
    }
    const double variance = OverWarp(squares, Plus()) / counted;
    const auto m = static_cast<float>(average);
    const auto i = static_cast<float>(1.0 / sqrt(variance + epsilon));
    for (int64_t c = lane * N; c < columns; c += 32 * N) {
      float values[N], a[N], b[N];
      LoadGroup(from + c, values);
      LoadColumns(scale, c, a);
      LoadColumns(shift, c, b);
      for (int k = 0; k < N; ++k) values[k] = (values[k] - m) * i * a[k] + b[k];
      StoreGroup(values, y + row * columns + c);
    }
    if (lane == 0) {
      mean[row] = m;
      inverse[row] = i;
    }
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    RowsBackward(int64_t rows, int64_t columns, const T* __restrict__ x, const T* __restrict__ dy,
                 const float* __restrict__ mean, const float* __restrict__ inverse,
                 const float* __restrict__ scale, T* __restrict__ dx) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t row = ThreadIndex() / 32; row < rows; row += ThreadCount() / 32) {
    const float m = mean[row];
    const float i = inverse[row];
    // Of scale * dy, and of scale * dy * normal.
    double sum = 0;
    double product = 0;
    for (int64_t c = lane * N; c < columns; c += 32 * N) {
      float values[N], gradients[N], a[N];
      LoadGroup(x + row * columns + c, values);
      LoadGroup(dy + row * columns + c, gradients);
      LoadColumns(scale, c, a);
      for (int k = 0; k < N; ++k) {
        const float g = a[k] * gradients[k];
        sum += static_cast<double>(g);
        product += static_cast<double>(g * ((values[k] - m) * i));
      }
    }
    const auto mean_g = static_cast<float>(OverWarp(sum, Plus()) / static_cast<double>(columns));
    const auto mean_product =
        static_cast<float>(OverWarp(product, Plus()) / static_cast<double>(columns));
    for (int64_t c = lane * N; c < columns; c += 32 * N) {
      float values[N], gradients[N], a[N];
      LoadGroup(x + row * columns + c, values);
      LoadGroup(dy + row * columns + c, gradients);
      LoadColumns(scale, c, a);
      for (int k = 0; k < N; ++k) {
        const float normal = (values[k] - m) * i;
        gradients[k] = i * (a[k] * gradients[k] - mean_g - normal * mean_product);
      }
      StoreGroup(gradients, dx + row * columns + c);
    }
  }
}

// Of scale and of shift.
template <typename T>
struct ParameterTerms {
  static constexpr int kSums = 2;
  const T* x;
  const T* dy;
  const float* mean;
  const float* inverse;

  struct None {};
  template <int N>
  __device__ None At(int64_t) const {
    return {};
  }
  template <int N>
  __device__ void Add(const None&, int64_t row, int64_t at, double (&sums)[2][N]) const {
    float values[N], gradients[N];
    LoadGroup(x + at, values);
    LoadGroup(dy + at, gradients);
    const float m = mean[row];
    const float i = inverse[row];
    for (int k = 0; k < N; ++k) {
      sums[0][k] += static_cast<double>(gradients[k] * ((values[k] - m) * i));
      sums[1][k] += static_cast<double>(gradients[k]);
    }
  }
};

}  // namespace

void LaunchLayerNormForward(CudaDevice& device, const RowsDims& dims, float epsilon, ConstValues x,
                            std::span<const float> scale, std::span<const float> shift, Values y,
                            std::span<float> mean, std::span<float> inverse) {
  ByType(y.type(), [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto kernel) {
      Launch(device, "layer norm", kernel, WarpPerRow(device, dims.rows), dims.rows, dims.channels,
             static_cast<double>(epsilon), static_cast<const T*>(x.data()), scale.data(),
             shift.data(), static_cast<T*>(y.data()), mean.data(), inverse.data());
    };
    if (dims.channels % kWide<T> == 0 && Aligned({x.data(), y.data()})) {
      launch(NormaliseRows<T, kWide<T>>);
    } else {
      launch(NormaliseRows<T, 1>);
    }
  });
}

void LaunchLayerNormBackward(CudaDevice& device, const RowsDims& dims, ConstValues x,
                             ConstValues dy, std::span<const float> mean,
                             std::span<const float> inverse, std::span<const float> scale,
                             Values dx, std::span<float> dscale, std::span<float> dshift,
                             double* scratch) {
  ByType(dx.type(), [&](auto zero) {
    using T = decltype(zero);
    const auto* const in = static_cast<const T*>(x.data());
    const auto* const gradient = static_cast<const T*>(dy.data());
    const ParameterTerms<T> terms{in, gradient, mean.data(), inverse.data()};
    const auto launch = [&](auto kernel) {
      if (dims.rows == 0) return;
      Launch(device, "layer norm's gradient", kernel, WarpPerRow(device, dims.rows), dims.rows,
             dims.channels, in, gradient, mean.data(), inverse.data(), scale.data(),
             static_cast<T*>(dx.data()));
    };
    if (dims.channels % kWide<T> == 0 && Aligned({in, gradient, dx.data()})) {
      launch(RowsBackward<T, kWide<T>>);
      LaunchColumnSums<kWide<T>>(device, "layer norm's parameters' gradients", terms, dims.rows,
                                 dims.channels, scratch, dscale.data(), dshift.data());
    } else {
      launch(RowsBackward<T, 1>);
      LaunchColumnSums<1>(device, "layer norm's parameters' gradients", terms, dims.rows,
                          dims.channels, scratch, dscale.data(), dshift.data());
    }
  });
}

}  // namespace cadre
