// Batch and layer normalisation; local_response.h has the local response norm.
//
// Batch norm (Ioffe and Szegedy 2015). Sums per column are taken in double, in a fixed order
// (column_sums.h). In elementwise passes a thread keeps its columns, with their statistics in
// registers, and iterates over rows. An addition and a ReLU that follow are computed in the same
// passes, with the roundings of separate ones. x and y may be the same array, so the compiler moves
// no load before an earlier store; the pass with a ReLU therefore loads several rows explicitly
// before it stores the first, and the other passes have enough threads to hide the latency.
//
// Layer norm (Ba, Kiros and Hinton 2016). A warp computes the mean and the variance of a row in two
// passes; the second reads the row from a cache. Two passes avoid the cancellation of E[x^2] -
// E[x]^2. The gradients of scale and shift are sums per column over the rows.
#include "device/cuda/launch.h"
#include "kernels/cuda/block_sums.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/local_response.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// --- batch norm ---------------------------------------------------------------------------------

template <typename T>
struct MomentTerms : RowTerms {
  explicit MomentTerms(const T* x) : x(x) {}
  static constexpr int kSums = 2;
  const T* x;

  template <int N>
  __device__ void Add(const None&, int64_t, int64_t at, double (&sums)[2][N]) const {
    float values[N];
    LoadGroup(x + at, values);
    for (int k = 0; k < N; ++k) {
      const double value = values[k];
      sums[0][k] += value;
      sums[1][k] += value * value;
    }
  }
};

// The value that a store of `value` in a T and a load have.
template <typename T>
__device__ inline float Rounded(float value) {
  T stored;
  FromFloat(value, &stored);
  return ToFloat(stored);
}

// The bit and the word of an element (see NormKernels).
__device__ inline int32_t BitOf(int64_t row) {
  return static_cast<int32_t>(uint32_t{1} << (row % 32));
}
__device__ inline int64_t WordOf(int64_t row, int64_t columns, int64_t column) {
  return row / 32 * columns + column;
}

// What a batch norm's gradient sums read besides x; null: without.
template <typename T>
struct OutputGradient {
  const T* dy;
  const T* other_dy;
  const int32_t* positive;
  T* total_dy;
};

template <typename T>
struct GradientTerms {
  static constexpr int kSums = 2;
  int64_t columns;
  const T* x;
  OutputGradient<T> g;
  const float* mean;
  const float* inverse;

  template <int N>
  struct Statistics {
    float mean[N], inverse[N];
  };
  template <int N>
  __device__ Statistics<N> At(int64_t column) const {
    Statistics<N> statistics;
    LoadColumns(mean, column, statistics.mean);
    LoadColumns(inverse, column, statistics.inverse);
    return statistics;
  }
  template <int N>
  __device__ void Add(const Statistics<N>& s, int64_t row, int64_t at, double (&sums)[2][N]) const {
    float values[N];
    float gradients[N];
    LoadGroup(x + at, values);
    LoadGroup(g.dy + at, gradients);
    if (g.other_dy != nullptr) {
      float others[N];
      LoadGroup(g.other_dy + at, others);
      for (int k = 0; k < N; ++k) gradients[k] = Rounded<T>(gradients[k] + others[k]);
    }
    if (g.positive != nullptr) {
      const int32_t* const words = g.positive + WordOf(row, columns, at - row * columns);
      for (int k = 0; k < N; ++k) {
        if ((words[k] & BitOf(row)) == 0) gradients[k] = 0;
      }
    }
    if (g.total_dy != nullptr) StoreGroup(gradients, g.total_dy + at);
    for (int k = 0; k < N; ++k) {
      const float normal = (values[k] - s.mean[k]) * s.inverse[k];
      sums[0][k] += gradients[k];
      sums[1][k] += gradients[k] * normal;
    }
  }
};

// y = (x - mean) * inverse * scale + shift by column, plus the addend unless it is null. y may be
// the same as x or addend.
template <typename T, int N>
struct Normalisation {
  __device__ Normalisation(int64_t column, const float* __restrict__ mean,
                           const float* __restrict__ inverse, const float* __restrict__ scale,
                           const float* __restrict__ shift) {
    LoadColumns(mean, column, m);
    LoadColumns(inverse, column, i);
    LoadColumns(scale, column, a);
    LoadColumns(shift, column, b);
  }
  float m[N], i[N], a[N], b[N];

