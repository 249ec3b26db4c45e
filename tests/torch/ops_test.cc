// Every operation and optimizer computes what PyTorch computes: the layers of worker/nn, on the
// reference and the CPU back end, are compared with ops.safetensors (written by make_fixtures.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/equivalence/test_plans.h"
#include "tests/torch/fixtures.h"
#include "tests/torch/one_layer.h"
#include "tests/worker/expect.h"
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

std::string FixturesFolder() { return ArgumentOr("--fixtures=", "tests/torch"); }

Fixtures OpenFixtures() {
  auto fixtures = Fixtures::Open(FixturesFolder() + "/ops.safetensors");
  CHECK(fixtures.ok()) << fixtures.status();
  return *std::move(fixtures);
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
      const auto y = layer.Evaluate(x);
      ASSERT_TRUE(y.ok()) << y.status();
      Compare("evaluation/y", *y);
    }
    if (fixtures_.Has(case_ + "y")) Train(layer, x);
  }

  void Train(OneLayer& layer, const std::vector<Floats>& x) {
    const auto y = layer.Train(x);
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
  Fixtures fixtures_ = OpenFixtures();
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
    const auto both = [&](const std::string& prefix, int step) {
      Floats values = fixtures_.Read(absl::StrCat(case_, prefix, "weight/", step));
      const Floats bias = fixtures_.Read(absl::StrCat(case_, prefix, "bias/", step));
      values.insert(values.end(), bias.begin(), bias.end());
      return values;
    };
    Floats weights = both("", 0);
    for (int step = 1; step <= 5; ++step) {
      const Floats gradients = both("gradients/", step);
      norms.Clear();
      slice.AddNorms(gradients, weights, norms);
      slice.Update(0.1F, norms, gradients, weights);
      EXPECT_LT(RelativeDifference(weights, both("", step)), GetParam().tolerance)
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
  const Fixtures fixtures = OpenFixtures();
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
