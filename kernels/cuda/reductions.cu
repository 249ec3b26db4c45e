// Reductions over whole arrays: sums of squares, gradients of biases, and the search for non-finite
// values.
//
// A reduction that adds with atomics depends on the order in which blocks finish, and so do its
// bits. Ranks must agree on norms and on gradients bit by bit, so sums here have two deterministic
// phases (the scheme of Harris, "Optimizing Parallel Reduction in CUDA", without atomics): a fixed
// number of blocks, chosen by the number of elements and never by the device, write partial sums in
// double; one block then adds them in their order. The second launch costs a few microseconds,
// which is small beside reading a slice.
//
// Finding a non-finite value needs no order: all threads that find one store the same 1.
#include "device/cuda/launch.h"
#include "kernels/cuda/block_sums.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launches.h"

namespace cadre {
namespace {

constexpr int kThreads = 256;

template <int N>
__global__ void __launch_bounds__(kThreads)
    SumSquares(int64_t n, const float* __restrict__ x, double* __restrict__ partial) {
  __shared__ double shared[32];
  const int64_t groups = n / N;
  double sum = 0;
  for (int64_t i = ThreadIndex(); i < groups; i += ThreadCount()) {
    float values[N];
    LoadGroup(x + i * N, values);
    for (int k = 0; k < N; ++k) sum += static_cast<double>(values[k]) * values[k];
  }
  for (int64_t i = groups * N + ThreadIndex(); i < n; i += ThreadCount()) {
    sum += static_cast<double>(x[i]) * x[i];
  }
  sum = OverBlock(sum, Plus(), shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    AddPartial(int blocks, const double* __restrict__ partial, bool adds, double* sum) {
  __shared__ double shared[32];
  double all = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kThreads) all += partial[i];
  all = OverBlock(all, Plus(), shared);
  if (threadIdx.x == 0) *sum = adds ? *sum + all : all;
}

// All that finds something writes the same.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    FindNotFinite(int64_t n, const T* __restrict__ x, int32_t* found) {
  bool bad = false;
  const int64_t groups = n / N;
  for (int64_t i = ThreadIndex(); i < groups; i += ThreadCount()) {
    float values[N];
    LoadGroup(x + i * N, values);
    for (int k = 0; k < N; ++k) bad = bad || !IsFinite(values[k]);
  }
  for (int64_t i = groups * N + ThreadIndex(); i < n; i += ThreadCount()) {
    bad = bad || !IsFinite(ToFloat(x[i]));
  }
  if (bad) *found = 1;
}

template <typename T>
struct BiasTerms {
  static constexpr int kSums = 1;
  const T* dy;

  struct None {};
  template <int N>
  __device__ None At(int64_t) const {
    return {};
  }
  template <int N>
  __device__ void Add(const None&, int64_t, int64_t at, double (&sums)[1][N]) const {
    float values[N];
    LoadGroup(dy + at, values);
    for (int k = 0; k < N; ++k) sums[0][k] += static_cast<double>(values[k]);
  }
};

}  // namespace

void LaunchSumOfSquares(CudaDevice& device, std::span<const float> x, bool adds, double* scratch,
                        double* sum) {
  const auto n = static_cast<int64_t>(x.size());
  // As many blocks for as many elements, whatever the device: the sum's order follows from that.
  const bool wide = Aligned({x.data()});
  const int64_t per_block = kThreads * int64_t{16};
  const int64_t blocks = std::clamp<int64_t>((n + per_block - 1) / per_block, 1, kSquareBlocks);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads)};
  if (wide) {
    Launch(device, "squares", SumSquares<4>, shape, n, x.data(), scratch);
  } else {
    Launch(device, "squares", SumSquares<1>, shape, n, x.data(), scratch);
  }
  Launch(device, "sum of squares", AddPartial, LaunchShape{.block = dim3(kThreads)},
         static_cast<int>(blocks), scratch, adds, sum);
}

void LaunchFindNotFinite(CudaDevice& device, ConstValues x, int32_t* found) {
  const auto n = static_cast<int64_t>(x.size());
  ByType(x.type(), [&](auto zero) {
    using T = decltype(zero);
    const T* const from = static_cast<const T*>(x.data());
    if (Aligned({from})) {
      Launch(device, "look for what is not finite", FindNotFinite<T, kWide<T>>,
             Strided(device, n / kWide<T> + 1), n, from, found);
    } else {
      Launch(device, "look for what is not finite", FindNotFinite<T, 1>, Strided(device, n), n,
             from, found);
    }
  });
}

void LaunchBiasGradient(CudaDevice& device, int64_t rows, ConstValues dy, double* scratch,
                        std::span<float> db) {
  const auto columns = static_cast<int64_t>(db.size());
  ByType(dy.type(), [&](auto zero) {
    using T = decltype(zero);
    const BiasTerms<T> terms{static_cast<const T*>(dy.data())};
    if (columns % kWide<T> == 0 && Aligned({dy.data()})) {
      LaunchColumnSums<kWide<T>>(device, "bias' gradient", terms, rows, columns, scratch, db.data(),
                                 db.data());
    } else {
      LaunchColumnSums<1>(device, "bias' gradient", terms, rows, columns, scratch, db.data(),
                          db.data());
    }
  });
}

}  // namespace cadre