  // N elements of x and of the addend.
  struct Terms {
    Group<T, N> x, other;
  };
  static __device__ Terms Read(const T* x, const T* addend, int64_t at) {
    Terms terms = {.x = ReadGroup<T, N>(x + at)};
    if (addend != nullptr) terms.other = ReadGroup<T, N>(addend + at);
    return terms;
  }

  __device__ void Compute(const Terms& terms, bool adds, float (&values)[N]) const {
    ToFloats(terms.x, values);
    for (int k = 0; k < N; ++k) values[k] = (values[k] - m[k]) * i[k] * a[k] + b[k];
    if (!adds) return;
    float others[N];
    ToFloats(terms.other, others);
    for (int k = 0; k < N; ++k) values[k] = Rounded<T>(values[k]) + others[k];
  }
};

template <typename T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    Normalise(int64_t rows, int64_t columns, const T* x, const float* __restrict__ mean,
              const float* __restrict__ inverse, const float* __restrict__ scale,
              const float* __restrict__ shift, const T* addend, T* y) {
  const ColumnPlace place = PlaceInColumns<N>();
  if (place.column >= columns) return;
  const Normalisation<T, N> norm(place.column, mean, inverse, scale, shift);
  for (int64_t row = place.first_row; row < rows; row += place.row_step) {
    const int64_t at = row * columns + place.column;
    float values[N];
    norm.Compute(norm.Read(x, addend, at), addend != nullptr, values);
    StoreGroup(values, y + at);
  }
}

// The shape of NormaliseRelu. A thread computes kColumnRows rows, and kWordSlots threads with
// neighbouring rows make the 32 bits of a word. Blocks are small, so that tensors of few rows
// occupy more processors.
constexpr int kWordThreads = 128;
constexpr int kWordSlots = 32 / kColumnRows;

LaunchShape WordShape(const CudaDevice& device, int64_t rows, int64_t columns, int group) {
  return ColumnShape(rows, columns, group, int64_t{device.processors()} * 16, kWordThreads,
                     kWordThreads / kWordSlots);
}

// Stores the words of the rows that a block computes together, from the bits of its threads.
// Threads with consecutive indices store words of consecutive columns.
template <int N>
__device__ inline void StoreWords(int64_t first_row, int64_t rows, int64_t columns,
                                  const int32_t (&bits)[N], int32_t* __restrict__ positive) {
  // The padding distributes the elements that a warp reads over all banks.
  __shared__ int32_t shared[N][kWordThreads + 32 / N];
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (int k = 0; k < N; ++k) shared[k][thread] = bits[k];
  __syncthreads();
  const unsigned width = N * blockDim.x;
  for (unsigned i = thread; i < N * kWordThreads / kWordSlots; i += kWordThreads) {
    const unsigned band = i / width, column = i % width;
    int32_t word = 0;
    for (unsigned slot = band * kWordSlots; slot < (band + 1) * kWordSlots; ++slot) {
      word |= shared[column % N][slot * blockDim.x + column / N];
    }
    const int64_t row = first_row + 32 * int64_t{band}, at = int64_t{blockIdx.x} * width + column;
    if (row < rows && at < columns) positive[WordOf(row, columns, at)] = word;
  }
  __syncthreads();
}

// Normalise, then ReLU.
template <typename T, int N>
__global__ void __launch_bounds__(kWordThreads)
    NormaliseRelu(int64_t rows, int64_t columns, const T* x, const float* __restrict__ mean,
                  const float* __restrict__ inverse, const float* __restrict__ scale,
                  const float* __restrict__ shift, const T* addend, int32_t* __restrict__ positive,
                  T* y) {
  const int64_t column = ThreadIndex() * N;
  const bool here = column < columns;
  const Normalisation<T, N> norm(here ? column : 0, mean, inverse, scale, shift);
  const int64_t rows_of_block = kColumnRows * int64_t{blockDim.y};
  for (int64_t first = blockIdx.y * rows_of_block; first < rows;
       first += gridDim.y * rows_of_block) {
    const int64_t row = first + kColumnRows * int64_t{threadIdx.y};
    const int64_t count = here && row < rows ? rows - row : 0;
    typename Normalisation<T, N>::Terms terms[kColumnRows] = {};
#pragma unroll
    for (int r = 0; r < kColumnRows; ++r) {
      if (r < count) terms[r] = norm.Read(x, addend, (row + r) * columns + column);
    }
    int32_t bits[N] = {};
#pragma unroll
    for (int r = 0; r < kColumnRows; ++r) {
      if (r >= count) continue;
      float values[N];
      norm.Compute(terms[r], addend != nullptr, values);
      for (int k = 0; k < N; ++k) {
        values[k] = Rounded<T>(values[k]);
        if (values[k] < 0) values[k] = 0;
        if (values[k] > 0) bits[k] |= BitOf(row + r);
      }
      StoreGroup(values, y + (row + r) * columns + column);
    }
    StoreWords(first, rows, columns, bits, positive);
  }
}

