// Row-wise softmax: of attention scores, forward and backward, and with cross-entropy for the loss.
//
// A row is read for its maximum, for the sum of exponentials and for the result; after the first
// time it comes from a cache. Attention takes a warp per row and sums in fp32; the loss takes a
// block per row and sums in double. Reductions over threads exchange values in a butterfly
// (block_sums.h), so that all threads have the same bits. The losses of the rows are stored, and a
// second launch adds them in their order.
#include "device/cuda/launch.h"
#include "kernels/cuda/block_sums.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launches.h"

namespace cadre {
namespace {

constexpr int kMaxLossThreads = 512;
constexpr int kSumThreads = 1024;
constexpr int kWarpsPerBlock = 4;

struct Smaller {
  __device__ int32_t operator()(int32_t a, int32_t b) const { return b < a ? b : a; }
};

// What a thread has seen of a row.
struct Seen {
  float largest;
  // The first place of the largest.
  int32_t where;
  double sum;
};

template <typename T, int N>
__device__ inline Seen See(int32_t classes, const T* x) {
  Seen seen{-INFINITY, INT32_MAX, 0};
  for (int32_t c = static_cast<int32_t>(threadIdx.x) * N; c < classes;
       c += static_cast<int32_t>(blockDim.x) * N) {
    float values[N];
    LoadGroup(x + c, values);
    for (int k = 0; k < N; ++k) {
      seen.sum += static_cast<double>(values[k]);
      if (values[k] > seen.largest || seen.where == INT32_MAX) {
        seen.largest = values[k];
        seen.where = c + k;
      }
    }
  }
  return seen;
}

// losses and correct: one of each row, added up by AddRows. An empty dx (null): not wanted.
template <typename T, int N>
__global__ void __launch_bounds__(kMaxLossThreads)
    RowLosses(int64_t rows, int32_t classes, double smoothing, const T* __restrict__ scores,
              const int32_t* __restrict__ labels, double scale, T* __restrict__ gradients,
              double* __restrict__ losses, double* __restrict__ correct) {
  __shared__ double shared_sums[32];
  __shared__ float shared_largest[32];
  __shared__ int32_t shared_where[32];
  const double each = smoothing / static_cast<double>(classes);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const x = scores + row * classes;
    const int32_t label = labels[row];
    const bool known = label >= 0 && label < classes;
    const Seen seen = See<T, N>(classes, x);
    const float largest = OverBlock(seen.largest, Larger(), shared_largest);
    const int32_t where =
        OverBlock(seen.largest == largest ? seen.where : INT32_MAX, Smaller(), shared_where);
    double exponentials = 0;
    for (int32_t c = static_cast<int32_t>(threadIdx.x) * N; c < classes;
         c += static_cast<int32_t>(blockDim.x) * N) {
      float values[N];
      LoadGroup(x + c, values);
      // Shifted by the largest, none overflows and one of them is 1.
      for (int k = 0; k < N; ++k) exponentials += static_cast<double>(expf(values[k] - largest));
    }
    const double total = OverBlock(exponentials, Plus(), shared_sums);
    const double sum = OverBlock(seen.sum, Plus(), shared_sums);
    const double at_label = known ? static_cast<double>(ToFloat(x[label])) : nan("");
    if (threadIdx.x == 0) {
      double expected = (1 - smoothing) * at_label;
      // Without smoothing, an infinite score elsewhere must not meet a zero.
      if (smoothing > 0) expected += each * sum;
      losses[row] = log(total) + static_cast<double>(largest) - expected;
      correct[row] = where == label ? 1 : 0;
    }
    if (gradients == nullptr) continue;
    const auto share = static_cast<float>(scale / total);
    const auto off = static_cast<float>(scale * each);
    for (int32_t c = static_cast<int32_t>(threadIdx.x) * N; c < classes;
         c += static_cast<int32_t>(blockDim.x) * N) {
      float values[N];
      LoadGroup(x + c, values);
      for (int k = 0; k < N; ++k) {
        values[k] = expf(values[k] - largest) * share - off;
        if (c + k == label) {
          values[k] =
              static_cast<float>(scale * (exp(at_label - static_cast<double>(largest)) / total -
                                          (1 - smoothing) - each));
        }
      }
      StoreGroup(values, gradients + row * classes + c);
    }
  }
}

__global__ void __launch_bounds__(kSumThreads)
    AddRows(int64_t rows, const double* __restrict__ losses, const double* __restrict__ correct,
            double* __restrict__ sums) {
  __shared__ double shared[32];
  double loss = 0;
  double right = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) {
    loss += losses[row];
    right += correct[row];
  }
  loss = OverBlock(loss, Plus(), shared);
  right = OverBlock(right, Plus(), shared);
  if (threadIdx.x == 0) {
    sums[0] = loss;
    sums[1] = right;
  }
}

