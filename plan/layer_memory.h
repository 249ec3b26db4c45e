// The memory that a layer needs on one rank besides its inputs and outputs, by its kind: what
// forward saves for backward, and scratch memory of either pass. A tape has buffers of these sizes
// (plan/tape.h), the layers lay them out (worker/nn), and the search bounds them
// (plan/search/layer_bytes.h).
//
// Values and pure functions; thread-safe.
#pragma once

#include <cstdint>

#include "model/ops/layer.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/dtype.h"
#include "tensor/interval.h"

namespace cadre {

// Parts of one buffer begin at multiples of this, for vector instructions and libraries.
inline constexpr int64_t kAlignmentElements = 8;
constexpr int64_t AlignedOffset(int64_t elements_before) {
  return (elements_before + kAlignmentElements - 1) / kAlignmentElements * kAlignmentElements;
}

// The memory that an attention layer saves for backward, in elements of activations: queries, keys
// and values at offset 0, then context, then the statistics of the softmax, each aligned to
// kAlignmentElements. The scratch memory of backward has the same layout for the gradients of
// queries, keys, values and context.
struct AttentionMemory {
  int64_t qkv = 0;
  int64_t context = 0;
  // One fp32 number per token and head.
  int64_t statistics = 0;
  int64_t context_begin = 0;
  int64_t statistics_begin = 0;
  int64_t saved() const { return statistics_begin + statistics; }
  int64_t scratch() const { return context_begin + context; }
};
AttentionMemory MemoryOfAttention(int64_t samples, int64_t tokens, int64_t heads,
                                  int64_t head_features, DType activations);

// Scratch memory of attention on GPUs, in elements of activations: what forward computes scores in,
// and backward scores and their gradients, which is behind the layout above. It has blocks of
// scores (kernels/cuda/attention.cu); or, if that is more, the workspace of the library's fused
// backward, in which the gradients of all scores are bf16 (kernels/cuda/dense_math.h). Which of
// them is used is known on the device only.
struct ScoreMemory {
  int64_t forward = 0;
  int64_t backward = 0;
};
// `fuses`: whether the library's kernels compute such an attention under bf16, which has no padding
// token then.
ScoreMemory MemoryOfScores(int64_t samples, int64_t tokens, int64_t heads, int64_t head_features,
                           bool fuses, DType activations);

// On GPUs: the distance in elements between the rows of scores that a fully connected layer
// computes and the loss alone reads. Many classes whose number is odd would make every other row
// misaligned, for which libraries have slow kernels only, so these rows are padded (DenseKernels).
int64_t ScoreRow(int64_t classes, DType activations);

// The memory of an LSTM, in elements of activations. Sequences are stored token by token in the
// order of its steps, each token as [samples, features], so that a step's operands are contiguous.
// Intervals begin at multiples of kAlignmentElements.
struct LstmMemory {
  // Saved for backward: the gates of all steps, which backward replaces by the gradients of their
  // sums; the cells (fp32); the outputs; with a projection, what it projects.
  Interval gates, cells, outputs, projected;
  int64_t saved = 0;
  // Scratch memory of forward: the inputs, and a step's recurrent sums of the gates.
  Interval inputs, recurrent;
  int64_t forward_scratch = 0;
  // Scratch memory of backward: the inputs, then their gradients; the gradients of the outputs; of
  // a step, those of the outputs before it, of what is projected and of the cells (fp32).
  Interval backward_inputs, doutputs, drecurrent, dprojected, dcells;
  int64_t backward_scratch = 0;
};
// Extents of an LSTM's part of a batch on one rank.
struct LstmDims {
  int64_t samples = 0, tokens = 0, features = 0, hidden = 0;
  // Features of the output.
  int64_t outputs = 0;
  bool projects = false;
};
LstmDims LstmDimsOf(const GraphLayer& layer, int64_t samples);
LstmMemory MemoryOfLstm(const LstmDims& dims, DType activations);

// The scratch memory of a fully connected layer with a sample of classes (GraphLayer), in elements
// of activations, by intervals as above. It saves for backward the numbers of its candidates, in
// fp32: of the sampled classes, then of the labels of its rows.
struct SampledMemory {
  // Scratch of forward: the candidates' rows of the weight; in fp32 what is added to their scores,
  // their biases, the scores of the labels and those of the sampled classes.
  Interval weights, offsets, biases, label_scores, scores;
  int64_t forward_scratch = 0;
  // Scratch of backward: their rows again; the gradients of the scores of labels and of sampled
  // classes; the labels' part of the gradient of the input; in fp32 the gradients of the
  // candidates' rows and biases.
  Interval backward_weights, dlabel_scores, dscores, label_terms, dweights, dbiases;
  int64_t backward_scratch = 0;
};
// `features`: of the input.
SampledMemory MemoryOfSampled(int64_t rows, int64_t sampled, int64_t features, DType activations);

// The host computes the scores of a large vocabulary in chunks of rows, each with its loss and its
// gradient, so that they take at most this much memory (or that of one row).
inline constexpr int64_t kMaxScoreBytes = int64_t{48} << 20;
// The rows of a chunk; all of them if they are few enough.
int64_t ScoreRowsPerChunk(int64_t rows, int64_t classes, DType activations);

// What of a layer one rank computes.
struct LayerExtents {
  int64_t samples = 0;
  // Elements of the output; its last dimension, and that of the first input.
  int64_t output = 0;
  int64_t features = 0;
  int64_t input_features = 0;
  // The heads of an attention.
  int64_t heads = 0;
};

struct LayerMemory {
  // What forward saves for backward besides input and output.
  DType saved_type = DType::kFloat32;
  int64_t saved = 0;
  // In elements of activations.
  int64_t forward_scratch = 0;
  int64_t backward_scratch = 0;
};
// `needs_gradient`: whether the gradient of the first input is needed. The scratch memory of a
// convolution with an interior is the tape's.
LayerMemory MemoryOfLayer(const GraphLayer& layer, const LayerExtents& here, DType activations,
                          v1::Cluster::Device device, bool needs_gradient = true);

// The scores of an attention, which are part of its scratch memory; none on other devices than
// GPUs.
ScoreMemory ScoresOfLayer(const GraphLayer& layer, const LayerExtents& here, DType activations,
                          v1::Cluster::Device device);

}  // namespace cadre
