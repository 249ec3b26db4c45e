// A tape: the operations of one rank on one batch in execution order, the buffers that they read
// and write, and the offset of each buffer in one block of memory. tape.cc explains it.
//
// The rank computes the layers that are placed on it (LayerLayouts::at). Of other layers its
// buffers are empty, and it plays only the moves in which it sends or receives; it plays the loss
// always.
//
// A training tape consists of forward, loss and backward; an evaluation tape ends with the loss.
//
// Values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/graph.h"
#include "plan/plan.h"
#include "tensor/box.h"
#include "tensor/dtype.h"
#include "tensor/interval.h"
#include "tensor/move.h"

namespace cadre {

// Memory for one tensor during a part of the tape.
struct TapeBuffer {
  // Appears in error messages: "conv1 y", "fc2 dx".
  std::string name;
  // Activations and their gradients have the tape's type. Values that only kernels interpret (the
  // position of a maximum, statistics) and tokens are four bytes wide and labelled float32.
  DType type = DType::kFloat32;
  int64_t elements = 0;
  // Size of the elements in words of four bytes.
  int64_t words = 0;
  // The first and the last operation that uses the buffer.
  int first = 0;
  int last = 0;
  // The buffer's offset in the block, in words.
  int64_t offset = 0;
};

enum class TapeOpKind {
  kMove,          // x[0] -> y, by `move`
  kForward,       // x -> y (and saved)
  kLoss,          // x[0] -> dx[0]; dx is kNone in evaluation
  kBackward,      // x, y, saved, dy -> dx
  kMoveGradient,  // x[0] -> y, by `move`
  kSend,          // sends x[0] (through scratch) by the only step of `move`, in the background
  kReceive,       // what others send (to y or scratch), and x[0] -> y, by the only step of `move`
  kAdd,           // x[0] + x[1] -> y
};

// One operation, with the numbers of the buffers that it uses.
struct TapeOp {
  static constexpr int kNone = -1;

  TapeOpKind kind = TapeOpKind::kForward;
  int layer = 0;
  // Moves: the number of the layer's input.
  int input = 0;
  // kSend, kReceive: the position of the receive among all receives between coordinates of a pass.
  // It is equal on all ranks; a rank sends and receives in this order. Others: the number of
  // receives, on all ranks, that precede the operation.
  int order = 0;
  // Buffers; kNone if not needed. kInput: the batch itself.
  static constexpr int kInput = -2;
  std::vector<int> x;
  int y = kNone;
  int saved = kNone;
  int scratch = kNone;
  int dy = kNone;
  std::vector<int> dx;
  // Operations that are fused with this one (plan/fusion.cc). kForward: y is what the layer
  // computes, plus `addend`, then ReLU if `relu`. kBackward: the gradient of y is dy + other_dy, or
  // 0 where the ReLU's output is not positive; it is also stored in total_dy. `adds_dx`: dx[0] is
  // added to the sum in its buffer.
  bool relu = false;
  int addend = kNone;
  int other_dy = kNone;
  int total_dy = kNone;
  bool adds_dx = false;
  // Whether the result may overwrite an operand that has no later use; they become one buffer.
  bool in_place = false;
  Move move;
  // Whether this operation and the next one are executed concurrently: a move to a convolution and
  // the rows that do not need the move; or the move of an input gradient and the gradients of the
  // layer's parameters.
  bool with_next = false;
};

// Whether messages of the operation are packed outside of the tape's buffers. Those of sends and
// receives are in `scratch`.
inline bool PacksOutsideOfTape(const TapeOp& op) {
  return !op.move.is_identity() && op.kind != TapeOpKind::kSend && op.kind != TapeOpKind::kReceive;
}

// The part of a batch that one layer processes on one rank.
struct LayerRegion {
  // Local parts of each input, with the halo, and of the output.
  std::vector<Box> inputs;
  Box output;
  // If a halo is received while the interior is computed: the local part of the input without the
  // halo, and the rows [interior_begin, interior_end) of the output, which need only that part.
  Box held;
  int64_t interior_begin = 0;
  int64_t interior_end = 0;
  bool has_interior() const { return interior_begin < interior_end; }
  // Rows [begin, end) of the output, and the part of the input that they need.
  Box OutputRows(int64_t begin, int64_t end) const;
  Box InputRowsFor(const Window& window, int64_t begin, int64_t end) const;
};

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

// Parts of one buffer begin at multiples of this, for vector instructions and libraries.
inline constexpr int64_t kAlignmentElements = 8;
constexpr int64_t AlignedOffset(int64_t elements_before) {
  return (elements_before + kAlignmentElements - 1) / kAlignmentElements * kAlignmentElements;
}

struct Tape {
  int64_t samples = 0;
  bool training = false;
  // The type of activations.
  DType activations = DType::kFloat32;
  std::vector<TapeBuffer> buffers;
  std::vector<TapeOp> ops;
  // One per layer.
  std::vector<LayerRegion> regions;
  // The part of the batch that this rank loads: whole samples.
  Box input;
  // Training with a sample of classes: the sampled classes, and the labels of this rank's rows of
  // the layer that scores them. 0 on ranks without this layer.
  int64_t candidates = 0;
  // Size of the block.
  int64_t words = 0;
  // The number of receives in a pass, over all ranks: `order` of sends and receives is below it.
  int orders = 0;
};

// The layout in which ranks load the batch: samples split as in the first layer, each sample whole;
// at the coordinates of the layers that read the batch if these are equal, otherwise on all ranks.
Layout InputLayout(const Graph& graph, const Plan& plan);

// By layer: whether the gradient of its output is needed, because it or a layer before it has
// parameters.
std::vector<bool> LayersWithGradient(const Graph& graph);

// Which operations are fused (fusion.cc). The results have the same bits.
enum class Fusion {
  // None, for tests.
  kOff,
  // Those that all back ends fuse.
  kCommon,
  // These, and those that only back ends of the host fuse.
  kHost,
};

// The last steps of MakeTape. FuseOperations (fusion.cc) replaces sequences of operations by fused
// ones. AssignMemory (tape_memory.cc) sets the buffers' lifetimes and offsets and the size of the
// tape.
// Requires: not Fusion::kOff.
void FuseOperations(const Graph& graph, Fusion fusion, Tape& tape);
void AssignMemory(Tape& tape);

// `graph`: of training; an evaluation tape is one of graph.ForEvaluation().
// Requires: CheckPlan is OK; 0 <= rank < plan.mesh.ranks(); samples >= 0; activations are kFloat32
// or kBFloat16. `device`: what executes the tape; GPUs have memory for scores of
// attention (ScoreMemory) and padded rows of scores (ScoreRow).
Tape MakeTape(const Graph& graph, const Plan& plan, int rank, int64_t samples, bool training,
              DType activations = DType::kFloat32, Fusion fusion = Fusion::kCommon,
              v1::Cluster::Device device = v1::Cluster::CPU);

// The bytes of activations that an operation reads from memory and writes to it if no cache keeps
// any of them: those of each buffer once, or as often as the operation passes over it. Parameters
// are not counted.
int64_t BytesMoved(const Graph& graph, const Tape& tape, const TapeOp& op);
// The sum over all operations except those of convolutions.
int64_t BytesMovedOutsideConvolutions(const Graph& graph, const Tape& tape);

}  // namespace cadre
