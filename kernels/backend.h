// The operations that layers consist of, on one device. A Backend has six families of kernels, and
// on a GPU two more: updates that are enqueued, and codes. Each back end has its folder: reference/
// (plain loops, the oracle of the tests), cpu/ (oneDNN) and cuda/ (cuDNN, cuBLAS, own kernels).
//
// All tensors are dense, row-major and in the device's memory. Activations and their gradients have
// activation_type() and are passed as Values; everything else is fp32 and passed as spans. Images
// are [batch, height, width, channels] ("channels last"), so that intervals of rows are contiguous.
// Every function accepts any extents, including zero. Spans do not overlap and outputs are
// overwritten unless stated otherwise.
//
// Work is enqueued on the device's current stream (device/device.h). On the host it is complete
// when the call returns; on other devices it runs in order, and spans must stay valid until then.
// Functions that return a number block until it is known. Errors are reported by the device's
// status().
//
// Thread-compatible: one Backend per worker thread; back ends cache primitives and scratch memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "device/device.h"
#include "tensor/activation.h"
#include "tensor/box.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"
#include "tensor/values.h"

namespace cadre {

struct Codec;          // kernels/codec/codec.h
struct OptimizerStep;  // kernels/optimizer_step.h

using FloatSpan = std::span<float>;
using ConstFloatSpan = std::span<const float>;

// The precision of convolutions and matrix products. Sums, statistics, parameters and their
// gradients are fp32 or wider; under kBf16 weight gradients of convolutions may pass through bf16.
enum class Precision : uint8_t {
  kFp32,
  // Factors rounded to 10 bits of mantissa, on devices that have TF32; activations are fp32.
  kTf32,
  // Activations are bf16, and parameters are rounded to bf16 when they are factors of products.
  kBf16,
};

// A window that slides over an image. Output (i, j) reads input rows
// i * stride_height - pad_top + dilation * [0, kernel_height), and columns likewise. Everything
// outside the input is padding; at the bottom and right edges there is as much padding as the
// outputs need.
struct WindowDims {
  int64_t in_height = 0, in_width = 0;
  int64_t out_height = 0, out_width = 0;
  int64_t kernel_height = 1, kernel_width = 1;
  int64_t stride_height = 1, stride_width = 1;
  int64_t dilation = 1;
  int64_t pad_top = 0, pad_left = 0;
  friend auto operator<=>(const WindowDims&, const WindowDims&) = default;
};

// w: [out_channels, in_channels / groups, kernel_height, kernel_width].
struct ConvolutionDims {
  int64_t batch = 0;
  int64_t in_channels = 0, out_channels = 0;
  // Divides in_channels and out_channels.
  int64_t groups = 1;
  WindowDims window;
  friend auto operator<=>(const ConvolutionDims&, const ConvolutionDims&) = default;
};

enum class PoolKind {
  kMax,
  // Divides by the number of elements inside the image.
  kAverage,
  // Divides by kernel_height * kernel_width.
  kAverageWithPadding,
};

struct PoolingDims {
  PoolKind kind = PoolKind::kMax;
  int64_t batch = 0, channels = 0;
  // Dilation 1.
  WindowDims window;
  friend auto operator<=>(const PoolingDims&, const PoolingDims&) = default;
};

// y[batch, out] = x[batch, in] W[out, in]^T + b[out].
struct FullyConnectedDims {
  int64_t batch = 0, in = 0, out = 0;
  friend auto operator<=>(const FullyConnectedDims&, const FullyConnectedDims&) = default;
};

// y[batch, rows, channels] = x[batch, rows, channels] * factor[batch, channels].
struct MultiplyDims {
  int64_t batch = 0, rows = 0, channels = 0;
};

// Rows of `channels` elements; a batch of images has batch * height * width rows.
struct RowsDims {
  int64_t rows = 0, channels = 0;
};

// The number of words with one bit per element: 32 rows of a channel in each.
constexpr int64_t PositiveWords(const RowsDims& dims) {
  return (dims.rows + 31) / 32 * dims.channels;
}

struct LrnDims {
  int64_t rows = 0, channels = 0;
  int64_t size = 5;
  float alpha = 1e-4F, beta = 0.75F, k = 2.0F;
};

// Elements are numbered throughout the run; whether an element is dropped depends only on its
// number and this key.
struct DropoutKey {
  uint64_t seed = 0;
  uint64_t layer = 0;
  float rate = 0;
};

// c[batch, m, n] = a[batch, m, k] b[batch, k, n].
struct BatchedProductDims {
  int64_t batch = 0;
  int64_t m = 0, n = 0, k = 0;
  // a is stored as [batch, k, m], b as [batch, n, k].
  bool transpose_a = false, transpose_b = false;
};

struct EmbeddingDims {
  int64_t batch = 0;
  // This rank holds tokens [first_token, first_token + tokens) of each sample.
  int64_t first_token = 0, tokens = 0;
  int64_t vocabulary = 0, features = 0;
};

struct AttentionDims {
  int64_t batch = 0, tokens = 0, heads = 0, head_features = 0;
  bool causal = false;
  // Tokens with this id are padding: keys that no query attends to, except in samples of padding
  // alone.
  int64_t padding_token = kNoPadding;
  static constexpr int64_t kNoPadding = -1;
  friend auto operator<=>(const AttentionDims&, const AttentionDims&) = default;
};

// An interval [begin, end) of a slice (the part of a bucket of parameters that a rank owns) whose
// elements are updated by the same rule.
struct SliceSegment {
  int64_t begin = 0, end = 0;
  // Weight decay applies.
  bool decays = false;
  // A running statistic, not trained: w += momentum * (g - w).
  bool statistic = false;
  float momentum = 0;
  // Updates that were made before the state of these elements began with zero: their corrections
  // are those of so many updates fewer.
  int64_t before = 0;
};

// Numbers in device memory that decide whether and how a slice is updated.
struct UpdateGuard {
  // The group's loss, or null: nothing is updated unless it is finite.
  const double* loss = nullptr;
  // Gradients are scaled by min(1, clip_norm / (sqrt(*squares) + 1e-6)); not scaled if null.
  const double* squares = nullptr;
  float clip_norm = 0;
};

// A slice's segments in the device's memory.
class SegmentTable {
 public:
  virtual ~SegmentTable() = default;
};

// The score of a class that does not count: the exponential of its difference from any other score
// is 0. It is finite, so that sums of it are finite.
inline constexpr float kNoScore = -1e30F;

struct LossSums {
  // The sum of the rows' cross-entropies, and the number of rows whose largest element is the
  // label's (of equal elements the first counts as the largest).
  double loss = 0;
  int64_t correct = 0;
};

// Copies, sums and transposition.
class MemoryKernels {
 public:
  virtual ~MemoryKernels() = default;

