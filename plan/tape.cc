// Builds the tape of one rank: a static schedule of operations and buffers, made before the first
// step, so that training does not allocate memory and its size is known from the plan alone.
//
// Forward visits layers in graph order. An input whose layout or halo differs from the producer's
// output gets a move (tensor/move.h) into a separate buffer. Backward visits layers in reverse
// order and adds the gradients of several consumers of one output. Layers without parameters at or
// before them have no backward (LayersWithGradient).
//
// Placed layers. A rank on which a layer is not placed has empty buffers of it and no operation
// that computes it. A move between coordinates is an exchange among the ranks that have messages
// for one another; the other ranks do not play it. All ranks visit layers and moves in the same
// order, so the tapes of the members of an exchange, or of the peers of a layer, have these in the
// same order.
//
// Sends and receives. A move from some coordinates to others becomes a kSend directly after the
// operation that computes the value, and a kReceive directly before the operation that needs it, so
// that the sender continues while the value is on its way and the receiver computes other layers
// until it needs the value. The receiver begins to receive when the message before has arrived, in
// the background, because a link buffers only a part of a large message; its memory is reserved
// from then on (tape_memory.cc). Such moves cannot deadlock. Think of the operations of all ranks
// in one sequence: forward layers in graph order, each preceded by its receives and followed by its
// sends, then backward in reverse order. Every rank executes a subsequence, and a send precedes its
// receive (TapeOp::order numbers the receives). Sends run in the background, in the order of their
// receives. Suppose that ranks wait forever, and consider the earliest position at which one waits.
// If it is an exchange, all its members have reached it, since none waits earlier: it completes. If
// it is a receive, its sender has computed the value, because the value's position is earlier
// still, and the messages that the sender sends before it have earlier receives, which are
// complete: it is sent. If it is the begin or the end of a pass, where a rank waits for sends of
// its last pass, their receives are earlier and complete. The sender's buffers therefore live until
// the loss, or the end of backward. A move of two exchanges (a sum that several ranks need) is not
// divided, nor is one that begins on all ranks.
//
// What backward reads determines how long the buffers of forward live: input, output, or values
// that forward saves (layer_memory.h). Gelu, for example, needs its input, relu only its output, so
// relu may overwrite its input in place.
//
// Overlap. A convolution whose rows are split needs a halo from its neighbours. Its output is
// divided into rows that depend on the halo and interior rows that do not (FindInterior); the move
// and the interior are executed concurrently (with_next). Likewise the move of an input gradient
// overlaps with the computation of parameter gradients. Buffers of concurrent operations live at
// the same time.
//
// Recomputation. The operations of forward in a block that the plan lists are played once more
// before backward reaches the block, as far as backward reads what they compute (ForwardAgain).
// Since what they compute the first time has no later reader then, it does not live until backward.
//
// Scores. On the host the loss includes the operations of the layer that computes a large number of
// scores (FindScorer), so that it needs memory for some rows of them at a time.
//
// Afterwards operations are fused (fusion.cc) and memory is assigned (tape_memory.cc). Cost: linear
// in layers, plus the planning of each move.
#include "plan/tape.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/ops/operation.h"
#include "plan/cost/communication_cost.h"
#include "plan/layer_memory.h"
#include "plan/layer_part.h"
#include "plan/receive_orders.h"
#include "plan/recomputation.h"

namespace cadre {
namespace {

constexpr int kRows = 1;

int64_t Elements(const Box& box) { return box.shape().elements(); }

class TapeBuilder {
 public:
  TapeBuilder(const Graph& graph, const Plan& plan, int rank, int64_t samples, bool training,
              DType activations, v1::Cluster::Device device)
      : graph_(graph),
        plan_(plan),
        device_(device),
        rank_(rank),
        needs_gradient_(LayersWithGradient(graph)),
        orders_(NumberReceives(graph)),
        recomputed_(RecomputedLayers(graph, plan.recomputed, plan.layers)),
        pending_(graph.size()) {
    tape_.samples = samples;
    tape_.training = training;
    tape_.activations = activations;
    tape_.orders = orders_.count;
  }

