// Under `precision: BF16` on CPUs, training follows the curve of fp32, and all plans follow one
// another, up to what rounding explains.
//
// Bounds. Rounding to bf16 has a relative error of at most u = 2^-8. How much a network and its
// training amplify such errors is not derived but measured: fp32 runs whose initial weights are
// multiplied by 1 + u or 1 - u at random deviate from the fp32 run by the effect of one rounding of
// each weight. In a bf16 step each layer rounds its weights, its output and the gradient of its
// input, and what a layer saves for backward is rounded too: four roundings of similar size, with
// errors of random sign in different places. Their deviation is twice that of one; a factor of two
// more covers the scatter between a few runs.
//
// Plans are compared with one rank. Both deviate from fp32 by independent roundings, so their
// distance is at most the sum of the two deviations; the deviation of one rank is measured. A plan
// rounds the addends of sums over ranks, too, for which the bound has another such term.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "plan/search/planner.h"
#include "tests/equivalence/test_plans.h"

namespace cadre {
namespace {

constexpr double kRounding = 0x1.0p-8;
constexpr double kCurveFactor = 4;
constexpr double kPlanFactor = 3;

class Bf16 : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const absl::Status status = MakeCpuBackend(1)->SetPrecision(Precision::kBf16);
    if (!status.ok()) GTEST_SKIP() << status.message();
  }

  GroupResult Train(v1::RunSpec::Precision precision, const Training& training) {
    v1::RunSpec spec = spec_;
    spec.set_precision(precision);
    const auto plan = MakePlan(spec, 1);
    auto result = plan.ok() ? ranks_.Train(spec, *plan, training) : plan.status();
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : GroupResult();
  }

  // Version 0 with one rounding of every weight.
  std::vector<float> RoundedWeights(uint64_t seed) const {
    std::vector<float> weights = InitialWeights(index_, spec_.seed());
    for (size_t i = 0; i < weights.size(); ++i) {
      const bool up = RandomBits(seed, RandomStream::kTest, 0, i) % 2 == 0;
      weights[i] *= up ? 1 + kRounding : 1 - kRounding;
    }
    return weights;
  }

  const v1::RunSpec spec_ = ZooSpec(GetParam());
  const Graph graph_ = *Graph::FromModel(spec_.model());
  const ParameterIndex index_ = ParameterIndex::FromGraph(graph_);
  const BatchMaker batches_ = RandomBatches(graph_, spec_.batch_per_group(), spec_.seed());
  Ranks ranks_{KernelsFactory(OneThreadCpu)};
};

double MaxDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = std::max(difference, std::abs(a[i] - b[i]));
  return difference;
}

// The same eight batches again and again, so that the loss falls.
TEST_P(Bf16, FollowsTheCurveOfFp32) {
  Training training{
      .steps = 50, .rate = 0.01F, .batches = [this](int64_t step) { return batches_(step % 8); }};
  const std::vector<double> wide = Train(v1::RunSpec::FP32, training).losses;
  const std::vector<double> narrow = Train(v1::RunSpec::BF16, training).losses;
  double deviation = 0;
  for (const uint64_t seed : {1, 2, 3}) {
    training.initial = RoundedWeights(seed);
    deviation = std::max(deviation, MaxDifference(Train(v1::RunSpec::FP32, training).losses, wide));
  }
  ASSERT_EQ(narrow.size(), 50u);
  EXPECT_LT(MaxDifference(narrow, wide), kCurveFactor * deviation);
  EXPECT_NE(narrow, wide) << "bf16 has an effect";
  RecordProperty("deviation", std::to_string(MaxDifference(narrow, wide)));
  RecordProperty("bound", std::to_string(kCurveFactor * deviation));
}

TEST_P(Bf16, PlansEqualOneRank) {
  const Training training = Comparison::TrainingOf(spec_, graph_);
  const double deviation = RelativeError(index_, InitialWeights(index_, spec_.seed()),
                                         Train(v1::RunSpec::FP32, training).weights,
                                         Train(v1::RunSpec::BF16, training).weights);
  v1::RunSpec spec = spec_;
  spec.set_precision(v1::RunSpec::BF16);
  Comparison comparison(spec, OneThreadCpu, kPlanFactor * deviation);
  std::mt19937_64 random(9);
  std::vector<Plan> plans;
  for (const int ranks : {1, 2, 3, 4}) {
    const auto drawn = comparison.Plans(ranks, 2, random);
    plans.insert(plans.end(), drawn.begin(), drawn.end());
  }
  const ComparisonResult result = ExpectEqual(comparison, plans);
  RecordProperty("worst_relative_error", std::to_string(result.worst_relative_error));
  RecordProperty("bound", std::to_string(kPlanFactor * deviation));
}

INSTANTIATE_TEST_SUITE_P(Zoo, Bf16, testing::Values("lenet", "alexnet", "resnet18", "gpt"),
                         [](const auto& info) { return TestName(info.param); });

}  // namespace
}  // namespace cadre
