// What one rank does in one pass over a batch, written down before it is done: every operation in
// order, the buffers it reads and writes, and where in one block of memory each buffer lies.
// Buffers whose lives do not overlap share memory, so the size of the block is what activations
// cost, and it is known from the plan alone.
//
// A training tape goes forward, takes the loss, and goes back; an evaluation tape stops at the
// loss.
//
// Values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spec/graph.h"
#include "spec/plan.h"
#include "tensor/box.h"
#include "tensor/dtype.h"
#include "tensor/move.h"

namespace cadre {

struct TapeBuffer {
  // For people: "conv1 y", "fc2 dx".
  std::string name;
  // Activations and their gradients are of the tape's type. What only kernels look into (which
  // input won, statistics) is words of four bytes, called float32 whatever they hold; so are
  // tokens.
  DType type = DType::kFloat32;
  int64_t elements = 0;
  // Of four bytes, what the elements take.
  int64_t words = 0;
  // First and last operation that touches it.
  int first = 0;
  int last = 0;
  // Where it begins in the block, in words.
  int64_t offset = 0;
};

enum class TapeOpKind {
  kMove,          // x[0] -> y, by `move`
  kForward,       // x -> y (and saved)
  kLoss,          // x[0] -> dx[0]
  kBackward,      // x, y, saved, dy -> dx
  kMoveGradient,  // x[0] -> y, by `move`
  kAdd,           // x[0] + x[1] -> y
};

struct TapeOp {
  static constexpr int kNone = -1;

  TapeOpKind kind = TapeOpKind::kForward;
  int layer = 0;
  // Of moves: which of the layer's inputs.
  int input = 0;
  // Buffers; kNone for what is not needed, or not wanted. kInput: the batch itself.
  static constexpr int kInput = -2;
  std::vector<int> x;
  int y = kNone;
  int saved = kNone;
  int scratch = kNone;
  int dy = kNone;
  std::vector<int> dx;
  Move move;
  // True: the operation and the next are played at the same time. A move to a convolution travels
  // while the rows that do not need it are computed; a gradient travels while the layer computes
  // those of its parameters.
  bool with_next = false;
};

// Where one layer stands in a batch on one rank.
struct LayerPlace {
  // What is here of each input, with the halo, and of the output.
  std::vector<Box> inputs;
  Box output;
  // Where a halo travels while the rest is computed: what is here of the input before it has come,
  // and the output's rows [interior_begin, interior_end), which need no more than that.
  Box held;
  int64_t interior_begin = 0;
  int64_t interior_end = 0;
  bool has_interior() const { return interior_begin < interior_end; }
  // Rows [begin, end) of the output, and what of the input they need.
  Box OutputRows(int64_t begin, int64_t end) const;
  Box InputRowsFor(const Window& window, int64_t begin, int64_t end) const;
};

// How attention's saved memory is cut up, in elements of activations: where queries, keys and
// values begin is 0. Pieces begin at multiples of kPieceElements. The scratch of its way back is
// cut up alike, into the gradients of queries, keys and values, and of the context.
struct AttentionMemory {
  int64_t qkv = 0;
  int64_t context = 0;
  // Holds, at least, an fp32 number for every token and head: back ends that never store the
  // probabilities keep theirs here.
  int64_t probabilities = 0;
  int64_t context_begin = 0;
  int64_t probabilities_begin = 0;
  int64_t saved() const { return probabilities_begin + probabilities; }
  int64_t scratch() const { return context_begin + context; }
};
AttentionMemory MemoryOfAttention(int64_t samples, int64_t tokens, int64_t heads,
                                  int64_t head_features, DType activations);

// What lies behind another piece in one buffer begins at a multiple of this, as vector units and
// libraries like it.
inline constexpr int64_t kPieceElements = 8;
constexpr int64_t PieceBegin(int64_t elements_before) {
  return (elements_before + kPieceElements - 1) / kPieceElements * kPieceElements;
}

struct Tape {
  int64_t samples = 0;
  bool training = false;
  // The type of activations.
  DType activations = DType::kFloat32;
  std::vector<TapeBuffer> buffers;
  std::vector<TapeOp> ops;
  // One per layer.
  std::vector<LayerPlace> places;
  // The part of the batch that this rank is given: whole samples.
  Box input;
  // Size of the block.
  int64_t words = 0;
};

// The layout in which a rank is given its part of the batch: samples as the first layer splits
// them, and each sample whole.
Layout InputLayout(const Graph& graph, const Plan& plan);

// What an operation's way back looks at, besides its output's gradient.
struct Remembered {
  bool x = false;
  bool y = false;
};
Remembered RememberedBy(LayerKind kind);

// Whether anything is to be learnt from the gradient of the layer's output.
std::vector<bool> LayersWithGradient(const Graph& graph);

// Requires: CheckPlan is OK; 0 <= rank < plan.mesh.ranks(); samples >= 0; activations are kFloat32
// or kBFloat16.
Tape MakeTape(const Graph& graph, const Plan& plan, int rank, int64_t samples, bool training,
              DType activations = DType::kFloat32);

}  // namespace cadre
