// A tape: the operations of one rank on one batch in execution order, the buffers that they read
// and write, and the offset of each buffer in one block of memory. tape.cc explains it.
//
// The rank computes the layers that are placed on it (LayerLayouts::at). Of other layers its
// buffers are empty, and it plays only the moves in which it sends or receives; it plays the loss
// always.
//
// A training tape consists of forward, loss and backward, in which operations of forward may be
// executed again; an evaluation tape ends with the loss.
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
  // The buffer's offset in the block, in words; or in the memory of a pass (SeparatePasses).
  int64_t offset = 0;
  bool of_pass = false;
};

enum class TapeOpKind {
  kMove,          // x[0] -> y, by `move`
  kForward,       // x -> y (and saved)
  kLoss,          // x[0] -> dx[0]; dx is kNone in evaluation. Or with the layer before: `scorer`
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
  // kLoss: the layer that computes the scores, if this operation includes those of that layer. It
  // computes `chunk_rows` rows of scores at a time, in `scratch`; x[0] is the layer's input, and
  // dx[0] the gradient of that. The layer's own operation kBackward (`in_loss`) then only marks the
  // place at which its gradients are used.
  int scorer = kNone;
  int64_t chunk_rows = 0;
  bool in_loss = false;
  // kForward, kMove: executed again for backward (plan/recomputation.h). A batch norm then has its
  // statistics in `saved` already.
  bool again = false;
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

// Finds the rows of a convolution's output that do not need the halo that `move` receives.
void FindInterior(const GraphLayer& layer, const Move& move, LayerRegion& region);

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
  // Size of the block, and of the memory of a pass.
  int64_t words = 0;
  int64_t pass_words = 0;
  // The number of receives in a pass, over all ranks: `order` of sends and receives is below it.
  int orders = 0;
};

// The layout in which ranks load the batch: samples split as in the first layer, each sample whole;
// at the coordinates of the layers that read the batch if these are equal, otherwise on all ranks.
Layout InputLayout(const Graph& graph, const Plan& plan);

// Which operations are fused (fusion.cc), and whether scores are computed in chunks. The results
// have the same bits, except gradients that are added up over chunks.
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

// For several micro-batches in flight, which have a block each: places the buffers that live in one
// pass only, and that no message uses, in memory behind the blocks, which all passes share; unless
// two micro-batches would then take more memory.
// Requires: a training tape.
void SeparatePasses(Tape& tape);

// `graph`: of training; an evaluation tape is one of graph.ForEvaluation().
// Requires: CheckPlan is OK; 0 <= rank < plan.mesh.ranks(); samples >= 0; activations are kFloat32
// or kBFloat16. `device`: what executes the tape; GPUs have memory for scores of
// attention (ScoreMemory) and padded rows of scores (ScoreRow of plan/layer_memory.h).
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
