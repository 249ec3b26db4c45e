// Every operation and optimizer computes what PyTorch computes: the layers of worker/nn, on the
// reference and the CPU back end, are compared with ops.safetensors (written by make_fixtures.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "comm/mesh_communicators.h"
#include "comm/transport/thread_transport.h"
#include "glog/logging.h"
#include "kernels/backend.h"
#include "plan/ownership.h"
#include "plan/tape.h"
#include "tests/base/expect.h"
#include "tests/equivalence/test_plans.h"
#include "tests/torch/fixtures.h"
#include "worker/nn/layer_kinds.h"
#include "worker/nn/parameter_store.h"
#include "worker/optim/slice_optimizer.h"

namespace cadre {
namespace {

// Limits of RelativeDifference. The fixtures are exact (computed in float64, rounded once), so only
// our own rounding counts, at most 2^-24 = 6e-8 of an element each time. The reference back end
// sums in double and rounds what it stores; attention stores six results before a gradient is
// computed.
constexpr double kReferenceTolerance = 5e-7;
// The CPU back end sums up to some hundred terms in float32 (about sqrt(100) roundings), and
// approximates exponentials and erf.
constexpr double kCpuTolerance = 5e-6;

struct BackEnd {
  const char* name;
  std::unique_ptr<Backend> (*make)();
  double tolerance;
};

using Floats = std::vector<float>;

// The initial content of an output that must be overwritten.
Floats Garbage(int64_t size) { return Floats(size, std::numeric_limits<float>::quiet_NaN()); }

Floats BufferOf(const Tape& tape, int number) {
  return Garbage(number < 0 ? 0 : tape.buffers[number].words);
}

int NumberOf(const Graph& graph, const std::string& name) {
  int number = 0;
  while (number < graph.size() && graph[number].name != name) ++number;
  CHECK_LT(number, graph.size()) << "layer " << name << " does not exist";
  return number;
}

// The plan of one rank, without splits.
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

// Executes one layer of a model on one rank: the layers, parameters and statistics of the worker,
// with inputs and gradients from the test. Borrows the kernels.
class OneLayer {
 public:
  // The layer `name` of `graph`, for batches of `samples`. Requires: the layer exists and is not
  // the loss.
  OneLayer(Graph graph, const std::string& name, int64_t samples, Backend& kernels);

  const GraphLayer& layer() const { return graph_[number_]; }

  std::span<float> Parameter(const std::string& name) { return TensorOf(name).value; }
  std::span<float> Gradient(const std::string& name) { return TensorOf(name).gradient; }

  absl::StatusOr<Floats> Forward(bool training, const std::vector<Floats>& x);
  // Fills the parameters' gradients and returns the inputs' gradients (none for tokens).
  // Requires: the call before was Forward in training, with `x`.
  absl::StatusOr<std::vector<Floats>> Backward(const std::vector<Floats>& x, const Floats& dy);
  // Updates the running statistics as the optimizer does at the end of a step; weights are
  // unchanged.
  void UpdateStatistics();

 private:
  // The operation of this kind on the layer; null if the tape has none.
  const TapeOp* OpOf(const Tape& tape, TapeOpKind kind) const;
  LocalTensor TensorOf(const std::string& name);