  // y = x, converted where the types differ.
  virtual void Copy(ConstValues x, Values y) = 0;
  virtual void Zero(Values y) = 0;
  // Copies `rows` runs of `run` contiguous elements. The runs begin x_step elements apart in x and
  // y_step elements apart in y. Requires: x and y have one type.
  virtual void CopyRuns(int64_t rows, int64_t run, ConstValues x, int64_t x_step, Values y,
                        int64_t y_step) = 0;
  // Copies, or adds, `region` of `from` to `to`, which hold from_box and to_box (tensor/box.h).
  // Requires: both have one type.
  virtual void CopyBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
                       const Box& region) = 0;
  virtual void AddBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
                      const Box& region) = 0;
  // sum += values, both of `type`: accumulates elements received from another rank.
  virtual void AccumulateReceived(DType type, std::span<std::byte> sum,
                                  std::span<const std::byte> values) = 0;
  virtual bool AllFinite(ConstValues x) = 0;
  // y[batch, channels, positions] from x[batch, positions, channels]. Backward is the same function
  // with positions and channels exchanged.
  virtual void Transpose(int64_t batch, int64_t positions, int64_t channels, ConstValues x,
                         Values y) = 0;
};

// Fully connected layers, batched products, embeddings and attention.
class DenseKernels {
 public:
  virtual ~DenseKernels() = default;

