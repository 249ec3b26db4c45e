#include "tests/torch/one_layer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/time/time.h"
#include "base/status.h"
#include "glog/logging.h"
#include "plan/ownership.h"
#include "worker/optim/slice_optimizer.h"
#include "worker/transport/thread_transport.h"

namespace cadre {
namespace {

// The initial content of an output that must be overwritten.
Floats Garbage(int64_t size) { return Floats(size, std::numeric_limits<float>::quiet_NaN()); }

Floats BufferOf(const Tape& tape, int number) {
  return Garbage(number < 0 ? 0 : tape.buffers[number].words);
}

int NumberOf(const Graph& graph, const std::string& name) {
  for (int l = 0; l < graph.size(); ++l) {
    if (graph[l].name == name) return l;
  }
  LOG(FATAL) << "layer " << name << " does not exist";
}

}  // namespace

Plan OneRankPlan(const Graph& graph, const ParameterIndex& index) {
  Plan plan;
  for (const GraphLayer& layer : graph.layers()) {
    auto layouts = LayOut(layer, plan.mesh, {});
    CHECK(layouts.ok()) << layouts.status();
    plan.layers.push_back(*std::move(layouts));
  }
  plan.buckets = MakeBuckets(plan.layers, plan.mesh, index);
  return plan;
}

OneLayer::OneLayer(Graph graph, const std::string& name, int64_t samples, Backend& kernels)
    : graph_(std::move(graph)),
      index_(ParameterIndex::FromGraph(graph_)),
      plan_(OneRankPlan(graph_, index_)),
      number_(NumberOf(graph_, name)),
      kernels_(kernels),
      transports_(MakeThreadTransports(1, absl::Seconds(1))),
      comms_(*transports_[0], plan_.mesh),
      store_(index_, OwnershipOf(plan_, index_, 0), /*seed=*/1, kernels_),
      training_(MakeTape(graph_, plan_, 0, samples, /*training=*/true)),
      evaluation_(MakeTape(graph_, plan_, 0, samples, /*training=*/false)),
      layer_(MakeLayer({.layer = graph_[number_],
                        .layouts = plan_.layers[number_],
                        .place = training_.regions[number_],
                        .samples = samples,
                        .number = number_,
                        .kernels = kernels_,
                        .comms = comms_,
                        .parameters = store_.OfLayer(index_, number_)})) {
  for (int b = 0; b < store_.buckets(); ++b) {
    const std::span<float> gradients = store_.gradients(b);
    std::fill(gradients.begin(), gradients.end(), std::numeric_limits<float>::quiet_NaN());
  }
}

LocalTensor OneLayer::TensorOf(const std::string& name) {
  const auto& parameters = layer().parameters;
  const auto found = std::find_if(parameters.begin(), parameters.end(),
                                  [&](const LayerParameter& p) { return p.name == name; });
  CHECK(found != parameters.end()) << layer().name << " has no " << name;
  return store_.OfLayer(index_, number_)[found - parameters.begin()];
}

std::span<float> OneLayer::Parameter(const std::string& name) { return TensorOf(name).value; }
std::span<float> OneLayer::Gradient(const std::string& name) { return TensorOf(name).gradient; }

const TapeOp* OneLayer::OpOf(const Tape& tape, TapeOpKind kind) const {
  const auto found = std::find_if(tape.ops.begin(), tape.ops.end(), [&](const TapeOp& op) {
    return op.kind == kind && op.layer == number_;
  });
  return found == tape.ops.end() ? nullptr : &*found;
}

absl::StatusOr<Floats> OneLayer::Train(const std::vector<Floats>& x) { return Forward(true, x); }
absl::StatusOr<Floats> OneLayer::Evaluate(const std::vector<Floats>& x) {
  return Forward(false, x);
}

absl::StatusOr<Floats> OneLayer::Forward(bool training, const std::vector<Floats>& x) {
  const Tape& tape = training ? training_ : evaluation_;
  const TapeOp& op = *CHECK_NOTNULL(OpOf(tape, TapeOpKind::kForward));
  y_ = BufferOf(tape, op.y);
  saved_ = BufferOf(tape, op.saved);
  Floats scratch = BufferOf(tape, op.scratch);
  LayerTensors tensors{.y = y_, .saved = saved_, .scratch = scratch};
  for (const Floats& one : x) tensors.x.emplace_back(one);
  CADRE_RETURN_IF_ERROR(layer_->Forward({.training = training, .seed = 1}, tensors));
  return y_;
}

absl::StatusOr<std::vector<Floats>> OneLayer::Backward(const std::vector<Floats>& x,
                                                       const Floats& dy) {
  const TapeOp* found = OpOf(training_, TapeOpKind::kBackward);
  // The gradient of every input equals the gradient of the output.
  if (found == nullptr) return std::vector<Floats>(x.size(), dy);
  const TapeOp& op = *found;
  Floats scratch = BufferOf(training_, op.scratch);
  LayerTensors tensors{.y = y_, .saved = saved_, .scratch = scratch, .dy = dy};
  std::vector<Floats> dx;
  for (size_t i = 0; i < op.dx.size(); ++i) dx.push_back(BufferOf(training_, op.dx[i]));
  for (const Floats& one : x) tensors.x.emplace_back(one);
  for (Floats& one : dx) {
    tensors.dx.emplace_back(one);
    tensors.wants_dx.push_back(!one.empty());
  }
  CADRE_RETURN_IF_ERROR(layer_->Backward({.training = true, .seed = 1}, tensors));
  return dx;
}

void OneLayer::UpdateStatistics() {
  v1::Optimizer optimizer;
  optimizer.mutable_sgd();
  const Floats momenta = StatisticMomenta(graph_, index_);
  const StepNorms norms(optimizer, std::ssize(index_.parameters()));
  for (int b = 0; b < store_.buckets(); ++b) {
    SliceOptimizer slice(kernels_, optimizer, index_, momenta, store_.ownership(b));
    // The gradients of other layers were not computed.
    for (float& gradient : store_.gradients(b)) {
      if (!(gradient == gradient)) gradient = 0;
    }
    slice.Update(/*rate=*/0, norms, store_.gradients(b), store_.weights(b));
  }
}

}  // namespace cadre
