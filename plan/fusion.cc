// Fuses operations of a tape: an operation that passes over memory also computes what directly
// follows it, so that this needs no pass of its own. One table (FusesWith) states which layers take
// which operations, for all back ends.
//
// Batch norm takes, in forward, an addition with one other addend and a ReLU, y = relu(norm(x) +
// addend); in backward, the ReLU's mask and the sum of two gradients where the output forks, g =
// mask(dy + other_dy). The ReLU saves one bit per element, so that backward reads the mask instead
// of the output. g is stored (total_dy) only if others read it: it is the gradient of the addend,
// too.
//
// A convolution that is a matrix product adds the gradient of its input to a sum that exists
// already (beta = 1 in the terms of BLAS). This is limited to fp32 on the host, where the back end
// can do so with the same bits. Libraries of GPUs may divide sums in any way; there, and for other
// products, batch norm's backward adds the gradients.
//
// Whether operations can be fused depends on the plan: they cannot if a move or a send reads the
// value between them. The results do not depend on it, because fused kernels have the bits of
// separate ones (kernels/backend.h). A fused operation stays where the norm's, or the
// convolution's, was, so that collectives and moves keep the order that must be equal on all ranks.
// It must therefore be the first to read what the removed operation computed.
//
// Cost: linear in operations for each fused one.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "plan/layer_part.h"
#include "plan/tape.h"

namespace cadre {
namespace {

struct FusionRule {
  // Forward.
  bool addition = false;
  bool relu = false;
  // Backward: the sum of two gradients of the output.
  bool gradient_sum = false;
  // Backward: the gradient of the input is added to others.
  bool adds_gradient = false;
};

FusionRule FusesWith(LayerKind kind) {
  switch (kind) {
    case LayerKind::kBatchNorm:
      return {.addition = true, .relu = true, .gradient_sum = true};
    case LayerKind::kConvolution:
      return {.adds_gradient = true};
    default:
      return {};
  }
}

int UsesIn(const TapeOp& op, int buffer) {
  const auto count = [buffer](const std::vector<int>& in) {
    return std::count(in.begin(), in.end(), buffer);
  };
  return count(op.x) + count(op.dx) +
         count({op.y, op.saved, op.scratch, op.dy, op.addend, op.other_dy, op.total_dy});
}

class Fuser {
 public:
  Fuser(const Graph& graph, Tape& tape)
      : graph_(graph), tape_(tape), removed_(tape.ops.size(), false) {}

  void Run(bool products_add) {
    for (int i = 0; i < size(); ++i) {
      const TapeOp& op = tape_.ops[i];
      const FusionRule rule = FusesWith(graph_[op.layer].kind);
      if (op.kind == TapeOpKind::kForward) FuseForward(rule, i);
      if (op.kind == TapeOpKind::kBackward) {
        FuseBackward(rule, i);
        if (rule.adds_gradient && products_add) AddToSum(i);
      }
    }
    std::vector<TapeOp> ops;
    for (int i = 0; i < size(); ++i) {
      if (!removed_[i]) ops.push_back(std::move(tape_.ops[i]));
    }
    tape_.ops = std::move(ops);
  }

 private:
  int size() const { return std::ssize(tape_.ops); }

  // The operations that use a buffer, in order.
  std::vector<int> UsersOf(int buffer) const {
    std::vector<int> users;
    for (int i = 0; i < size(); ++i) {
      if (!removed_[i] && UsesIn(tape_.ops[i], buffer) > 0) users.push_back(i);
    }
    return users;
  }

  // The forward operation of a layer of this kind that alone uses the result of operation i.
  std::optional<int> OnlyReader(int i, LayerKind kind) const {
    const std::vector<int> users = UsersOf(tape_.ops[i].y);
    if (users.size() != 2 || users[0] != i) return std::nullopt;
    const TapeOp& reader = tape_.ops[users[1]];
    const bool fits = reader.kind == TapeOpKind::kForward && graph_[reader.layer].kind == kind &&
                      UsesIn(reader, tape_.ops[i].y) == 1;
    return fits ? std::optional(users[1]) : std::nullopt;
  }

  void FuseForward(const FusionRule& rule, int i) {
    TapeOp& op = tape_.ops[i];
    if (rule.addition) {
      if (const auto add = OnlyReader(i, LayerKind::kAdd)) FuseAddition(op, i, *add);
    }
    if (!rule.relu) return;
    const auto relu = OnlyReader(i, LayerKind::kRelu);
    if (!relu) return;
    relu_of_layer_[op.layer] = tape_.ops[*relu].layer;
    op.relu = true;
    op.y = tape_.ops[*relu].y;
    removed_[*relu] = true;
    SaveBits(op);
  }

