// Random plans of small versions of all models of the zoo, for 1 to 8 ranks.
// `build/bin/equivalence` compares more of them, or all.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/equivalence/test_plans.h"

namespace cadre {
namespace {

class ZooPlans : public testing::TestWithParam<std::string> {};

TEST_P(ZooPlans, EqualOneRank) {
  Comparison comparison(ZooSpec(GetParam()), OneThreadCpu);
  std::mt19937_64 random(7);
  std::vector<Plan> plans;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const auto drawn = comparison.Plans(ranks, 2, random);
    plans.insert(plans.end(), drawn.begin(), drawn.end());
  }
  const ComparisonResult result = ExpectEqual(comparison, plans);
  RecordProperty("worst_relative_error", std::to_string(result.worst_relative_error));
}

// Layers exist on some of the ranks only, and are split over the others.
TEST_P(ZooPlans, EqualOneRankIfPlaced) {
  Comparison comparison(ZooSpec(GetParam()), OneThreadCpu);
  std::mt19937_64 random(8);
  std::vector<Plan> plans;
  for (const int ranks : {2, 3, 4, 6}) {
    const auto drawn = comparison.PlacedPlans(ranks, 2, random);
    plans.insert(plans.end(), drawn.begin(), drawn.end());
  }
  ExpectEqual(comparison, plans);
}

INSTANTIATE_TEST_SUITE_P(Zoo, ZooPlans, testing::ValuesIn(SmallModelNames()),
                         [](const auto& info) { return TestName(info.param); });

// Small enough for every pair of splits of every two neighbors.
TEST(AllPlans, OfSmallModelsEqualOneRank) {
  const std::vector<std::pair<std::string, int>> cases = {
      {"lenet", 2}, {"lenet", 3},      {"mlp", 4},     {"mlp", 6},    {"gpt", 2},
      {"gpt", 3},   {"gpt-padded", 2}, {"biglstm", 2}, {"biglstm", 3}};
  for (const auto& [model, ranks] : cases) {
    Comparison comparison(ZooSpec(model), OneThreadCpu);
    std::mt19937_64 random(7);
    const ComparisonResult result = ExpectEqual(comparison, comparison.Plans(ranks, 0, random));
    EXPECT_GE(result.plans, 9) << model << " on " << ranks;
    RecordProperty(model + std::to_string(ranks), result.plans);
  }
}

}  // namespace
}  // namespace cadre
