// Batch norm. Sums by column in double (column_sums.h) use a fixed order; elementwise passes keep a
// thread in its columns, with their statistics in registers, while it steps over rows.
#include "device/cuda/launch.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launches.h"

namespace cadre {
namespace {

template <typename T>
struct MomentTerms {
  static constexpr int kSums = 2;
  const T* x;

  struct None {};
  template <int N>
  __device__ None At(int64_t) const {
    return {};
  }
  template <int N>
  __device__ void Add(const None&, int64_t, int64_t at, double (&sums)[2][N]) const {
    float values[N];
    LoadGroup(x + at, values);
    for (int k = 0; k < N; ++k) {
      const auto value = static_cast<double>(values[k]);
      sums[0][k] += value;
      sums[1][k] += value * value;
    }
  }
};

template <typename T>
struct GradientTerms {
  static constexpr int kSums = 2;
  const T* x;
  const T* dy;
  const float* mean;
  const float* inverse;

  template <int N>
  struct Statistics {
    float mean[N], inverse[N];
  };
  template <int N>
  __device__ Statistics<N> At(int64_t column) const {
    Statistics<N> found;
    LoadColumns(mean, column, found.mean);
    LoadColumns(inverse, column, found.inverse);
    return found;
  }
  template <int N>
  __device__ void Add(const Statistics<N>& s, int64_t, int64_t at, double (&sums)[2][N]) const {
    float values[N];
    float gradients[N];
    LoadGroup(x + at, values);
    LoadGroup(dy + at, gradients);
    for (int k = 0; k < N; ++k) {
      const float normal = (values[k] - s.mean[k]) * s.inverse[k];
      sums[0][k] += static_cast<double>(gradients[k]);
      sums[1][k] += static_cast<double>(gradients[k] * normal);
    }
  }
};

// x and y may be the same.
template <typename T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    Normalise(int64_t rows, int64_t columns, const T* x, const float* __restrict__ mean,
              const float* __restrict__ inverse, const float* __restrict__ scale,
              const float* __restrict__ shift, T* y) {
  const ColumnPlace place = PlaceInColumns<N>();
  if (place.column >= columns) return;
  float m[N], i[N], a[N], b[N];
  LoadColumns(mean, place.column, m);
  LoadColumns(inverse, place.column, i);
  LoadColumns(scale, place.column, a);
  LoadColumns(shift, place.column, b);
  for (int64_t row = place.first_row; row < rows; row += place.row_step) {
    const int64_t at = row * columns + place.column;
    float values[N];
    LoadGroup(x + at, values);
    for (int k = 0; k < N; ++k) values[k] = (values[k] - m[k]) * i[k] * a[k] + b[k];
    StoreGroup(values, y + at);
  }
}

// dy and dx may be the same.
template <typename T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    NormaliseBackward(int64_t rows, int64_t columns, const T* __restrict__ x, const T* dy,
                      const float* __restrict__ mean, const float* __restrict__ inverse,
                      const float* __restrict__ scale, const float* __restrict__ mean_dy,
                      const float* __restrict__ mean_dy_x, T* dx) {
  const ColumnPlace place = PlaceInColumns<N>();
  if (place.column >= columns) return;
  float m[N], i[N], a[N], d[N], p[N];
  LoadColumns(mean, place.column, m);
  LoadColumns(inverse, place.column, i);
  LoadColumns(scale, place.column, a);
  LoadColumns(mean_dy, place.column, d);
  LoadColumns(mean_dy_x, place.column, p);
  for (int64_t row = place.first_row; row < rows; row += place.row_step) {
    const int64_t at = row * columns + place.column;
    float values[N];
    float gradients[N];
    LoadGroup(x + at, values);
    LoadGroup(dy + at, gradients);
    for (int k = 0; k < N; ++k) {
      const float normal = (values[k] - m[k]) * i[k];
      gradients[k] = a[k] * i[k] * (gradients[k] - d[k] - normal * p[k]);
    }
    StoreGroup(gradients, dx + at);
  }
}

// counted, unbiased: see BatchNormStatistics of host_backend.cc.
__global__ void Statistics(int64_t columns, double counted, double unbiased, double epsilon,
                           double share, const double* __restrict__ sums, float* __restrict__ mean,
                           float* __restrict__ inverse, float* __restrict__ running_mean,
                           float* __restrict__ running_variance) {
  for (int64_t c = ThreadIndex(); c < columns; c += ThreadCount()) {
    const double average = sums[c] / counted;
    const double spread = sums[columns + c] / counted - average * average;
    // Not-a-number becomes 0 here as it does on the host; the mean tells.
    const double variance = 0.0 < spread ? spread : 0.0;
    mean[c] = static_cast<float>(average);
    inverse[c] = static_cast<float>(1.0 / sqrt(variance + epsilon));
    running_mean[c] = static_cast<float>(share * average);
    running_variance[c] = static_cast<float>(share * unbiased * variance);
  }
}

__global__ void Inverse(int64_t columns, double epsilon, const float* __restrict__ variance,
                        float* __restrict__ inverse) {
  for (int64_t c = ThreadIndex(); c < columns; c += ThreadCount()) {
    inverse[c] = static_cast<float>(1.0 / sqrt(static_cast<double>(variance[c]) + epsilon));
  }
}

__global__ void NarrowSums(int64_t n, double divisor, const double* __restrict__ sums,
                           float* __restrict__ y) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    y[i] = static_cast<float>(sums[i] / divisor);
  }
}

}  // namespace