  Tape Run(Fusion fusion) {
    tape_.input = PlacementOf(graph_.input(), InputLayout(graph_, plan_)).box(rank_);
    for (int l = 0; l < graph_.size(); ++l) AddRegion(l);
    const int sampled = graph_.sampled_layer();
    if (sampled != Graph::kNoLayer && IsHere(sampled)) tape_.candidates = MemoryOf(sampled).saved;
    if (fusion != Fusion::kOff) FindScorer();
    for (int l = 0; l < graph_.size(); ++l) Forward(l);
    if (tape_.training) {
      auto block = plan_.recomputed.rbegin();
      for (int l = graph_.size() - 1; l >= 0; --l) {
        if (block != plan_.recomputed.rend() && l == block->end - 1) ForwardAgain(*block++);
        Backward(l);
      }
    }
    if (fusion != Fusion::kOff) FuseOperations(graph_, fusion, tape_);
    AssignMemory(tape_);
    return std::move(tape_);
  }

 private:
  const LayerLayouts& layouts(int l) const { return plan_.layers[l]; }
  bool IsHere(int l) const { return plan_.mesh.IsAt(rank_, layouts(l).at); }
  LayerRegion& region(int l) { return tape_.regions[l]; }

  Shape Whole(const Shape& sample) const { return BatchShape(tape_.samples, sample); }
  Placement PlacementOf(const Shape& sample, const Layout& layout) const {
    return Placement::Of(Whole(sample), layout, plan_.mesh);
  }

  // The part of an input that each rank needs, with its halo. The result borrows graph and plan,
  // which outlive the builder.
  Placement NeededPlacement(int l, int i, const Layout& layout) const {
    const GraphLayer& layer = graph_[l];
    const Placement part = PlacementOf(layer.input(i), layouts(l).inputs[i]);
    const Placement output = PlacementOf(layer.output, layouts(l).output);
    return {layout, [&layer, i, part, output](int rank) {
              return NeededInput(layer, i, part.box(rank), output.box(rank));
            }};
  }

  void AddRegion(int l) {
    LayerRegion region;
    const GraphLayer& layer = graph_[l];
    for (size_t i = 0; i < layer.inputs.size(); ++i) {
      region.inputs.push_back(NeededPlacement(l, i, layouts(l).inputs[i]).box(rank_));
    }
    region.output = PlacementOf(layer.output, layouts(l).output).box(rank_);
    tape_.regions.push_back(std::move(region));
  }

  int NewBuffer(int l, const char* what, DType type, int64_t elements) {
    const int64_t bytes = SizeOf(type) * elements;
    tape_.buffers.push_back({.name = absl::StrCat(graph_[l].name, " ", what),
                             .type = type,
                             .elements = elements,
                             .words = LargestPart(bytes, kBytesPerWord)});
    return std::ssize(tape_.buffers) - 1;
  }
  int NewActivations(int l, const char* what, const Box& box) {
    return NewBuffer(l, what, tape_.activations, Elements(box));
  }

  TapeOp& NewOp(TapeOpKind kind, int l) {
    tape_.ops.push_back({});
    tape_.ops.back().kind = kind;
    tape_.ops.back().layer = l;
    tape_.ops.back().order = order_;
    return tape_.ops.back();
  }

  // The layout of the gradient of a producer's output: the output's layout without partial sums.
  Layout GradientLayout(int producer) const {
    Layout layout = layouts(producer).output;
    layout.partial_sum.clear();
    return layout;
  }

  Layout OutputLayout(int producer) const {
    return producer == Graph::kInput ? InputLayout(graph_, plan_) : layouts(producer).output;
  }

  // The move of input i of layer l.
  Move MoveOfInput(int l, int i) const {
    const GraphLayer& layer = graph_[l];
    return PlanMove(Whole(layer.input(i)), plan_.mesh, rank_,
                    PlacementOf(layer.input(i), OutputLayout(layer.inputs[i])),
                    NeededPlacement(l, i, layouts(l).inputs[i]));
  }

  // The move of the gradient of input i of layer l to the producer.
  Move MoveOfGradient(int l, int i) const {
    const Shape& sample = graph_[l].input(i);
    return PlanMove(Whole(sample), plan_.mesh, rank_,
                    NeededPlacement(l, i, layouts(l).input_gradients[i]),
                    PlacementOf(sample, GradientLayout(graph_[l].inputs[i])));
  }

  // Whether a move consists of a send and a receive on this rank and on all with which it exchanges
  // messages.
  bool IsDivided(const Layout& from, const Layout& to, const Move& move) const {
    return !from.at.empty() && from.at != to.at && move.steps.size() == 1 &&
           !move.steps[0].is_local();
  }