  // y = x W^T + b. An empty b: no bias. On GPUs the rows of y, and of dy below, may be padded: a
  // row has y.size() / batch elements, of which the first `out` are used; forward sets the others
  // to 0.
  virtual void FullyConnectedForward(const FullyConnectedDims& dims, ConstValues x,
                                     ConstFloatSpan w, ConstFloatSpan b, Values y) = 0;
  virtual void FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstValues dy,
                                          ConstFloatSpan w, Values dx) = 0;
  // dw and db from x and dy. An empty db is not computed.
  virtual void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstValues x,
                                             ConstValues dy, FloatSpan dw, FloatSpan db) = 0;
  // The same, added to what dw and db hold: for scores that are computed in chunks.
  virtual void FullyConnectedAddGradients(const FullyConnectedDims& dims, ConstValues x,
                                          ConstValues dy, FloatSpan dw, FloatSpan db) = 0;
  // a and b have one type; c has that type, or is fp32.
  virtual void BatchedProduct(const BatchedProductDims& dims, ConstValues a, ConstValues b,
                              Values c) = 0;
  // y[batch, tokens, features] = w[id] (+ positions[first_token + t]). ids: [batch, tokens], whole
  // numbers. w: [vocabulary, features]. positions: [length, features], or empty.
  // Requires: 0 <= id < vocabulary.
  virtual void EmbeddingForward(const EmbeddingDims& dims, ConstFloatSpan ids, ConstFloatSpan w,
                                ConstFloatSpan positions, Values y) = 0;
  // Fills dw and dpositions (which may be empty). The order of sums depends on the ids only.
  virtual void EmbeddingBackward(const EmbeddingDims& dims, ConstFloatSpan ids, ConstValues dy,
                                 FloatSpan dw, FloatSpan dpositions) = 0;
  // qkv: [batch, tokens, heads, 3, head_features]. ids: [batch, tokens], whole numbers; empty
  // without a padding token. Fills context [batch, tokens, heads, head_features], the softmax of
  // the scores q k^T / sqrt(head_features) times v; and statistics [batch, heads, tokens], for each
  // query the logarithm of the sum of the exponentials of its scores. Causal: a query has no scores
  // for later tokens. A query without scores has context and statistic 0. `scratch`: memory for
  // what is not saved, such as scores. GPUs use it, and memory of their own if it is too small or
  // empty.
  virtual void AttentionForward(const AttentionDims& dims, ConstFloatSpan ids, ConstValues qkv,
                                Values context, FloatSpan statistics, Values scratch) = 0;
  // Requires: context and statistics as forward filled them.
  virtual void AttentionBackward(const AttentionDims& dims, ConstFloatSpan ids, ConstValues qkv,
                                 ConstValues context, ConstValues dcontext,
                                 ConstFloatSpan statistics, Values scratch, Values dqkv) = 0;
};

// Convolution and pooling.
class WindowKernels {
 public:
  virtual ~WindowKernels() = default;

