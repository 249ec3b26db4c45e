// Random models under random plans, by seed: whatever operations meet on whatever layouts.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/equivalence/comparison.h"
#include "tests/equivalence/random_model.h"

namespace cadre {
namespace {

constexpr uint64_t kModels = 125;
constexpr size_t kPlansEach = 4;

TEST(RandomModels, EqualOneRankUnderRandomPlans) {
  int plans = 0;
  for (uint64_t seed = 1; seed <= kModels; ++seed) {
    const v1::RunSpec spec = RandomRun(seed);
    Comparison comparison(spec, [] { return MakeCpuBackend(1); });
    std::mt19937_64 random(seed);
    std::vector<Plan> drawn;
    for (size_t i = 0; i < kPlansEach; ++i) {
      const int ranks = 2 + static_cast<int>(random() % 7);
      drawn.push_back(comparison.Plans(ranks, 1, random).front());
    }
    const auto result = comparison.Run(drawn);
    ASSERT_TRUE(result.ok()) << "seed " << seed << ": " << result.status() << "\n"
                             << spec.DebugString();
    for (const std::string& failure : result->messages) {
      ADD_FAILURE() << "seed " << seed << ": " << failure << spec.DebugString();
    }
    plans += result->plans;
  }
  EXPECT_EQ(plans, 500);
}

TEST(RandomModels, HaveEveryOperation) {
  std::set<std::string> seen;
  for (uint64_t seed = 1; seed <= kModels; ++seed) {
    const auto graph = Graph::FromModel(RandomRun(seed).model());
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (const GraphLayer& layer : graph->layers()) seen.insert(LayerKindName(layer.kind));
  }
  EXPECT_EQ(seen.size(), 19U);
}

}  // namespace
}  // namespace cadre
