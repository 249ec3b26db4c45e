// The softmax cross-entropy loss.
//
// A block computes the loss of a row, with sums in double. It reads the row three times (for the
// maximum, for the sum of exponentials and for the result), after the first time from a cache.
// Reductions over threads exchange values in a butterfly (block_sums.h), so that all threads have
// the same bits. The rows' losses are stored, and a second launch adds them in the order of the
// rows.
//
// Rows may be padded, so that they are aligned and a thread reads 16 bytes of a row at a time. The
// elements between the last score and the end of its 16 bytes are read but not used, and written
// with what they had.
#include "kernels/cuda/loss.h"

#include <cmath>

#include "device/cuda/launch.h"
#include "kernels/cuda/block_sums.h"
#include "kernels/cuda/elements.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

constexpr int kMaxLossThreads = 512;
constexpr int kSumThreads = 1024;

struct Smaller {
  __device__ int32_t operator()(int32_t a, int32_t b) const { return b < a ? b : a; }
};

// The maximum and the sum of a thread's part of a row.
struct RowPart {
  float largest;
  // The first index of the largest element; INT32_MAX if the part is empty.
  int32_t where;
  double sum;
};

// How many of the group of elements from `column` on are scores; the others are padding.
template <int N>
__device__ inline int ColumnsOf(int32_t classes, int32_t column) {
  return classes - column < N ? classes - column : N;
}

template <typename T, int N>
__device__ inline RowPart ReadRow(int32_t classes, const T* x) {
  RowPart part{-INFINITY, INT32_MAX, 0};
  for (int32_t c = threadIdx.x * N; c < classes; c += blockDim.x * N) {
    float values[N];
    LoadGroup(x + c, values);
    const int here = ColumnsOf<N>(classes, c);
    for (int k = 0; k < here; ++k) {
      part.sum += values[k];
      if (values[k] > part.largest || part.where == INT32_MAX) {
        part.largest = values[k];
        part.where = c + k;
      }
    }
  }
  return part;
}

// Writes a loss and a count (1 if correct) per row, which AddRows adds up. Null gradients are not
// computed. The loss of a label outside the classes is NaN. The gradients may overwrite the scores:
// each thread overwrites the scores that it alone still reads, after a barrier behind which no
// thread reads the score at the label.
template <typename T, int N>
__global__ void __launch_bounds__(kMaxLossThreads)
    RowLosses(int64_t rows, int32_t classes, int64_t row_step, double smoothing, const T* scores,
              const int32_t* __restrict__ labels, double scale, T* gradients,
              double* __restrict__ losses, double* __restrict__ correct) {
  __shared__ double shared_sums[32];
  __shared__ float shared_largest[32];
  __shared__ int32_t shared_where[32];
  const double each = smoothing / classes;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const x = scores + row * row_step;
    const int32_t label = labels[row];
    const bool known = label >= 0 && label < classes;
    const double at_label = known ? ToFloat(x[label]) : nan("");
    const RowPart part = ReadRow<T, N>(classes, x);
    const float largest = OverBlock(part.largest, Larger(), shared_largest);
    const int32_t where =
        OverBlock(part.largest == largest ? part.where : INT32_MAX, Smaller(), shared_where);
    double exponentials = 0;
    for (int32_t c = threadIdx.x * N; c < classes; c += blockDim.x * N) {
      float values[N];
      LoadGroup(x + c, values);
      // After the maximum is subtracted, no exponential overflows, and one of them is 1.
      const int here = ColumnsOf<N>(classes, c);
      for (int k = 0; k < here; ++k) exponentials += expf(values[k] - largest);
    }
    const double total = OverBlock(exponentials, Plus(), shared_sums);
    const double sum = OverBlock(part.sum, Plus(), shared_sums);
    if (threadIdx.x == 0) {
      double expected = (1 - smoothing) * at_label;
      // Without smoothing, an infinite score of another class must not be multiplied by zero.
      if (smoothing > 0) expected += each * sum;
      losses[row] = log(total) + largest - expected;
      correct[row] = where == label ? 1 : 0;
    }
    if (gradients == nullptr) continue;
    const float share = scale / total;
    const float off = scale * each;
    for (int32_t c = threadIdx.x * N; c < classes; c += blockDim.x * N) {
      float values[N];
      LoadGroup(x + c, values);
      const int here = ColumnsOf<N>(classes, c);
      for (int k = 0; k < here; ++k) {
        values[k] = expf(values[k] - largest) * share - off;
        if (c + k == label) {
          values[k] = scale * (exp(at_label - largest) / total - (1 - smoothing) - each);
        }
      }
      StoreGroup(values, gradients + row * row_step + c);
    }
  }
}

__global__ void __launch_bounds__(kSumThreads)
    AddRows(int64_t rows, const double* __restrict__ losses, const double* __restrict__ correct,
            double* __restrict__ sums) {
  __shared__ double shared[32];
  double loss = 0;
  double hits = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) {
    loss += losses[row];
    hits += correct[row];
  }
  loss = OverBlock(loss, Plus(), shared);
  hits = OverBlock(hits, Plus(), shared);
  if (threadIdx.x == 0) {
    sums[0] = loss;
    sums[1] = hits;
  }
}

// One block per row: as many whole warps as have work, at most 512 threads.
LaunchShape BlockPerRow(const CudaDevice& device, int64_t rows, int64_t groups) {
  int threads = 32;
  while (threads < kMaxLossThreads && threads * 2 < groups) threads *= 2;
  return Strided(device, rows * threads, threads, 2048 / threads);
}

}  // namespace

void CudaSoftmaxCrossEntropy(CudaContext& cuda, int64_t rows, int64_t classes, float smoothing,
                             ConstValues x, std::span<const int32_t> labels, float scale, Values dx,
                             std::span<double> sums) {
  const int64_t row = PaddedRow("x", rows, classes, x.size());
  CheckLoss(rows, row, x.size(), labels.size(), dx.size());
  CHECK(dx.empty() || dx.type() == x.type());
  CHECK_GE(sums.size(), 2U);
  double* const losses = cuda.scratch.Take<double>(2 * rows).data();
  double* const correct = losses + rows;
  if (rows > 0) {
    const Values gradients = dx.empty() ? Values(nullptr, 0, x.type()) : dx;
    ByTypeAndWidth(x.type(), row, {x.data(), gradients.data()}, [&](auto zero, auto group) {
      using T = decltype(zero);
      constexpr int kGroup = decltype(group)::value;
      Launch(cuda.device, "softmax cross-entropy", RowLosses<T, kGroup>,
             BlockPerRow(cuda.device, rows, (classes + kGroup - 1) / kGroup), rows, classes, row,
             smoothing, Data<T>(x), labels.data(), scale, Data<T>(gradients), losses, correct);
    });
  }
  Launch(cuda.device, "sum of losses", AddRows, LaunchShape{.block = dim3(kSumThreads)}, rows,
         losses, correct, sums.data());
}

}  // namespace cadre