  // y = conv(x, w) + b. b: [out_channels], or empty for no bias.
  virtual void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, ConstFloatSpan w,
                                  ConstFloatSpan b, Values y) = 0;
  // dx from dy.
  virtual void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy,
                                       ConstFloatSpan w, Values dx) = 0;
  // dx += what ConvolutionBackwardData computes, with the bits of these two operations. Requires:
  // fp32; a 1 x 1 kernel with stride 1, one group and no padding.
  virtual void AddConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy,
                                          ConstFloatSpan w, Values dx) = 0;
  // dw and db from x and dy. An empty db is not computed.
  virtual void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x,
                                          ConstValues dy, FloatSpan dw, FloatSpan db) = 0;
  // Max pooling also fills `argmax` (same size as y): for each output, the input position (row *
  // in_width + column) of the largest element, the first of equal ones. Average pooling does not
  // write argmax, which may then be empty. A window entirely in the padding gives 0, with argmax
  // -1.
  virtual void PoolingForward(const PoolingDims& dims, ConstValues x, Values y,
                              std::span<int32_t> argmax) = 0;
  virtual void PoolingBackward(const PoolingDims& dims, ConstValues dy,
                               std::span<const int32_t> argmax, Values dx) = 0;
  // y[batch, channels] = sum of x[batch, positions, channels] over positions / divisor.
  virtual void GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels,
                                        int64_t divisor, ConstValues x, Values y) = 0;
  virtual void GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                         int64_t divisor, ConstValues dy, Values dx) = 0;
};

// Batch, layer and local response normalisation.
class NormKernels {
 public:
  virtual ~NormKernels() = default;

  // sums[0, channels): sum of x by channel; sums[channels, 2 channels): sum of squares.
  virtual void BatchNormSums(const RowsDims& dims, ConstValues x, std::span<double> sums) = 0;
  // From the sums over `rows` rows: mean and inverse = 1 / sqrt(variance + epsilon), and this
  // rank's part of the running statistics, share * mean and share * variance * rows / (rows - 1).
  virtual void BatchNormStatistics(int64_t rows, float epsilon, double share,
                                   std::span<const double> sums, FloatSpan mean, FloatSpan inverse,
                                   FloatSpan running_mean, FloatSpan running_variance) = 0;
  // inverse = 1 / sqrt(variance + epsilon).
  virtual void BatchNormInverse(float epsilon, ConstFloatSpan variance, FloatSpan inverse) = 0;

  // Batch norm may be fused with an addition and a ReLU that follow it. The results have the bits
  // of separate operations: every value that these would store is rounded to the type of x.
  // `addend` is empty if nothing is added. `positive` is empty without ReLU; otherwise it has a bit
  // for each element, set where the output is positive: bit row % 32 of word row / 32 * channels +
  // channel (PositiveWords).

  // y = (x - mean) * inverse * scale + shift by channel, then y += addend, then y = relu(y). y may
  // be the same span as x or addend.
  virtual void BatchNormForward(const RowsDims& dims, ConstValues x, ConstFloatSpan mean,
                                ConstFloatSpan inverse, ConstFloatSpan scale, ConstFloatSpan shift,
                                ConstValues addend, std::span<int32_t> positive, Values y) = 0;
  // With g = dy + other_dy (which may be empty), 0 where the output is not positive: sums[0,
  // channels) is the sum of g, and sums[channels, 2 channels) of g * (x - mean) * inverse. These
  // are the gradients of shift and scale, which are stored in dshift and dscale as fp32. Stores g
  // in total_dy unless this is empty; total_dy may be the same span as dy or other_dy.
  virtual void BatchNormBackwardSums(const RowsDims& dims, ConstValues x, ConstValues dy,
                                     ConstValues other_dy, std::span<const int32_t> positive,
                                     ConstFloatSpan mean, ConstFloatSpan inverse, Values total_dy,
                                     std::span<double> sums, FloatSpan dscale,
                                     FloatSpan dshift) = 0;
  // dx = scale * inverse * (g - mean_dy - (x - mean) * inverse * mean_dy_x) by channel, where g is
  // dy, or 0 where the output is not positive; mean_dy and mean_dy_x are the sums above, added up
  // over the ranks that share the statistics, divided by `rows`, the rows of all these ranks (or
  // by 1 if there are none), and rounded to fp32. dy and dx may be the same span.
  virtual void BatchNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                                 std::span<const int32_t> positive, ConstFloatSpan mean,
                                 ConstFloatSpan inverse, ConstFloatSpan scale, int64_t rows,
                                 std::span<const double> sums, Values dx) = 0;
  // Statistics of each row over its channels; fills mean and inverse (one per row).
  virtual void LayerNormForward(const RowsDims& dims, float epsilon, ConstValues x,
                                ConstFloatSpan scale, ConstFloatSpan shift, Values y,
                                FloatSpan mean, FloatSpan inverse) = 0;
  virtual void LayerNormBackward(const RowsDims& dims, ConstValues x, ConstValues dy,
                                 ConstFloatSpan mean, ConstFloatSpan inverse, ConstFloatSpan scale,
                                 Values dx, FloatSpan dscale, FloatSpan dshift) = 0;
  // y = x * d^-beta with d = k + alpha / size * (sum of x^2 over the channels at most size / 2
  // before and (size - 1) / 2 after, as in PyTorch); fills d, of the size of y.
  virtual void LrnForward(const LrnDims& dims, ConstValues x, Values y, FloatSpan d) = 0;
  virtual void LrnBackward(const LrnDims& dims, ConstValues x, ConstFloatSpan d, ConstValues dy,
                           Values dx) = 0;
};

