// The own kernels of the CUDA back end as plain functions, which enqueue on the device's current
// stream. Defined in *.cu: in a build for devices, and in one that plays the device on the host.
//
// They compute what backend.h specifies for the method of that name; extents were checked and
// fit, and nothing is empty unless said. Scratch is device memory of the size named here. Sums are
// taken in an order that depends on extents only. Thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "kernels/backend.h"
#include "kernels/cuda/nest_loops.h"
#include "tensor/values.h"

namespace cadre {

// What changes from one playing of a recording to the next. In device memory.
struct CudaNumbers {
  int64_t position = 0;
  int64_t updates = 0;
  float rate = 0;
};
// By value with the launch, so there is nothing on the host that must stay as it is.
void LaunchSetPosition(CudaDevice& device, int64_t position, CudaNumbers* numbers);
void LaunchSetUpdate(CudaDevice& device, float rate, int64_t updates, CudaNumbers* numbers);

// --- elementwise.cu, convert.cu, dropout.cu, boxes.cu, transpose.cu -----------------------------
void LaunchActivationForward(CudaDevice& device, Activation kind, ConstValues x, Values y);
void LaunchActivationBackward(CudaDevice& device, Activation kind, ConstValues seen, ConstValues dy,
                              Values dx);
void LaunchAdd(CudaDevice& device, ConstValues x, Values y);
void LaunchAccumulateReceived(CudaDevice& device, DType type, std::span<std::byte> sum,
                              std::span<const std::byte> values);
// y[row, c] += b[c].
void LaunchAddBias(CudaDevice& device, std::span<const float> b, Values y);
// fp32 to bf16 or back.
void LaunchConvert(CudaDevice& device, ConstValues x, Values y);
// Element i of the walk is element i of x and y, and has number *position * sample_elements +
// first + where the walk's second memory has it; a null position: 0. The first memory is x and y.
void LaunchDropout(CudaDevice& device, const DropoutKey& key, const NestLoops& loops,
                   uint64_t first, const int64_t* position, int64_t sample_elements, ConstValues x,
                   Values y);
// to = from, or to += from, along a walk in which `from` is the first memory.
void LaunchCopyNest(CudaDevice& device, const NestLoops& loops, ConstValues from, Values to);
void LaunchAddNest(CudaDevice& device, const NestLoops& loops, ConstValues from, Values to);
void LaunchTranspose(CudaDevice& device, int64_t batch, int64_t positions, int64_t channels,
                     ConstValues x, Values y);

// --- reductions.cu ------------------------------------------------------------------------------
// Blocks that sum bands of rows (column_sums.h), and the scratch that they need for `sums` sums by
// column.
inline constexpr int64_t kMaxColumnBlocks = 1024;
inline size_t ColumnSumDoubles(int64_t columns, int sums) {
  // Bands times tiles are at most kMaxColumnBlocks, and a tile has 256 columns at most.
  return sums * std::max(columns, kMaxColumnBlocks * std::min<int64_t>(columns, 256));
}
// db[c] = sum of dy over the rows. rows may be 0.
void LaunchBiasGradient(CudaDevice& device, int64_t rows, ConstValues dy, double* scratch,
                        std::span<float> db);
inline constexpr int kSquareBlocks = 1024;
// *sum += the sum of squares, or = without `adds`. scratch: kSquareBlocks. x may be empty.
void LaunchSumOfSquares(CudaDevice& device, std::span<const float> x, bool adds, double* scratch,
                        double* sum);
// *found = 1 if any is not finite; it was 0.
void LaunchFindNotFinite(CudaDevice& device, ConstValues x, int32_t* found);

// --- batch_norm.cu, layer_norm.cu, lrn.cu -------------------------------------------------------
// scratch: ColumnSumDoubles(channels, 2). rows may be 0.
void LaunchBatchNormSums(CudaDevice& device, const RowsDims& dims, ConstValues x, double* scratch,
                         std::span<double> sums);
void LaunchBatchNormStatistics(CudaDevice& device, int64_t rows, float epsilon, double share,
                               std::span<const double> sums, std::span<float> mean,
                               std::span<float> inverse, std::span<float> running_mean,
                               std::span<float> running_variance);
void LaunchBatchNormInverse(CudaDevice& device, float epsilon, std::span<const float> variance,
                            std::span<float> inverse);
void LaunchDivideToFloat(CudaDevice& device, double divisor, std::span<const double> sums,
                         std::span<float> y);
void LaunchBatchNormForward(CudaDevice& device, const RowsDims& dims, ConstValues x,
                            std::span<const float> mean, std::span<const float> inverse,
                            std::span<const float> scale, std::span<const float> shift, Values y);
// scratch as above; rows may be 0.
void LaunchBatchNormBackwardSums(CudaDevice& device, const RowsDims& dims, ConstValues x,
                                 ConstValues dy, std::span<const float> mean,
                                 std::span<const float> inverse, double* scratch,
                                 std::span<double> sums);
void LaunchBatchNormBackward(CudaDevice& device, const RowsDims& dims, ConstValues x,
                             ConstValues dy, std::span<const float> mean,
                             std::span<const float> inverse, std::span<const float> scale,
                             std::span<const float> mean_dy, std::span<const float> mean_dy_x,
                             Values dx);
// channels may be 0.
void LaunchLayerNormForward(CudaDevice& device, const RowsDims& dims, float epsilon, ConstValues x,
                            std::span<const float> scale, std::span<const float> shift, Values y,
                            std::span<float> mean, std::span<float> inverse);
// scratch: ColumnSumDoubles(channels, 2). rows may be 0.
void LaunchLayerNormBackward(CudaDevice& device, const RowsDims& dims, ConstValues x,
                             ConstValues dy, std::span<const float> mean,
                             std::span<const float> inverse, std::span<const float> scale,
                             Values dx, std::span<float> dscale, std::span<float> dshift,
                             double* scratch);
void LaunchLrnForward(CudaDevice& device, const LrnDims& dims, ConstValues x, Values y,
                      std::span<float> d);
void LaunchLrnBackward(CudaDevice& device, const LrnDims& dims, ConstValues x,
                       std::span<const float> d, ConstValues dy, Values dx);

// --- pooling.cu ---------------------------------------------------------------------------------
// The input of forward, and dy of backward, may be empty.
void LaunchPoolingForward(CudaDevice& device, const PoolingDims& dims, ConstValues x, Values y,
                          std::span<int32_t> argmax);
void LaunchPoolingBackward(CudaDevice& device, const PoolingDims& dims, ConstValues dy,
                           std::span<const int32_t> argmax, Values dx);
void LaunchGlobalAveragePoolForward(CudaDevice& device, int64_t batch, int64_t positions,
                                    int64_t channels, int64_t divisor, ConstValues x, Values y);
void LaunchGlobalAveragePoolBackward(CudaDevice& device, int64_t batch, int64_t positions,
                                     int64_t channels, int64_t divisor, ConstValues dy, Values dx);

// --- embedding.cu -------------------------------------------------------------------------------
// A token outside the vocabulary gives not-a-number.
void LaunchEmbeddingForward(CudaDevice& device, const EmbeddingDims& dims,
                            std::span<const float> ids, std::span<const float> w,
                            std::span<const float> positions, Values y);
// ids may be empty. order: twice as many as ids, scratch.
void LaunchEmbeddingBackward(CudaDevice& device, const EmbeddingDims& dims,
                             std::span<const float> ids, ConstValues dy, std::span<float> dw,
                             std::span<float> dpositions, std::span<int32_t> order);

// --- softmax.cu ---------------------------------------------------------------------------------
// probabilities[row, s] = softmax of scores[row, s] over the tokens that row % tokens sees. May be
// the same memory where both are fp32.
void LaunchAttentionSoftmax(CudaDevice& device, const AttentionDims& dims,
                            std::span<const float> scores, Values probabilities);
// dscores = probabilities * (dprobabilities - sum of their products over the row) * scale. dscores
// and dprobabilities may be the same memory where both are fp32.
void LaunchAttentionSoftmaxBackward(CudaDevice& device, const AttentionDims& dims, float scale,
                                    ConstValues probabilities,
                                    std::span<const float> dprobabilities, Values dscores);
// sums[0] = loss, sums[1] = correct; rows may be 0. A label beyond the classes makes the loss
// not-a-number. scratch: [2 rows].
void LaunchSoftmaxCrossEntropy(CudaDevice& device, int64_t rows, int64_t classes, float smoothing,
                               ConstValues x, std::span<const int32_t> labels, float scale,
                               Values dx, std::span<double> scratch, std::span<double> sums);

// --- optimizer.cu -------------------------------------------------------------------------------
// An update of a whole slice. Where `numbers` is null, rate, corrections and gradient_scale are
// those of the steps.
struct CudaUpdate {
  SliceUpdate update;
  const CudaNumbers* numbers = nullptr;
  // In device memory; none: all of the slice decays.
  std::span<const SliceSegment> segments;
  std::span<const float> g;
  std::span<float> w, m, v;
  // bf16 copy of w that is written with it, or null.
  void* copy = nullptr;
};
void LaunchUpdate(CudaDevice& device, const CudaUpdate& update);
void LaunchDrawTowards(CudaDevice& device, float momentum, std::span<const float> batch,
                       std::span<float> w);

}  // namespace cadre