  // Adds the send of a divided move, if this rank has messages for others. `l`, `i`: the consumer.
  void Send(int l, int i, const Move& move, int buffer, int order) {
    Exchange step = move.steps[0];
    std::erase_if(step.sends, [&](const auto& message) { return message.peer == step.index; });
    if (step.sends.empty()) return;
    step.receives.clear();
    step.make = {step.make.begin, step.make.begin};
    const int scratch_buffer = NewScratch(l, step.packed_elements());
    TapeOp& op = NewOp(TapeOpKind::kSend, l);
    op.input = i;
    op.order = order;
    op.x = {buffer};
    op.scratch = scratch_buffer;
    op.move.steps = {std::move(step)};
  }

  // Adds the receive of a divided move into `moved`, if this rank has a part of the result.
  void Receive(int l, int i, const Move& move, int buffer, int moved, int order) {
    Exchange step = move.steps[0];
    if (step.make.empty()) return;
    std::erase_if(step.sends, [&](const auto& message) { return message.peer != step.index; });
    const int scratch_buffer = NewScratch(l, step.unpacked_elements());
    TapeOp& op = NewOp(TapeOpKind::kReceive, l);
    op.input = i;
    op.order = order;
    op.x = {buffer};
    op.y = moved;
    op.scratch = scratch_buffer;
    op.move.steps = {std::move(step)};
  }

  // Adds the sends of the layer's output to other coordinates.
  void SendOutput(int producer) {
    if (layouts(producer).at.empty() || !IsHere(producer)) return;
    for (const int l : ConsumersOf(graph_, producer)) {
      for (int i = 0; i < std::ssize(graph_[l].inputs); ++i) {
        if (graph_[l].inputs[i] != producer) continue;
        const Move move = MoveOfInput(l, i);
        if (!IsDivided(layouts(producer).output, layouts(l).inputs[i], move)) continue;
        Send(l, i, move, y_[producer], orders_.forward[l][i]);
      }
    }
  }

  // Adds the move of input i of layer l, if it needs one; returns the buffer of the input.
  int MovedInput(int l, int i) {
    const int producer = graph_[l].inputs[i];
    const int buffer = producer == Graph::kInput ? TapeOp::kInput : y_[producer];
    Move move = MoveOfInput(l, i);
    if (KeepsAll(move)) return buffer;
    const bool tokens = producer == Graph::kInput && graph_.takes_tokens();
    const int moved = NewBuffer(l, "x", tokens ? DType::kFloat32 : tape_.activations,
                                Elements(region(l).inputs[i]));
    if (OnlyDrops(move)) return moved;
    if (IsDivided(OutputLayout(producer), layouts(l).inputs[i], move)) {
      Receive(l, i, move, buffer, moved, orders_.forward[l][i]);
      return moved;
    }
    FindInterior(graph_[l], move, region(l));
    TapeOp& op = NewOp(TapeOpKind::kMove, l);
    op.with_next = region(l).has_interior();
    op.input = i;
    op.x = {buffer};
    op.y = moved;
    op.move = std::move(move);
    return moved;
  }

  // Whether this rank has the result of the move already, and whether it needs none; in both cases
  // without a message.
  static bool KeepsAll(const Move& move) {
    return std::all_of(move.steps.begin(), move.steps.end(), [](const Exchange& step) {
      return step.members.size() == 1 && step.is_identity();
    });
  }
  static bool OnlyDrops(const Move& move) {
    return std::all_of(
               move.steps.begin(), move.steps.end(),
               [](const Exchange& step) { return step.members.size() == 1 && step.is_local(); }) &&
           move.steps.back().make.empty();
  }

  void Forward(int l) {
    const GraphLayer& layer = graph_[l];
    std::vector<int> x;
    for (size_t i = 0; i < layer.inputs.size(); ++i) {
      order_ = orders_.forward[l][i];
      x.push_back(MovedInput(l, i));
    }
    ++order_;
    x_.push_back(x);
    saved_.push_back(TapeOp::kNone);
    y_.push_back(TapeOp::kNone);
    dy_.push_back(TapeOp::kNone);
    if (layer.kind == LayerKind::kSoftmaxCrossEntropy) return Loss(l);
    if (l == scorer_) return;
    if (IsHere(l)) saved_.back() = NewSaved(l);
    y_.back() = NewBuffer(l, "y", tape_.activations, OutputElements(l));
    if (!IsHere(l)) return;
    Compute(l, y_.back());
    SendOutput(l);
  }

