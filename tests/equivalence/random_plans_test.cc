// Random models under random plans, some of which place layers on some of the ranks, by seed, to
// test arbitrary combinations of operations and layouts.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/equivalence/random_model.h"
#include "tests/equivalence/test_plans.h"

namespace cadre {
namespace {

constexpr uint64_t kModels = 125;
constexpr int kPlansPerModel = 4;

// Half of the layers, in blocks of a few.
std::vector<Interval> RandomBlocks(const Plan& plan, std::mt19937_64& random) {
  const int64_t loss = std::ssize(plan.layers) - 1;
  std::vector<Interval> blocks;
  for (int64_t begin = 0; begin < loss;) {
    const int64_t end = std::min<int64_t>(loss, begin + 1 + random() % 6);
    if (random() % 2 == 0) blocks.push_back({begin, end});
    begin = end;
  }
  return blocks;
}

TEST(RandomModels, EqualOneRankUnderRandomPlans) {
  for (uint64_t seed = 1; seed <= kModels; ++seed) {
    const v1::RunSpec spec = RandomRun(seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << spec.DebugString());
    Comparison comparison(spec, OneThreadCpu);
    std::mt19937_64 random(seed);
    std::vector<Plan> plans;
    for (int i = 0; i < kPlansPerModel; ++i) {
      const int ranks = 2 + random() % 7;
      plans.push_back(i == 0 ? comparison.PlacedPlans(ranks, 1, random).front()
                             : comparison.Plans(ranks, 1, random).front());
      plans.back().recomputed = RandomBlocks(plans.back(), random);
    }
    ExpectEqual(comparison, plans);
  }
}

TEST(RandomModels, HaveEveryOperation) {
  std::set<std::string> kinds;
  for (uint64_t seed = 1; seed <= kModels; ++seed) {
    const auto graph = Graph::FromModel(RandomRun(seed).model());
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (const GraphLayer& layer : graph->layers()) kinds.insert(LayerKindName(layer.kind));
  }
  EXPECT_EQ(kinds.size(), 30U);
}

}  // namespace
}  // namespace cadre