// Operations on each element, the softmax and the loss of each row.
class PointwiseKernels {
 public:
  virtual ~PointwiseKernels() = default;

  // y = f(x). f(NaN) is NaN, so that divergence is detected. x and y may be the same span.
  virtual void ActivationForward(Activation kind, ConstValues x, Values y) = 0;
  // dx = dy f'(x). `seen` is x if GradientReadsInput(kind), else y. dy and dx may be the same span.
  virtual void ActivationBackward(Activation kind, ConstValues seen, ConstValues dy, Values dx) = 0;
  // Sets the position of the batch's first sample in the endless sequence of the run's samples, for
  // DropoutBox. This is enqueued: each launch of a captured graph (device.h) reads the position
  // that was set last before it.
  virtual void SetPosition(int64_t first_position) = 0;
  // y = x with elements dropped; element i has number first + i (see DropoutKey). x and y may be
  // the same span. Backward is the same function of the gradients.
  virtual void Dropout(const DropoutKey& key, uint64_t first, ConstValues x, Values y) = 0;
  // The same for a rank's region of a batch: `whole` is the batch's shape, samples first, and `box`
  // the region that x and y hold. Element e of sample s has number (position + s) * (elements of a
  // sample) + e, where `position` is that of SetPosition.
  virtual void DropoutBox(const DropoutKey& key, const Shape& whole, const Box& box, ConstValues x,
                          Values y) = 0;
  // y = a + b. y may be the same span as a or b.
  virtual void Sum(ConstValues a, ConstValues b, Values y) = 0;
  // y += x.
  void Add(ConstValues x, Values y) { Sum(x, y, y); }
  // y = x * factor. The gradient of x is the same function of dy.
  virtual void Multiply(const MultiplyDims& dims, ConstValues x, ConstValues factor, Values y) = 0;
  // dfactor = sum of x * dy over the rows.
  virtual void MultiplyBackward(const MultiplyDims& dims, ConstValues x, ConstValues dy,
                                Values dfactor) = 0;
  // A step of long short-term memory (proto/cadre/v1/run.proto) for `rows` sequences of `channels`
  // cells. gates: [rows, 4, channels], the sums of i, f, g and o without those of `recurrent`,
  // which are replaced by sigmoid(i), sigmoid(f), tanh(g) and sigmoid(o). Fills cell and y = o *
  // tanh(cell). `recurrent` and `previous` are empty in the first step, where they count as zeros.
  virtual void LstmForward(const RowsDims& dims, ConstValues recurrent, ConstFloatSpan previous,
                           Values gates, FloatSpan cell, Values y) = 0;
  // Replaces the gates as forward left them by the gradients of their sums, and dcell, the gradient
  // of `cell` by later steps, by that of `previous`.
  virtual void LstmBackward(const RowsDims& dims, ConstValues dy, ConstFloatSpan previous,
                            ConstFloatSpan cell, Values gates, FloatSpan dcell) = 0;
  // y = softmax(scale * x) by row. Requires: scale > 0.
  virtual void SoftmaxForward(const RowsDims& dims, float scale, ConstFloatSpan x, Values y) = 0;
  // dx = scale * y * (dy - sum of y * dy) by row.
  virtual void SoftmaxBackward(const RowsDims& dims, float scale, ConstValues y, ConstFloatSpan dy,
                               Values dx) = 0;
  // The scores of a sampled softmax, in which each row has the class of its label and
  // dims.channels sampled classes. ids: the sampled classes, then the label of each row, whole
  // numbers; offsets has a number for each of them. y[rows, 1 + channels] are label_scores[rows]
  // and scores[rows, channels], plus the offsets of their classes; kNoScore if a sampled class is
  // the row's label.
  virtual void SampledScores(const RowsDims& dims, ConstFloatSpan ids, ConstFloatSpan offsets,
                             ConstFloatSpan label_scores, ConstFloatSpan scores, Values y) = 0;
  // x: [rows, classes]; the target is 1 - smoothing + smoothing / classes at the label and
  // smoothing / classes elsewhere. dx = scale * (softmax(x) - target); an empty dx is not computed.
  // x and dx may be the same span: each row is read before its gradient is written. On GPUs the
  // rows of x and dx may be padded as those of a fully connected layer: to x.size() / rows
  // elements. Requires: 0 <= label < classes.
  virtual LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing,
                                       ConstValues x, std::span<const int32_t> labels, float scale,
                                       Values dx) = 0;
  // The same without blocking: writes loss and correct to sums[0] and sums[1].
  virtual void SoftmaxCrossEntropyAsync(int64_t rows, int64_t classes, float smoothing,
                                        ConstValues x, std::span<const int32_t> labels, float scale,
                                        Values dx, std::span<double> sums) = 0;
};