  int NewSaved(int l) {
    const LayerMemory memory = MemoryOf(l);
    return memory.saved > 0 ? NewBuffer(l, "saved", memory.saved_type, memory.saved)
                            : TapeOp::kNone;
  }

  // Requires: the layer is placed on this rank.
  void Compute(int l, int y) {
    const int scratch_buffer =
        NewScratch(l, region(l).has_interior() ? InteriorScratch(l) : MemoryOf(l).forward_scratch);
    TapeOp& op = NewOp(TapeOpKind::kForward, l);
    op.scratch = scratch_buffer;
    op.x = x_[l];
    op.y = y;
    op.saved = saved_[l];
    op.in_place = Describe(graph_[l].kind).in_place;
  }

  // Computes again what backward reads of a block, in buffers of their own (plan/recomputation.h).
  void ForwardAgain(const Interval& block) {
    const size_t before = tape_.ops.size();
    for (int l = block.begin; l < block.end; ++l) {
      const RecomputedLayer& again = recomputed_[l];
      if (!again.inputs || !IsHere(l)) continue;
      for (size_t i = 0; i < x_[l].size(); ++i) {
        // What came from other coordinates is kept.
        if (OutputLayout(graph_[l].inputs[i]).at == layouts(l).at) x_[l][i] = MovedInput(l, i);
      }
      if (!again.forward) {
        tape_.ops.back().with_next = false;
        continue;
      }
      // The statistics of batch norm are kept.
      if (graph_[l].kind != LayerKind::kBatchNorm) saved_[l] = NewSaved(l);
      const int y = NewBuffer(l, "y", tape_.activations, OutputElements(l));
      if (!again.keeps_output) y_[l] = y;
      Compute(l, y);
    }
    for (size_t i = before; i < tape_.ops.size(); ++i) tape_.ops[i].again = true;
  }

  // Elements of the layer's output, with the padding of ScoreRow.
  int64_t OutputElements(int l) const {
    const Shape output = tape_.regions[l].output.shape();
    const int64_t columns = output.dims().back();
    if (device_ != v1::Cluster::CUDA || !ReadByLossAlone(l) || columns == 0) {
      return output.elements();
    }
    return output.elements() / columns * ScoreRow(columns, tape_.activations);
  }

  // Whether a fully connected layer's output is the loss's input on this rank, and the loss's
  // gradient that of the layer's output. On GPUs the rows of no other output may be padded.
  bool ReadByLossAlone(int l) const {
    const int loss = graph_.size() - 1;
    return graph_[l].kind == LayerKind::kFullyConnected && graph_[l].sampled_classes == 0 &&
           graph_.consumers(l) == std::vector<int>{loss} && KeepsAll(MoveOfInput(loss, 0)) &&
           KeepsAll(MoveOfGradient(loss, 0));
  }

  // The gradients of the scorer's parameters are complete after the loss, and the next forward pass
  // overwrites them; in a pipeline that may precede this pass's backward.
  void FindScorer() {
    const int l = graph_.layers().back().inputs[0];
    const bool placed = std::any_of(plan_.layers.begin(), plan_.layers.end(),
                                    [](const LayerLayouts& each) { return !each.at.empty(); });
    if (device_ == v1::Cluster::CUDA || placed || l == Graph::kInput || !ReadByLossAlone(l)) return;
    const Shape scores = region(l).output.shape();
    if (scores.elements() == 0) return;
    const int64_t rows = scores.elements() / scores.dims().back();
    chunk_rows_ = ScoreRowsPerChunk(rows, scores.dims().back(), tape_.activations);
    if (chunk_rows_ < rows) scorer_ = l;
  }

  void LossInChunks(int l) {
    const int64_t elements = chunk_rows_ * graph_[scorer_].output.dims().back();
    const int scores = NewBuffer(scorer_, "scores", tape_.activations, elements);
    const bool wanted = tape_.training && NeedsGradient(graph_[scorer_].inputs[0]);
    scorer_dx_ = wanted ? NewActivations(scorer_, "dx", region(scorer_).inputs[0]) : TapeOp::kNone;
    TapeOp& op = NewOp(TapeOpKind::kLoss, l);
    op.x = x_[scorer_];
    op.dx = {scorer_dx_};
    op.scratch = scores;
    op.scorer = scorer_;
    op.chunk_rows = chunk_rows_;
  }

