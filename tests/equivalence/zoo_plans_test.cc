// Random plans of every model of the zoo, made small, for 1 to 8 ranks. `build/bin/equivalence`
// tries more of them, or all.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/equivalence/comparison.h"
#include "tests/equivalence/small_models.h"
#include "tests/equivalence/zoo_folder.h"

namespace cadre {
namespace {

class ZooPlans : public testing::TestWithParam<std::string> {};

TEST_P(ZooPlans, EqualOneRank) {
  const auto spec = SmallModel(ZooFolder(), GetParam());
  ASSERT_TRUE(spec.ok()) << spec.status();
  Comparison comparison(*spec, [] { return MakeCpuBackend(1); });
  std::mt19937_64 random(7);
  std::vector<Plan> plans;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const auto drawn = comparison.Plans(ranks, 2, random);
    plans.insert(plans.end(), drawn.begin(), drawn.end());
  }
  const auto result = comparison.Run(plans);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->plans, 16);
  for (const std::string& failure : result->messages) ADD_FAILURE() << failure;
  EXPECT_EQ(result->failures, 0);
  RecordProperty("worst_relative_error", std::to_string(result->worst_relative_error));
}

INSTANTIATE_TEST_SUITE_P(Zoo, ZooPlans, testing::ValuesIn(ZooNames()), [](const auto& info) {
  std::string name = info.param;
  name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
  return name;
});

// Small enough for all of them: every pair of splits of every two neighbours.
TEST(AllPlans, OfSmallModelsEqualOneRank) {
  const std::vector<std::pair<std::string, int>> cases = {{"lenet", 2}, {"lenet", 3}, {"mlp", 4},
                                                          {"mlp", 6},   {"gpt", 2},   {"gpt", 3}};
  for (const auto& [model, ranks] : cases) {
    const auto spec = SmallModel(ZooFolder(), model);
    ASSERT_TRUE(spec.ok()) << spec.status();
    Comparison comparison(*spec, [] { return MakeCpuBackend(1); });
    std::mt19937_64 random(7);
    const auto result = comparison.Run(comparison.Plans(ranks, 0, random));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_GE(result->plans, 9) << model << " on " << ranks;
    for (const std::string& failure : result->messages) ADD_FAILURE() << failure;
    RecordProperty(model + std::to_string(ranks), result->plans);
  }
}

}  // namespace
}  // namespace cadre