  // The other addend must exist when operation i is executed.
  void FuseAddition(TapeOp& op, int i, int add) {
    const std::vector<int>& addends = tape_.ops[add].x;
    if (addends.size() != 2) return;
    const int other = addends[addends[0] == op.y ? 1 : 0];
    if (other < 0 || UsersOf(other).front() >= i) return;
    op.addend = other;
    op.y = tape_.ops[add].y;
    removed_[add] = true;
  }

  // Adds the bits of the ReLU to what the norm saves: 32 rows of a channel in a word.
  void SaveBits(const TapeOp& op) {
    // A norm that is computed again saves to the same buffer.
    if (!with_bits_.insert(op.saved).second) return;
    const Shape output = tape_.regions[op.layer].output.shape();
    const int64_t channels = output[output.rank() - 1];
    if (channels == 0) return;
    TapeBuffer& saved = tape_.buffers[op.saved];
    const int64_t words = LargestPart(output.elements() / channels, 32) * channels;
    saved.elements += words;
    saved.words += words;
  }

  // The operation of this kind that writes `buffer`, if the first other operation that uses the
  // buffer is i.
  std::optional<int> WriterFor(int i, TapeOpKind kind, int buffer) const {
    const std::vector<int> users = UsersOf(buffer);
    if (users.size() < 2 || users[1] != i || tape_.ops[users[0]].kind != kind) return std::nullopt;
    return users[0];
  }

  void FuseBackward(const FusionRule& rule, int i) {
    TapeOp& op = tape_.ops[i];
    if (op.dy < 0) return;
    if (const auto relu = relu_of_layer_.find(op.layer); relu != relu_of_layer_.end()) {
      const auto mask = WriterFor(i, TapeOpKind::kBackward, op.dy);
      if (!mask || tape_.ops[*mask].layer != relu->second) return;
      op.relu = true;
      StoreTotal(op, op.dy);
      op.dy = tape_.ops[*mask].dy;
      removed_[*mask] = true;
    }
    if (!rule.gradient_sum) return;
    const auto add = WriterFor(i, TapeOpKind::kAdd, op.dy);
    // The ReLU's mask changes the sum that other operations read.
    if (!add || (op.relu && UsersOf(op.dy).size() > 2)) return;
    const TapeOp& sum = tape_.ops[*add];
    if (op.total_dy == TapeOp::kNone) op.total_dy = op.dy;
    op.dy = sum.x[0];
    op.other_dy = sum.x[1];
    removed_[*add] = true;
  }

  // Whether a convolution is a product over positions.
  static bool IsProduct(const GraphLayer& layer) {
    const Window& w = layer.window;
    return layer.groups == 1 && w.kernel_height == 1 && w.kernel_width == 1 &&
           w.stride_height == 1 && w.stride_width == 1 && w.padding_height == 0 &&
           w.padding_width == 0;
  }

  void AddToSum(int i) {
    TapeOp& op = tape_.ops[i];
    const int gradient = op.dx[0];
    if (gradient < 0 || !IsProduct(graph_[op.layer])) return;
    const std::vector<int> users = UsersOf(gradient);
    if (users.size() != 2 || users[0] != i || tape_.ops[users[1]].kind != TapeOpKind::kAdd) return;
    const TapeOp& add = tape_.ops[users[1]];
    const int sum = add.x[add.x[0] == gradient ? 1 : 0];
    // The sum exists, and only this addition reads it from now on.
    const std::vector<int> of_sum = UsersOf(sum);
    if (of_sum.front() >= i || of_sum.back() != users[1] || of_sum[of_sum.size() - 2] >= i) return;
    // A send that has begun may still read it.
    const bool sent = std::any_of(of_sum.begin(), of_sum.end(), [this](int user) {
      return tape_.ops[user].kind == TapeOpKind::kSend;
    });
    if (sent) return;
    op.adds_dx = true;
    op.dx[0] = sum;
    removed_[users[1]] = true;
    Replace(add.y, sum);
  }

  void Replace(int buffer, int by) {
    for (TapeOp& op : tape_.ops) {
      for (int* used : {&op.dy, &op.other_dy, &op.total_dy}) {
        if (*used == buffer) *used = by;
      }
      for (std::vector<int>* used : {&op.x, &op.dx}) {
        std::replace(used->begin(), used->end(), buffer, by);
      }
    }
  }

  // Stores the gradient if other operations use it.
  void StoreTotal(TapeOp& op, int gradient) {
    if (UsersOf(gradient).size() > 2) op.total_dy = gradient;
  }

  const Graph& graph_;
  Tape& tape_;
  // By operation.
  std::vector<bool> removed_;
  // Buffers with bits.
  std::set<int> with_bits_;
  // The layer of the ReLU that is fused with a layer's forward.
  std::map<int, int> relu_of_layer_;
};

}  // namespace

void FuseOperations(const Graph& graph, Fusion fusion, Tape& tape) {
  Fuser(graph, tape).Run(fusion == Fusion::kHost && tape.activations == DType::kFloat32);
}

}  // namespace cadre