  void Loss(int l) {
    if (scorer_ != TapeOp::kNone) return LossInChunks(l);
    // As many as the scores have, which may be padded.
    const int scores = x_.back()[0];
    const int64_t elements =
        scores >= 0 ? tape_.buffers[scores].elements : Elements(region(l).inputs[0]);
    const int gradient =
        tape_.training ? NewBuffer(l, "dx", tape_.activations, elements) : TapeOp::kNone;
    TapeOp& op = NewOp(TapeOpKind::kLoss, l);
    op.x = x_.back();
    op.dx = {gradient};
    op.in_place = true;
    if (tape_.training) MoveGradient(l, 0, gradient);
  }

  // Moves the gradient of input i of layer l to the producer, where it is added to the gradients of
  // other consumers.
  void MoveGradient(int l, int i, int gradient) {
    const GraphLayer& layer = graph_[l];
    const int producer = layer.inputs[i];
    if (!NeedsGradient(producer)) return;
    Move move = MoveOfGradient(l, i);
    if (!KeepsAll(move)) {
      const int moved = NewActivations(producer, "dy", region(producer).output);
      if (OnlyDrops(move)) {
        dy_[producer] = moved;
        return;
      }
      if (IsDivided(layouts(l).input_gradients[i], GradientLayout(producer), move)) {
        Send(l, i, move, gradient, orders_.gradient[l][i]);
        if (IsHere(producer)) {
          pending_[producer].push_back(
              {.layer = l, .input = i, .buffer = gradient, .moved = moved});
          pending_[producer].back().move = std::move(move);
        } else {
          dy_[producer] = moved;
        }
        return;
      }
      TapeOp& op = NewOp(TapeOpKind::kMoveGradient, l);
      op.input = i;
      op.x = {gradient};
      op.y = moved;
      op.move = std::move(move);
      gradient = moved;
    }
    if (pending_[producer].empty()) {
      AddGradient(producer, gradient);
    } else {
      // Gradients are added in a fixed order.
      pending_[producer].push_back({.buffer = gradient});
    }
  }

  void AddGradient(int producer, int gradient) {
    int& sum = dy_[producer];
    if (sum == TapeOp::kNone) {
      sum = gradient;
      return;
    }
    if (!IsHere(producer)) return;
    const int added = NewActivations(producer, "dy", region(producer).output);
    TapeOp& op = NewOp(TapeOpKind::kAdd, producer);
    op.x = {sum, gradient};
    op.y = added;
    op.in_place = true;
    sum = added;
  }

  // Receives and adds the gradients of the layer's output that are still missing.
  void CompleteGradient(int l) {
    for (const Term& term : pending_[l]) {
      const bool here = term.moved == TapeOp::kNone;
      if (!here) {
        order_ = orders_.gradient[term.layer][term.input];
        Receive(term.layer, term.input, term.move, term.buffer, term.moved, order_);
      }
      AddGradient(l, here ? term.buffer : term.moved);
    }
  }

  bool NeedsGradient(int l) const { return l != Graph::kInput && needs_gradient_[l]; }

  void Backward(int l) {
    const GraphLayer& layer = graph_[l];
    if (!needs_gradient_[l] || layer.kind == LayerKind::kSoftmaxCrossEntropy) return;
    CompleteGradient(l);
    order_ = orders_.backward[l];
    if (l == scorer_) {
      NewOp(TapeOpKind::kBackward, l).in_loss = true;
      if (scorer_dx_ != TapeOp::kNone) MoveGradient(l, 0, scorer_dx_);
      return;
    }
    const int dy = dy_[l];
    if (layer.kind == LayerKind::kAdd) {
      // The gradient of every addend equals the gradient of the sum.
      for (size_t i = 0; i < layer.inputs.size(); ++i) MoveGradient(l, i, dy);
      return;
    }
    std::vector<int> dx;
    for (size_t i = 0; i < layer.inputs.size(); ++i) {
      dx.push_back(NeedsGradient(layer.inputs[i]) ? NewActivations(l, "dx", region(l).inputs[i])
                                                  : TapeOp::kNone);
    }
    if (!IsHere(l)) {
      for (size_t i = 0; i < dx.size(); ++i) {
        if (dx[i] != TapeOp::kNone) MoveGradient(l, i, dx[i]);
      }
      return;
    }
    const int scratch_buffer = NewScratch(l, MemoryOf(l).backward_scratch);
    const SavedForBackward reads = Describe(layer.kind).saved;
    TapeOp& op = NewOp(TapeOpKind::kBackward, l);
    if (reads.x) op.x = x_[l];
    if (reads.y) op.y = y_[l];
    op.saved = saved_[l];
    op.scratch = scratch_buffer;
    op.dy = dy;
    op.dx = dx;
    op.in_place = Describe(layer.kind).in_place;
    const size_t before = tape_.ops.size();
    for (size_t i = 0; i < dx.size(); ++i) {
      if (dx[i] != TapeOp::kNone) MoveGradient(l, i, dx[i]);
    }
    // These layers compute the gradient of the input first. It can then be moved while they compute
    // the gradients of the parameters.
    const bool separate = Describe(layer.kind).input_gradient_first;
    const auto moves = [](const TapeOp& next) {
      return next.kind == TapeOpKind::kMoveGradient || next.kind == TapeOpKind::kSend;
    };
    if (separate && tape_.ops.size() > before && moves(tape_.ops[before])) {
      tape_.ops[before - 1].with_next = true;
    }
  }

