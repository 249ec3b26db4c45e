// Counts the bytes that the operations of a tape move, as the layers and kernels pass over memory.
#include <algorithm>
#include <numeric>

#include "plan/tape.h"

namespace cadre {
namespace {

class ByteCounter {
 public:
  ByteCounter(const Graph& graph, const Tape& tape, const TapeOp& op)
      : layer_(graph[op.layer]), tape_(tape), op_(op) {}

  int64_t Count() const {
    switch (op_.kind) {
      case TapeOpKind::kForward:
        return Forward();
      case TapeOpKind::kBackward:
        return Backward();
      case TapeOpKind::kAdd:
        return Sum(op_.x);
      case TapeOpKind::kLoss:
        return Of(op_.x) + Of(op_.dx) + Scores();
      default:
        return Of(op_.x) + Of(op_.y);
    }
  }

 private:
  int64_t Of(int buffer) const {
    if (buffer == TapeOp::kInput) {
      return tape_.input.shape().elements() * SizeOf(tape_.activations);
    }
    if (buffer < 0) return 0;
    return tape_.buffers[buffer].elements * SizeOf(tape_.buffers[buffer].type);
  }
  int64_t Of(const std::vector<int>& buffers) const {
    return std::accumulate(buffers.begin(), buffers.end(), int64_t{0},
                           [this](int64_t sum, int buffer) { return sum + Of(buffer); });
  }

  // Those that are computed in chunks: forward writes them, the loss and backward read them.
  int64_t Scores() const {
    if (op_.scorer == TapeOp::kNone) return 0;
    const int64_t scores = tape_.regions[op_.scorer].output.shape().elements();
    return 3 * scores * SizeOf(tape_.activations);
  }

  // Addends are added to y one by one; the first is copied to it if none is in its place.
  int64_t Sum(const std::vector<int>& addends) const {
    const bool in_place = std::find(addends.begin(), addends.end(), op_.y) != addends.end();
    const int64_t additions = std::ssize(addends) - 1;
    return (in_place ? 0 : 2 * Of(op_.y)) + 3 * additions * Of(op_.y);
  }

  int64_t Forward() const {
    if (layer_.kind == LayerKind::kAdd) return Sum(op_.x);
    // Batch norm computes statistics first.
    const bool twice = layer_.kind == LayerKind::kBatchNorm && tape_.training && !op_.again;
    return (twice ? 2 : 1) * Of(op_.x) + Of(op_.addend) + Of(op_.saved) + Of(op_.scratch) +
           Of(op_.y);
  }

  int64_t Backward() const {
    const int64_t once = Of(op_.x) + Of(op_.y) + Of(op_.saved) + Of(op_.scratch) + Of(op_.dy) +
                         Of(op_.other_dy) + Of(op_.total_dy) + Of(op_.dx) +
                         (op_.adds_dx ? Of(op_.dx) : 0);
    if (layer_.kind != LayerKind::kBatchNorm || op_.dx[0] == TapeOp::kNone) return once;
    // Sums first, then the gradient of the input from the stored gradient of the output, if any.
    return once + Of(op_.x) + Of(op_.saved) +
           Of(op_.total_dy == TapeOp::kNone ? op_.dy : op_.total_dy);
  }

  const GraphLayer& layer_;
  const Tape& tape_;
  const TapeOp& op_;
};

}  // namespace

int64_t BytesMoved(const Graph& graph, const Tape& tape, const TapeOp& op) {
  return ByteCounter(graph, tape, op).Count();
}

int64_t BytesMovedOutsideConvolutions(const Graph& graph, const Tape& tape) {
  int64_t bytes = 0;
  for (const TapeOp& op : tape.ops) {
    const bool computes = op.kind == TapeOpKind::kForward || op.kind == TapeOpKind::kBackward;
    const bool convolution = graph[op.layer].kind == LayerKind::kConvolution;
    if (!(computes && convolution)) bytes += BytesMoved(graph, tape, op);
  }
  return bytes;
}

}  // namespace cadre