// Updates whose rates and scales are arguments of the call. They apply to any interval of a slice.
class OptimizerKernels {
 public:
  virtual ~OptimizerKernels() = default;

  // Updates w and the optimizer's state tensors, which have the size of w. Requires: as many of
  // them as the step has.
  virtual void Update(const OptimizerStep& step, ConstFloatSpan g, FloatSpan w,
                      std::span<const FloatSpan> states) = 0;
  // Running statistics: w += momentum * (batch - w).
  virtual void DrawTowards(float momentum, ConstFloatSpan batch, FloatSpan w) = 0;
  virtual double SumOfSquares(ConstFloatSpan x) = 0;
};

// Updates of whole slices without a host synchronisation: the work reads everything that it depends
// on from device memory when it runs, so that it can be captured in a graph.
class SliceKernels {
 public:
  virtual ~SliceKernels() = default;

  // Sets the rate of the next update, and the number of updates including it. This is enqueued:
  // each launch of a captured graph reads the values that were set last before it.
  virtual void SetUpdate(float rate, int64_t updates) = 0;
  // *sum += the sum of squares of x. `sum` is in device memory.
  virtual void AddSumOfSquares(ConstFloatSpan x, double* sum) = 0;
  // Requires: segments are in order and cover a slice.
  virtual std::unique_ptr<SegmentTable> MakeSegmentTable(
      std::span<const SliceSegment> segments) = 0;
  // As OptimizerKernels::Update, but rate and number of updates are those of SetUpdate, the scale
  // of the gradients is that of `guard`, and `segments` determine which elements decay.
  virtual void UpdateSlice(const OptimizerStep& step, const UpdateGuard& guard,
                           const SegmentTable& segments, ConstFloatSpan g, FloatSpan w,
                           std::span<const FloatSpan> states) = 0;
};

// Consecutive values that are coded together: at most kCodecBlock of one tensor.
struct CodedUnit {
  int64_t size = 0;
  // Coded with the codec; otherwise as fp32.
  bool coded = true;
  // Otherwise the values are running statistics, of which the values are exchanged, not changes.
  bool trained = true;
};