// means[s][column] = sums[s, first column of the block + column] / counted, for both sums and the
// block's columns. Ends with a barrier.
template <int N>
__device__ inline void StoreMeans(int64_t columns, double counted, const double* __restrict__ sums,
                                  float (&means)[2][kMaxColumnGroups * N]) {
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  const unsigned width = N * blockDim.x;
  for (unsigned i = thread; i < 2 * width; i += kColumnThreads) {
    const unsigned sum = i / width, at = i % width;
    const int64_t column = int64_t{blockIdx.x} * width + at;
    if (column < columns) means[sum][at] = sums[sum * columns + column] / counted;
  }
  __syncthreads();
}

// dx from dy, as defined by NormKernels::BatchNormBackward. dy and dx may be the same.
template <typename T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    NormaliseBackward(int64_t rows, int64_t columns, const T* __restrict__ x, const T* dy,
                      const int32_t* __restrict__ positive, const float* __restrict__ mean,
                      const float* __restrict__ inverse, const float* __restrict__ scale,
                      double counted, const double* __restrict__ sums, T* dx) {
  // A division in double is slow, so each is done by one thread of the block.
  __shared__ float means[2][kMaxColumnGroups * N];
  StoreMeans<N>(columns, counted, sums, means);
  const ColumnPlace place = PlaceInColumns<N>();
  if (place.column >= columns) return;
  float m[N], i[N], a[N], d[N], p[N];
  LoadColumns(mean, place.column, m);
  LoadColumns(inverse, place.column, i);
  LoadColumns(scale, place.column, a);
  for (int k = 0; k < N; ++k) {
    d[k] = means[0][threadIdx.x * N + k];
    p[k] = means[1][threadIdx.x * N + k];
  }
  for (int64_t row = place.first_row; row < rows; row += place.row_step) {
    const int64_t at = row * columns + place.column;
    float values[N];
    float gradients[N];
    LoadGroup(x + at, values);
    LoadGroup(dy + at, gradients);
    for (int k = 0; k < N; ++k) {
      if (positive != nullptr &&
          (positive[WordOf(row, columns, place.column + k)] & BitOf(row)) == 0) {
        gradients[k] = 0;
      }
      const float normal = (values[k] - m[k]) * i[k];
      gradients[k] = a[k] * i[k] * (gradients[k] - d[k] - normal * p[k]);
    }
    StoreGroup(gradients, dx + at);
  }
}

// `counted` and `unbiased` are those of HostNorm::BatchNormStatistics (host_backend.cc).
__global__ void Statistics(int64_t columns, double counted, double unbiased, double epsilon,
                           double share, const double* __restrict__ sums, float* __restrict__ mean,
                           float* __restrict__ inverse, float* __restrict__ running_mean,
                           float* __restrict__ running_variance) {
  for (int64_t c = ThreadIndex(); c < columns; c += ThreadCount()) {
    const double average = sums[c] / counted;
    const double difference = sums[columns + c] / counted - average * average;
    // NaN becomes 0, as on the host; the mean stays NaN and shows the divergence.
    const double variance = 0.0 < difference ? difference : 0.0;
    mean[c] = average;
    inverse[c] = 1.0 / sqrt(variance + epsilon);
    running_mean[c] = share * average;
    running_variance[c] = share * unbiased * variance;
  }
}

__global__ void Inverse(int64_t columns, double epsilon, const float* __restrict__ variance,
                        float* __restrict__ inverse) {
  for (int64_t c = ThreadIndex(); c < columns; c += ThreadCount()) {
    inverse[c] = 1.0 / sqrt(variance[c] + epsilon);
  }
}

