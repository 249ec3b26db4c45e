// Every operation and optimiser computes what PyTorch computes: ops.safetensors (made by
// make_fixtures.py) against the layers of worker/nn, on the reference kernels and on the CPU's.
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
#include "google/protobuf/text_format.h"
#include "tests/torch/fixtures.h"
#include "tests/torch/folder.h"
#include "tests/torch/one_layer.h"
#include "worker/optim/slice_optimizer.h"

namespace cadre {
namespace {

// Of RelativeDifference. The fixtures are exact (computed in float64, rounded once), so only our
// own rounding counts, at most 2^-24 = 6e-8 of an element each time. The reference sums in double
// and rounds what it stores: attention, the longest, stores six times before a gradient is there.
constexpr double kReferenceTolerance = 5e-7;
// The CPU sums in float32, in its own order, up to some hundred terms (about sqrt(100) roundings),
// and has approximations of its own for exponentials and erf.
constexpr double kCpuTolerance = 5e-6;

struct BackEnd {
  const char* name;
  std::unique_ptr<Backend> (*make)();
  double tolerance;
};

Fixtures OpenFixtures() {
  auto fixtures = Fixtures::Open(absl::StrCat(FixturesFolder(), "/ops.safetensors"));
  if (!fixtures.ok()) {
    ADD_FAILURE() << fixtures.status();
    std::abort();
  }
  return *std::move(fixtures);
}

// Whether a tensor of a case is a result, to be compared.
bool IsResult(const std::string& name) {
  return absl::EndsWith(name, "/y") || absl::StrContains(name, "/dx") ||
         absl::StrContains(name, "/gradients/") || absl::StrContains(name, "/after/");
}

// Names of the cases whose names begin with `kind`, and what they are.
std::map<std::string, std::string> CasesOf(const Fixtures& fixtures, const std::string& kind) {
  std::map<std::string, std::string> cases;
  for (const auto& [name, text] : fixtures.texts()) {
    if (absl::StartsWith(name, kind)) cases.emplace(name, text);
  }
  return cases;
}

v1::Model ParseModel(const std::string& text) {
  v1::Model model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &model)) << text;
  return model;
}

class Operations : public testing::TestWithParam<BackEnd> {
 protected:
  void Compare(const std::string& what, std::span<const float> got) {
    const double apart = RelativeDifference(got, fixtures_.Read(case_ + what));
    EXPECT_LT(apart, GetParam().tolerance) << what;
    if (apart > worst_) {
      worst_ = apart;
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
      labels.push_back(static_cast<int32_t>(label));
    }
    Floats dx(x.size());
    const LossSums sums = kernels_->pointwise().SoftmaxCrossEntropy(
        rows, classes, loss.label_smoothing(), x, labels, 1.0F / static_cast<float>(rows), dx);
    const Floats y = {static_cast<float>(sums.loss / static_cast<double>(rows))};
    Compare("y", y);
    Compare("dx0", dx);
  }

  const std::unique_ptr<Backend> kernels_ = GetParam().make();
  Fixtures fixtures_ = OpenFixtures();
  // Name of the case, with a slash.
  std::string case_;
  int compared_ = 0;
  double worst_ = 0;
  std::string worst_name_;
};

TEST_P(Operations, AreThoseOfTorch) {
  for (const auto& [name, text] : CasesOf(fixtures_, "op/")) {
    SCOPED_TRACE(name);
    case_ = name + "/";
    const v1::Model model = ParseModel(text);
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

TEST_P(Operations, OfOptimisersAreThoseOfTorch) {
  v1::Model model = ParseModel(R"(
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
    v1::Optimizer optimizer;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &optimizer)) << text;
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

// What a layer of run.proto can be, the fixtures have; dropout only in evaluation, since what it
// drops is our own choice.
TEST(Fixtures, HaveEveryOperation) {
  const Fixtures fixtures = OpenFixtures();
  std::set<int> had;
  for (const auto& [name, text] : CasesOf(fixtures, "op/")) {
    const v1::Model model = ParseModel(text);
    for (const v1::Layer& layer : model.layer()) {
      if (layer.name() == "op") had.insert(layer.op_case());
    }
  }
  const auto* operations = v1::Layer::descriptor()->FindOneofByName("op");
  for (int i = 0; i < operations->field_count(); ++i) {
    const auto* field = operations->field(i);
    if (field->number() == v1::Layer::kUse) continue;  // stands for other layers
    EXPECT_TRUE(had.count(field->number()) > 0) << field->name();
  }
}

}  // namespace
}  // namespace cadre