__device__ inline int64_t SeenBy(const AttentionDims& dims, int64_t row) {
  int64_t token;
  Divide(row, dims.tokens, &token);
  return dims.causal ? token + 1 : dims.tokens;
}

template <typename T>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    SoftmaxRows(AttentionDims dims, int64_t rows, const float* scores, T* probabilities) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t row = ThreadIndex() / 32; row < rows; row += ThreadCount() / 32) {
    const float* const from = scores + row * dims.tokens;
    T* const to = probabilities + row * dims.tokens;
    const int64_t seen = SeenBy(dims, row);
    float largest = -INFINITY;
    for (int64_t s = lane; s < seen; s += 32) largest = Larger()(largest, from[s]);
    largest = OverWarp(largest, Larger());
    float total = 0;
    for (int64_t s = lane; s < seen; s += 32) total += expf(from[s] - largest);
    total = OverWarp(total, Plus());
    for (int64_t s = lane; s < dims.tokens; s += 32) {
      FromFloat(s < seen ? expf(from[s] - largest) / total : 0.0F, to + s);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    SoftmaxRowsBackward(AttentionDims dims, int64_t rows, float scale,
                        const T* __restrict__ probabilities, const float* dprobabilities,
                        T* dscores) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t row = ThreadIndex() / 32; row < rows; row += ThreadCount() / 32) {
    const T* const p = probabilities + row * dims.tokens;
    const float* const dp = dprobabilities + row * dims.tokens;
    const int64_t seen = SeenBy(dims, row);
    float weighted = 0;
    for (int64_t s = lane; s < seen; s += 32) weighted += ToFloat(p[s]) * dp[s];
    weighted = OverWarp(weighted, Plus());
    for (int64_t s = lane; s < dims.tokens; s += 32) {
      FromFloat(s < seen ? ToFloat(p[s]) * (dp[s] - weighted) * scale : 0.0F,
                dscores + row * dims.tokens + s);
    }
  }
}

LaunchShape WarpPerRow(const CudaDevice& device, int64_t rows) {
  return Strided(device, rows * 32, kWarpsPerBlock * 32, 16);
}

// Whole warps, as many as have work, 512 threads at most.
LaunchShape BlockPerRow(const CudaDevice& device, int64_t rows, int64_t groups) {
  int threads = 32;
  while (threads < kMaxLossThreads && threads * 2 < groups) threads *= 2;
  return Strided(device, rows * threads, threads, 2048 / threads);
}

}  // namespace

void LaunchSoftmaxCrossEntropy(CudaDevice& device, int64_t rows, int64_t classes, float smoothing,
                               ConstValues x, std::span<const int32_t> labels, float scale,
                               Values dx, std::span<double> scratch, std::span<double> sums) {
  double* const losses = scratch.data();
  double* const correct = losses + rows;
  ByType(x.type(), [&](auto zero) {
    using T = decltype(zero);
    const auto* const from = static_cast<const T*>(x.data());
    auto* const to = dx.empty() ? nullptr : static_cast<T*>(dx.data());
    const auto launch = [&](auto kernel, int group) {
      if (rows == 0) return;
      Launch(device, "softmax cross-entropy", kernel,
             BlockPerRow(device, rows, (classes + group - 1) / group), rows,
             static_cast<int32_t>(classes), static_cast<double>(smoothing), from, labels.data(),
             static_cast<double>(scale), to, losses, correct);
    };
    if (classes % kWide<T> == 0 && Aligned({from, to})) {
      launch(RowLosses<T, kWide<T>>, kWide<T>);
    } else {
      launch(RowLosses<T, 1>, 1);
    }
  });
  Launch(device, "sum of losses", AddRows, LaunchShape{.block = dim3(kSumThreads)}, rows, losses,
         correct, sums.data());
}

void LaunchAttentionSoftmax(CudaDevice& device, const AttentionDims& dims,
                            std::span<const float> scores, Values probabilities) {
  const int64_t rows = dims.batch * dims.heads * dims.tokens;
  ByType(probabilities.type(), [&](auto zero) {
    using T = decltype(zero);
    Launch(device, "attention's softmax", SoftmaxRows<T>, WarpPerRow(device, rows), dims, rows,
           scores.data(), static_cast<T*>(probabilities.data()));
  });
}

void LaunchAttentionSoftmaxBackward(CudaDevice& device, const AttentionDims& dims, float scale,
                                    ConstValues probabilities,
                                    std::span<const float> dprobabilities, Values dscores) {
  const int64_t rows = dims.batch * dims.heads * dims.tokens;
  ByType(dscores.type(), [&](auto zero) {
    using T = decltype(zero);
    Launch(device, "attention's softmax's gradient", SoftmaxRowsBackward<T>,
           WarpPerRow(device, rows), dims, rows, scale, static_cast<const T*>(probabilities.data()),
           dprobabilities.data(), static_cast<T*>(dscores.data()));
  });
}

}  // namespace cadre