// --- layer norm ---------------------------------------------------------------------------------

// Sums are in double, so that a mean far from zero does not cancel the variance. A row without
// columns has mean and variance 0.
template <typename T, int N>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    NormaliseRows(int64_t rows, int64_t columns, double epsilon, const T* __restrict__ x,
                  const float* __restrict__ scale, const float* __restrict__ shift,
                  T* __restrict__ y, float* __restrict__ mean, float* __restrict__ inverse) {
  const int lane = threadIdx.x % 32;
  const double counted = columns > 0 ? columns : 1;
  for (int64_t row = ThreadIndex() / 32; row < rows; row += ThreadCount() / 32) {
    const T* const from = x + row * columns;
    double sum = 0;
    for (int64_t c = lane * N; c < columns; c += 32 * N) {
      float values[N];
      LoadGroup(from + c, values);
      for (int k = 0; k < N; ++k) sum += values[k];
    }
    const double average = OverWarp(sum, Plus()) / counted;
    double squares = 0;
    for (int64_t c = lane * N; c < columns; c += 32 * N) {
      float values[N];
      LoadGroup(from + c, values);
      for (int k = 0; k < N; ++k) {
        const double deviation = values[k] - average;
        squares += deviation * deviation;
      }
    }
    const double variance = OverWarp(squares, Plus()) / counted;
    const float m = average;
    const float i = 1.0 / sqrt(variance + epsilon);
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
  const int lane = threadIdx.x % 32;
  for (int64_t row = ThreadIndex() / 32; row < rows; row += ThreadCount() / 32) {
    const float m = mean[row];
    const float i = inverse[row];
    // Sums of scale * dy and of scale * dy * normal.
    double sum = 0;
    double product = 0;
    for (int64_t c = lane * N; c < columns; c += 32 * N) {
      float values[N], gradients[N], a[N];
      LoadGroup(x + row * columns + c, values);
      LoadGroup(dy + row * columns + c, gradients);
      LoadColumns(scale, c, a);
      for (int k = 0; k < N; ++k) {
        const float g = a[k] * gradients[k];
        sum += g;
        product += g * ((values[k] - m) * i);
      }
    }
    const float mean_g = OverWarp(sum, Plus()) / columns;
    const float mean_product = OverWarp(product, Plus()) / columns;
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

// Terms of the gradients of scale and of shift.
template <typename T>
struct ParameterTerms : RowTerms {
  ParameterTerms(const T* x, const T* dy, const float* mean, const float* inverse)
      : x(x), dy(dy), mean(mean), inverse(inverse) {}
  static constexpr int kSums = 2;
  const T* x;
  const T* dy;
  const float* mean;
  const float* inverse;

  template <int N>
  __device__ void Add(const None&, int64_t row, int64_t at, double (&sums)[2][N]) const {
    float values[N], gradients[N];
    LoadGroup(x + at, values);
    LoadGroup(dy + at, gradients);
    const float m = mean[row];
    const float i = inverse[row];
    for (int k = 0; k < N; ++k) {
      sums[0][k] += gradients[k] * ((values[k] - m) * i);
      sums[1][k] += gradients[k];
    }
  }
};

class CudaNorm final : public NormKernels {
 public:
  explicit CudaNorm(CudaContext& cuda) : cuda_(cuda) {}

  void BatchNormSums(const RowsDims& dims, ConstValues x, std::span<double> sums) override {
    CheckSize("x", x.size(), SizeOf(dims));
    CheckSize("sums", sums.size(), 2 * dims.channels);
    ByTypeAndWidth(x.type(), dims.channels, {x.data()}, [&](auto zero, auto group) {
      const MomentTerms terms(Data<decltype(zero)>(x));
      LaunchColumnSums<decltype(group)::value>(
          cuda_.device, cuda_.scratch, "batch norm's sums", terms, dims.rows, dims.channels,
          ColumnResults<double>{.first = sums.data(), .second = sums.data() + dims.channels});
    });
  }

  void BatchNormStatistics(int64_t rows, float epsilon, double share, std::span<const double> sums,
                           FloatSpan mean, FloatSpan inverse, FloatSpan running_mean,
                           FloatSpan running_variance) override {
    const int64_t columns = mean.size();
    CheckSize("sums", sums.size(), 2 * columns);
    CheckChannels({.channels = columns},
                  {inverse.size(), running_mean.size(), running_variance.size()});
    if (mean.empty()) return;
    const double counted = std::max<int64_t>(1, rows);
    const double unbiased = rows > 1 ? counted / (counted - 1) : 1.0;
    Launch(cuda_.device, "batch norm's statistics", Statistics, Strided(cuda_.device, columns),
           columns, counted, unbiased, epsilon, share, sums.data(), mean.data(), inverse.data(),
           running_mean.data(), running_variance.data());
  }

  void BatchNormInverse(float epsilon, ConstFloatSpan variance, FloatSpan inverse) override {
    const int64_t columns = variance.size();
    CheckSize("inverse", inverse.size(), columns);
    if (inverse.empty()) return;
    Launch(cuda_.device, "batch norm's inverse", Inverse, Strided(cuda_.device, columns), columns,
           epsilon, variance.data(), inverse.data());
  }

  void BatchNormForward(const RowsDims& dims, ConstValues x, ConstFloatSpan mean,
                        ConstFloatSpan inverse, ConstFloatSpan scale, ConstFloatSpan shift,
                        ConstValues addend, std::span<int32_t> positive, Values y) override {
    CheckBatchNorm(dims, {x.size(), y.size()}, {addend.size()}, positive.size());
    CheckChannels(dims, {mean.size(), inverse.size(), scale.size(), shift.size()});
    if (y.empty()) return;
    ByTypeAndWidth(y.type(), dims.channels, {x.data(), addend.data(), y.data()},
                   [&](auto zero, auto group) {
                     using T = decltype(zero);
                     constexpr int kGroup = decltype(group)::value;
                     if (positive.empty()) {
                       Launch(cuda_.device, "batch norm", Normalise<T, kGroup>,
                              ColumnShape(cuda_.device, dims.rows, dims.channels, kGroup),
                              dims.rows, dims.channels, Data<T>(x), mean.data(), inverse.data(),
                              scale.data(), shift.data(), Data<T>(addend), Data<T>(y));
                     } else {
                       Launch(cuda_.device, "batch norm and ReLU", NormaliseRelu<T, kGroup>,
                              WordShape(cuda_.device, dims.rows, dims.channels, kGroup), dims.rows,
                              dims.channels, Data<T>(x), mean.data(), inverse.data(), scale.data(),
                              shift.data(), Data<T>(addend), positive.data(), Data<T>(y));
                     }
                   });
  }

  void BatchNormBackwardSums(const RowsDims& dims, ConstValues x, ConstValues dy,
                             ConstValues other_dy, std::span<const int32_t> positive,
                             ConstFloatSpan mean, ConstFloatSpan inverse, Values total_dy,
                             std::span<double> sums, FloatSpan dscale, FloatSpan dshift) override {
    CheckBatchNorm(dims, {x.size(), dy.size()}, {other_dy.size(), total_dy.size()},
                   positive.size());
    CheckSize("sums", sums.size(), 2 * dims.channels);
    CheckChannels(dims, {mean.size(), inverse.size(), dscale.size(), dshift.size()});
    ByTypeAndWidth(x.type(), dims.channels, {x.data(), dy.data(), other_dy.data(), total_dy.data()},
                   [&](auto zero, auto group) {
                     using T = decltype(zero);
                     const GradientTerms<T> terms{dims.channels,
                                                  Data<T>(x),
                                                  {.dy = Data<T>(dy),
                                                   .other_dy = Data<T>(other_dy),
                                                   .positive = positive.data(),
                                                   .total_dy = Data<T>(total_dy)},
                                                  mean.data(),
                                                  inverse.data()};
                     LaunchColumnSums<decltype(group)::value>(
                         cuda_.device, cuda_.scratch, "gradient sums of batch norm", terms,
                         dims.rows, dims.channels,
                         ColumnResults<double>{.first = sums.data(),
                                               .second = sums.data() + dims.channels,
                                               .rounded_first = dshift.data(),
                                               .rounded_second = dscale.data()});
                   });
  }

  void BatchNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                         std::span<const int32_t> positive, ConstFloatSpan mean,
                         ConstFloatSpan inverse, ConstFloatSpan scale, int64_t rows,
                         std::span<const double> sums, Values dx) override {
    CheckBatchNorm(dims, {x.size(), dy.size(), dx.size()}, {}, positive.size());
    CheckSize("sums", sums.size(), 2 * dims.channels);
    CheckChannels(dims, {mean.size(), inverse.size(), scale.size()});
    if (dx.empty()) return;
    const double counted = std::max<int64_t>(1, rows);
    ByTypeAndWidth(dx.type(), dims.channels, {x.data(), dy.data(), dx.data()},
                   [&](auto zero, auto group) {
                     using T = decltype(zero);
                     constexpr int kGroup = decltype(group)::value;
                     Launch(cuda_.device, "batch norm gradient", NormaliseBackward<T, kGroup>,
                            ColumnShape(cuda_.device, dims.rows, dims.channels, kGroup), dims.rows,
                            dims.channels, Data<T>(x), Data<T>(dy), positive.data(), mean.data(),
                            inverse.data(), scale.data(), counted, sums.data(), Data<T>(dx));
                   });
  }

  void LayerNormForward(const RowsDims& dims, float epsilon, ConstValues x, ConstFloatSpan scale,
                        ConstFloatSpan shift, Values y, FloatSpan mean,
                        FloatSpan inverse) override {
    CheckSizes(SizeOf(dims), {{"x", x.size()}, {"y", y.size()}});
    CheckSizes(dims.rows, {{"mean", mean.size()}, {"inverse", inverse.size()}});
    CheckChannels(dims, {scale.size(), shift.size()});
    // Rows without channels also have statistics.
    if (dims.rows == 0) return;
    ByTypeAndWidth(y.type(), dims.channels, {x.data(), y.data()}, [&](auto zero, auto group) {
      using T = decltype(zero);
      Launch(cuda_.device, "layer norm", NormaliseRows<T, decltype(group)::value>,
             WarpPerRow(cuda_.device, dims.rows), dims.rows, dims.channels, epsilon, Data<T>(x),
             scale.data(), shift.data(), Data<T>(y), mean.data(), inverse.data());
    });
  }

  void LayerNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy, ConstFloatSpan mean,
                         ConstFloatSpan inverse, ConstFloatSpan scale, Values dx, FloatSpan dscale,
                         FloatSpan dshift) override {
    CheckSizes(SizeOf(dims), {{"x", x.size()}, {"dy", dy.size()}, {"dx", dx.size()}});
    CheckSizes(dims.rows, {{"mean", mean.size()}, {"inverse", inverse.size()}});
    CheckChannels(dims, {scale.size(), dscale.size(), dshift.size()});
    ByTypeAndWidth(
        dx.type(), dims.channels, {x.data(), dy.data(), dx.data()}, [&](auto zero, auto group) {
          using T = decltype(zero);
          constexpr int kGroup = decltype(group)::value;
          if (!dx.empty()) {
            Launch(cuda_.device, "layer norm gradient", RowsBackward<T, kGroup>,
                   WarpPerRow(cuda_.device, dims.rows), dims.rows, dims.channels, Data<T>(x),
                   Data<T>(dy), mean.data(), inverse.data(), scale.data(), Data<T>(dx));
          }
          const ParameterTerms terms(Data<T>(x), Data<T>(dy), mean.data(), inverse.data());
          LaunchColumnSums<kGroup>(
              cuda_.device, cuda_.scratch, "parameter gradients of layer norm", terms, dims.rows,
              dims.channels, ColumnResults<float>{.first = dscale.data(), .second = dshift.data()});
        });
  }

  void LrnForward(const LrnDims& dims, ConstValues x, Values y, FloatSpan d) override {
    CheckSizes(SizeOf(dims), {{"x", x.size()}, {"y", y.size()}, {"d", d.size()}});
    if (!y.empty()) CudaLrnForward(cuda_.device, dims, x, y, d);
  }
  void LrnBackward(const LrnDims& dims, ConstValues x, ConstFloatSpan d, ConstValues dy,
                   Values dx) override {
    CheckSizes(SizeOf(dims),
               {{"x", x.size()}, {"d", d.size()}, {"dy", dy.size()}, {"dx", dx.size()}});
    if (!dx.empty()) CudaLrnBackward(cuda_.device, dims, x, d, dy, dx);
  }

 private:
  CudaContext& cuda_;
};

}  // namespace

std::unique_ptr<NormKernels> MakeCudaNorm(CudaContext& cuda) {
  return std::make_unique<CudaNorm>(cuda);
}

}  // namespace cadre