// Consecutive units in the device's memory, and memory for their codes.
class CodedUnits {
 public:
  virtual ~CodedUnits() = default;
};

// The codes of kernels/codec, bit for bit, of values in the device's memory, and the error feedback
// around them. Spans have the values of all units, in order.
class CodecKernels {
 public:
  virtual ~CodecKernels() = default;

  // Requires: CheckCodec; units have 1 to kCodecBlock values.
  virtual std::unique_ptr<CodedUnits> MakeUnits(const Codec& codec,
                                                std::span<const CodedUnit> units) = 0;
  // values = (values - version) + carried; statistics do not change.
  virtual void TakeChange(const CodedUnits& units, ConstFloatSpan version, ConstFloatSpan carried,
                          FloatSpan values) = 0;
  // Appends the code of each unit, padded to a multiple of 4 bytes with zeros, and fills left_out
  // with values - what their code is decoded to; 0 for statistics. False, with `frame` unchanged,
  // if a value is not finite; true after an error of the device. Blocks.
  virtual bool Encode(CodedUnits& units, ConstFloatSpan values, FloatSpan left_out,
                      std::string* frame) = 0;
  // carried = factor * x; 0 for statistics.
  virtual void Carry(const CodedUnits& units, float factor, ConstFloatSpan x,
                     FloatSpan carried) = 0;
};

// Operations that a back end computes more slowly than its device could, because a library does not
// support them. Each number counts different extents, types and passes, however often they are
// used; the reasons are those of the last ones.
struct BackendFallbacks {
  int64_t convolutions = 0;
  std::string convolution_reason;
  int64_t attentions = 0;
  std::string attention_reason;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual Device& device() = 0;
  // Type of activations: fp32, or bf16 under Precision::kBf16.
  virtual DType activation_type() const = 0;
  // Errors: InvalidArgument for a precision that the back end lacks.
  virtual absl::Status CheckPrecision(Precision precision) const = 0;
  // Errors: those of CheckPrecision. Requires: no work is pending.
  virtual absl::Status SetPrecision(Precision precision) = 0;
  // To be called after parameters in [weights] were written by other means than these kernels'
  // updates; back ends that keep a copy in another type refresh it.
  virtual void WeightsChanged(ConstFloatSpan weights) = 0;
  // Another back end of the same kind with one thread, for concurrent work. Null on a GPU, where
  // concurrent work is enqueued on streams.
  virtual std::unique_ptr<Backend> OneThread() const = 0;
  virtual BackendFallbacks fallbacks() const { return {}; }

  MemoryKernels& memory() { return *families_.memory; }
  DenseKernels& dense() { return *families_.dense; }
  WindowKernels& window() { return *families_.window; }
  NormKernels& norm() { return *families_.norm; }
  PointwiseKernels& pointwise() { return *families_.pointwise; }
  OptimizerKernels& optimizer() { return *families_.optimizer; }
  // Null on the host, where every update is complete when its call returns.
  SliceKernels* slices() { return families_.slices.get(); }
  // Null on the host, where kernels/codec is called directly.
  CodecKernels* codecs() { return families_.codecs.get(); }

 protected:
  struct Families {
    std::unique_ptr<MemoryKernels> memory;
    std::unique_ptr<DenseKernels> dense;
    std::unique_ptr<WindowKernels> window;
    std::unique_ptr<NormKernels> norm;
    std::unique_ptr<PointwiseKernels> pointwise;
    std::unique_ptr<OptimizerKernels> optimizer;
    std::unique_ptr<SliceKernels> slices;
    std::unique_ptr<CodecKernels> codecs;
  };
  // Set by the constructors of derived classes.
  Families families_;
};

// Plain loops in one thread, summing in double: the oracle of the other back ends.
std::unique_ptr<Backend> MakeReferenceBackend();

// oneDNN with `threads` threads. Requires: threads >= 1.
std::unique_ptr<Backend> MakeCpuBackend(int threads);

}  // namespace cadre