void LaunchBatchNormSums(CudaDevice& device, const RowsDims& dims, ConstValues x, double* scratch,
                         std::span<double> sums) {
  double* const squares = sums.data() + dims.channels;
  ByType(x.type(), [&](auto zero) {
    using T = decltype(zero);
    const MomentTerms<T> terms{static_cast<const T*>(x.data())};
    if (dims.channels % kWide<T> == 0 && Aligned({x.data()})) {
      LaunchColumnSums<kWide<T>>(device, "batch norm's sums", terms, dims.rows, dims.channels,
                                 scratch, sums.data(), squares);
    } else {
      LaunchColumnSums<1>(device, "batch norm's sums", terms, dims.rows, dims.channels, scratch,
                          sums.data(), squares);
    }
  });
}

void LaunchBatchNormBackwardSums(CudaDevice& device, const RowsDims& dims, ConstValues x,
                                 ConstValues dy, std::span<const float> mean,
                                 std::span<const float> inverse, double* scratch,
                                 std::span<double> sums) {
  constexpr const char* kName = "batch norm's gradient's sums";
  double* const products = sums.data() + dims.channels;
  ByType(x.type(), [&](auto zero) {
    using T = decltype(zero);
    const GradientTerms<T> terms{static_cast<const T*>(x.data()), static_cast<const T*>(dy.data()),
                                 mean.data(), inverse.data()};
    if (dims.channels % kWide<T> == 0 && Aligned({x.data(), dy.data()})) {
      LaunchColumnSums<kWide<T>>(device, kName, terms, dims.rows, dims.channels, scratch,
                                 sums.data(), products);
    } else {
      LaunchColumnSums<1>(device, kName, terms, dims.rows, dims.channels, scratch, sums.data(),
                          products);
    }
  });
}

void LaunchBatchNormStatistics(CudaDevice& device, int64_t rows, float epsilon, double share,
                               std::span<const double> sums, std::span<float> mean,
                               std::span<float> inverse, std::span<float> running_mean,
                               std::span<float> running_variance) {
  const auto counted = static_cast<double>(std::max<int64_t>(1, rows));
  const double unbiased = rows > 1 ? counted / (counted - 1) : 1.0;
  const auto columns = static_cast<int64_t>(mean.size());
  Launch(device, "batch norm's statistics", Statistics, Strided(device, columns), columns, counted,
         unbiased, static_cast<double>(epsilon), share, sums.data(), mean.data(), inverse.data(),
         running_mean.data(), running_variance.data());
}

void LaunchBatchNormInverse(CudaDevice& device, float epsilon, std::span<const float> variance,
                            std::span<float> inverse) {
  const auto columns = static_cast<int64_t>(variance.size());
  Launch(device, "batch norm's inverse", Inverse, Strided(device, columns), columns,
         static_cast<double>(epsilon), variance.data(), inverse.data());
}

void LaunchDivideToFloat(CudaDevice& device, double divisor, std::span<const double> sums,
                         std::span<float> y) {
  const auto n = static_cast<int64_t>(y.size());
  Launch(device, "narrow", NarrowSums, Strided(device, n), n, divisor, sums.data(), y.data());
}

void LaunchBatchNormForward(CudaDevice& device, const RowsDims& dims, ConstValues x,
                            std::span<const float> mean, std::span<const float> inverse,
                            std::span<const float> scale, std::span<const float> shift, Values y) {
  const int64_t most = int64_t{device.processors()} * 8;
  ByType(y.type(), [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto kernel, int group) {
      Launch(device, "batch norm", kernel, ColumnShape(dims.rows, dims.channels, group, most),
             dims.rows, dims.channels, static_cast<const T*>(x.data()), mean.data(), inverse.data(),
             scale.data(), shift.data(), static_cast<T*>(y.data()));
    };
    if (dims.channels % kWide<T> == 0 && Aligned({x.data(), y.data()})) {
      launch(Normalise<T, kWide<T>>, kWide<T>);
    } else {
      launch(Normalise<T, 1>, 1);
    }
  });
}

void LaunchBatchNormBackward(CudaDevice& device, const RowsDims& dims, ConstValues x,
                             ConstValues dy, std::span<const float> mean,
                             std::span<const float> inverse, std::span<const float> scale,
                             std::span<const float> mean_dy, std::span<const float> mean_dy_x,
                             Values dx) {
  const int64_t most = int64_t{device.processors()} * 8;
  ByType(dx.type(), [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto kernel, int group) {
      Launch(device, "batch norm's gradient", kernel,
             ColumnShape(dims.rows, dims.channels, group, most), dims.rows, dims.channels,
             static_cast<const T*>(x.data()), static_cast<const T*>(dy.data()), mean.data(),
             inverse.data(), scale.data(), mean_dy.data(), mean_dy_x.data(),
             static_cast<T*>(dx.data()));
    };
    if (dims.channels % kWide<T> == 0 && Aligned({x.data(), dy.data(), dx.data()})) {
      launch(NormaliseBackward<T, kWide<T>>, kWide<T>);
    } else {
      launch(NormaliseBackward<T, 1>, 1);
    }
  });
}

}  // namespace cadre