  int NewScratch(int l, int64_t elements) {
    return elements > 0 ? NewBuffer(l, "scratch", tape_.activations, elements) : TapeOp::kNone;
  }

  // Requires: the layer is placed on this rank.
  LayerMemory MemoryOf(int l) const {
    const GraphLayer& layer = graph_[l];
    const Shape output = tape_.regions[l].output.shape();
    LayerExtents here = {.samples = output[0],
                         .output = output.elements(),
                         .features = output.dims().back(),
                         .input_features = tape_.regions[l].inputs[0].shape().dims().back()};
    if (layer.kind == LayerKind::kAttention) {
      here.heads = LocalBox(layer.parameters[0].shape, layouts(l).parameters[0], plan_.mesh, rank_)
                       .shape()[0];
    }
    return MemoryOfLayer(layer, here, tape_.activations, device_, NeedsGradient(layer.inputs[0]));
  }

  // The rows before, in and after the interior are computed in scratch memory.
  int64_t InteriorScratch(int l) const {
    const LayerRegion& here = tape_.regions[l];
    int64_t elements = 0;
    const int64_t borders[] = {here.output.begin[kRows], here.interior_begin, here.interior_end,
                               here.output.end[kRows]};
    for (int part = 0; part < 3; ++part) {
      const Box x = here.InputRowsFor(graph_[l].window, borders[part], borders[part + 1]);
      const Box y = here.OutputRows(borders[part], borders[part + 1]);
      elements = std::max(elements, AlignedOffset(Elements(x)) + Elements(y));
    }
    return elements;
  }

  const Graph& graph_;
  const Plan& plan_;
  const v1::Cluster::Device device_;
  const int rank_;
  const std::vector<bool> needs_gradient_;
  const ReceiveOrders orders_;
  const std::vector<RecomputedLayer> recomputed_;
  // TapeOp::order of the next operation.
  int order_ = 0;
  // A gradient of a layer's output that is added when the layer's backward begins: it is in
  // `buffer` or, if `moved` is a buffer, the result of the move for an input of another layer.
  struct Term {
    int layer = 0;
    int input = 0;
    int buffer = TapeOp::kNone;
    int moved = TapeOp::kNone;
    Move move;
  };
  // By layer.
  std::vector<std::vector<Term>> pending_;
  // As in TapeOp; the gradient of the scorer's input.
  int scorer_ = TapeOp::kNone;
  int64_t chunk_rows_ = 0;
  int scorer_dx_ = TapeOp::kNone;
  Tape tape_;
  // Buffers by layer.
  std::vector<std::vector<int>> x_;
  std::vector<int> y_;
  std::vector<int> saved_;
  std::vector<int> dy_;
};

}  // namespace

Tape MakeTape(const Graph& graph, const Plan& plan, int rank, int64_t samples, bool training,
              DType activations, Fusion fusion, v1::Cluster::Device device) {
  if (!training && graph.sampled_layer() != Graph::kNoLayer) {
    return MakeTape(graph.ForEvaluation(), plan, rank, samples, training, activations, fusion,
                    device);
  }
  return TapeBuilder(graph, plan, rank, samples, training, activations, device).Run(fusion);
}

}  // namespace cadre