  const Graph graph_;
  const ParameterIndex index_;
  const Plan plan_;
  int number_ = 0;
  Backend& kernels_;
  const std::vector<std::unique_ptr<Transport>> transports_;
  MeshCommunicators comms_;
  ParameterStore store_;
  const Tape training_;
  const Tape evaluation_;
  std::unique_ptr<Layer> layer_;
  // Results of the latest forward.
  Floats y_;
  Floats saved_;
};

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
                        .region = training_.regions[number_],
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

const TapeOp* OneLayer::OpOf(const Tape& tape, TapeOpKind kind) const {
  const auto found = std::find_if(tape.ops.begin(), tape.ops.end(), [&](const TapeOp& op) {
    return op.kind == kind && op.layer == number_;
  });
  return found == tape.ops.end() ? nullptr : &*found;
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

// Whether a tensor of a case is a result to compare.
bool IsResult(const std::string& name) {
  return absl::EndsWith(name, "/y") || absl::StrContains(name, "/dx") ||
         absl::StrContains(name, "/gradients/") || absl::StrContains(name, "/after/");
}

// The cases whose names begin with `kind`, with their specs in text format.
std::map<std::string, std::string> CasesOf(const Fixtures& fixtures, const std::string& kind) {
  std::map<std::string, std::string> cases;
  for (const auto& [name, text] : fixtures.texts()) {
    if (absl::StartsWith(name, kind)) cases.emplace(name, text);
  }
  return cases;
}

class Operations : public testing::TestWithParam<BackEnd> {
 protected:
  void Compare(const std::string& what, std::span<const float> got) {
    const double difference = RelativeDifference(got, fixtures_.Read(case_ + what));
    EXPECT_LT(difference, GetParam().tolerance) << what;
    if (difference > worst_) {
      worst_ = difference;
      worst_name_ = case_ + what;
    }
    ++compared_;
  }

  void Play(const Graph& graph) {
    std::vector<Floats> x;
    for (int i = 0; fixtures_.Has(absl::StrCat(case_, "x", i)); ++i) {
      x.push_back(fixtures_.Read(absl::StrCat(case_, "x", i)));
    }
    const Shape batch = fixtures_.ShapeOf(case_ + "x0");
    OneLayer layer(graph, "op", batch[0], *kernels_);
    ASSERT_EQ(batch, BatchShape(batch[0], layer.layer().input()));
    ASSERT_EQ(x.size(), layer.layer().inputs.size());
    for (const LayerParameter& parameter : layer.layer().parameters) {
      const std::string name = absl::StrCat(case_, "parameters/", parameter.name);
      ASSERT_EQ(fixtures_.ShapeOf(name), parameter.shape) << name;
      const Floats values = fixtures_.Read(name);
      std::copy(values.begin(), values.end(), layer.Parameter(parameter.name).begin());
    }
    if (fixtures_.Has(case_ + "evaluation/y")) {
      const auto y = layer.Forward(/*training=*/false, x);
      ASSERT_TRUE(y.ok()) << y.status();
      Compare("evaluation/y", *y);
    }
    if (fixtures_.Has(case_ + "y")) Train(layer, x);
  }

  void Train(OneLayer& layer, const std::vector<Floats>& x) {
    const auto y = layer.Forward(/*training=*/true, x);
    ASSERT_TRUE(y.ok()) << y.status();
    Compare("y", *y);
    const auto dx = layer.Backward(x, fixtures_.Read(case_ + "dy"));
    ASSERT_TRUE(dx.ok()) << dx.status();
    for (size_t i = 0; fixtures_.Has(absl::StrCat(case_, "dx", i)); ++i) {
      ASSERT_LT(i, dx->size());
      Compare(absl::StrCat("dx", i), (*dx)[i]);
    }
    for (const LayerParameter& parameter : layer.layer().parameters) {
      if (IsStatistic(parameter.role)) continue;
      Compare(absl::StrCat("gradients/", parameter.name), layer.Gradient(parameter.name));
    }
    layer.UpdateStatistics();
    for (const std::string& name : fixtures_.NamesUnder(case_ + "after/")) {
      Compare("after/" + name, layer.Parameter(name));
    }
  }

  void PlayLoss(const v1::SoftmaxCrossEntropy& loss) {
    const Shape shape = fixtures_.ShapeOf(case_ + "x0");
    const int64_t classes = shape[shape.rank() - 1];
    const int64_t rows = shape.elements() / classes;
    const Floats x = fixtures_.Read(case_ + "x0");
    std::vector<int32_t> labels;
    for (const float label : fixtures_.Read(case_ + "labels")) {
      labels.push_back(label);
    }
    Floats dx(x.size());
    const LossSums sums = kernels_->pointwise().SoftmaxCrossEntropy(
        rows, classes, loss.label_smoothing(), x, labels, 1.0F / rows, dx);
    const float y = sums.loss / rows;
    Compare("y", {&y, 1});
    Compare("dx0", dx);
  }

  const std::unique_ptr<Backend> kernels_ = GetParam().make();
  Fixtures fixtures_{"ops.safetensors"};
  // Name of the case, followed by a slash.
  std::string case_;
  int compared_ = 0;
  double worst_ = 0;
  std::string worst_name_;
};

TEST_P(Operations, EqualTorch) {
  for (const auto& [name, text] : CasesOf(fixtures_, "op/")) {
    SCOPED_TRACE(name);
    case_ = name + "/";
    const v1::Model model = Parse<v1::Model>(text);
    const int before = compared_;
    const v1::Layer& last = model.layer(model.layer_size() - 1);
    if (last.name() == "op") {
      PlayLoss(last.softmax_cross_entropy());
    } else {
      const auto graph = Graph::FromModel(model);
      ASSERT_TRUE(graph.ok()) << graph.status();
      Play(*graph);
    }
    EXPECT_GT(compared_, before);
  }
  const std::vector<std::string> names = fixtures_.NamesUnder("op/");
  EXPECT_EQ(compared_, std::count_if(names.begin(), names.end(), IsResult));
  RecordProperty("tensors", compared_);
  RecordProperty("worst_relative_difference", absl::StrCat(worst_, " of ", worst_name_));
}

TEST_P(Operations, OfOptimizersEqualTorch) {
  const auto model = Parse<v1::Model>(R"(
    input { channels: 1 height: 1 width: 3 }
    layer { name: "fc" fully_connected { out_features: 4 } }
    layer { name: "loss" softmax_cross_entropy {} }
  )");
  const Graph graph = *Graph::FromModel(model);
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  const std::vector<BucketOwnership> buckets = OwnershipOf(OneRankPlan(graph, index), index, 0);
  ASSERT_EQ(buckets.size(), 1U);
  const auto cases = CasesOf(fixtures_, "optimizer/");
  EXPECT_EQ(cases.size(), 7U);
  for (const auto& [name, text] : cases) {
    SCOPED_TRACE(name);
    case_ = name + "/";
    const auto optimizer = Parse<v1::Optimizer>(text);
    SliceOptimizer slice(*kernels_, optimizer, index, StatisticMomenta(graph, index), buckets[0]);
    StepNorms norms(optimizer, std::ssize(index.parameters()));
    const auto weight_and_bias = [&](const std::string& prefix, int step) {
      Floats values = fixtures_.Read(absl::StrCat(case_, prefix, "weight/", step));
      const Floats bias = fixtures_.Read(absl::StrCat(case_, prefix, "bias/", step));
      values.insert(values.end(), bias.begin(), bias.end());
      return values;
    };
    Floats weights = weight_and_bias("", 0);
    for (int step = 1; step <= 5; ++step) {
      const Floats gradients = weight_and_bias("gradients/", step);
      norms.Clear();
      slice.AddNorms(gradients, weights, norms);
      slice.Update(0.1F, norms, gradients, weights);
      EXPECT_LT(RelativeDifference(weights, weight_and_bias("", step)), GetParam().tolerance)
          << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    BackEnds, Operations,
    testing::Values(BackEnd{"Reference", MakeReferenceBackend, kReferenceTolerance},
                    BackEnd{"Cpu", [] { return MakeCpuBackend(1); }, kCpuTolerance},
                    BackEnd{"CpuInTwoThreads", [] { return MakeCpuBackend(2); }, kCpuTolerance}),
    [](const auto& info) { return std::string(info.param.name); });

// The fixtures contain every kind of layer of run.proto; dropout only in evaluation, because our
// random numbers differ.
TEST(Fixtures, HaveEveryOperation) {
  const Fixtures fixtures("ops.safetensors");
  std::set<int> kinds;
  for (const auto& [name, text] : CasesOf(fixtures, "op/")) {
    const v1::Model model = Parse<v1::Model>(text);
    for (const v1::Layer& layer : model.layer()) {
      if (layer.name() == "op") kinds.insert(layer.op_case());
    }
  }
  const auto* operations = v1::Layer::descriptor()->FindOneofByName("op");
  for (int i = 0; i < operations->field_count(); ++i) {
    const auto* field = operations->field(i);
    if (field->number() == v1::Layer::kUse) continue;  // stands for other layers
    EXPECT_TRUE(kinds.count(field->number()) > 0) << field->name();
  }
}

}  // namespace
}  // namespace cadre
