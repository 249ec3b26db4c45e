#include "plan/memory_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/memory.h"
#include "plan/recomputation.h"
#include "tests/plan/tape_fixture.h"

namespace cadre {
namespace {

// Attention has five heads, of which the second of two ranks has three.
std::string Transformer() {
  std::string text =
      "optimizer { sgd {} } batch_per_group: 8 model { tokens { length: 16 } "
      "layer { name: 'embed' embedding { vocabulary: 5 features: 10 } } ";
  std::string before = "embed";
  for (int b = 1; b <= 6; ++b) {
    absl::StrAppend(&text, "layer { name: 'norm", b, "' input: '", before, "' layer_norm {} } ",
                    "layer { name: 'attention", b, "' attention { heads: 5 } } ",
                    "layer { name: 'add", b, "' input: '", before, "' input: 'attention", b,
                    "' add {} } ");
    before = absl::StrCat("add", b);
  }
  return text +
         "layer { name: 'head' fully_connected { out_features: 5 } } "
         "layer { name: 'loss' softmax_cross_entropy {} } }";
}

class MemoryFitTest : public ::testing::Test {
 protected:
  int64_t BytesOf(int rank, size_t blocks) const {
    Plan plan = plan_;
    plan.recomputed.assign(blocks_.begin(), blocks_.begin() + blocks);
    return DeviceBytes(PlannedMemory(spec_, graph_, index_, plan, rank, v1::Cluster::CPU, 1),
                       v1::Cluster::CPU);
  }
  MemoryFit Fit(const std::vector<int64_t>& limits, Plan& plan) const {
    return RecomputeAsNeeded(spec_, graph_, index_, v1::Cluster::CPU, limits, blocks_, plan);
  }

  const v1::RunSpec spec_ = testing::SpecOf(Transformer());
  const Graph graph_ = *Graph::FromModel(spec_.model());
  const ParameterIndex index_ = ParameterIndex::FromGraph(graph_);
  const Plan plan_ = testing::PlanSplitting(graph_, "heads", 2);
  const std::vector<Interval> blocks_ = RecomputationBlocks(graph_);
};

TEST_F(MemoryFitTest, RanksWithLargerPartsCount) {
  ASSERT_GE(blocks_.size(), 3U);
  for (size_t n = 0; n <= blocks_.size(); ++n) {
    SCOPED_TRACE(n);
    const int64_t limit = BytesOf(1, n);
    ASSERT_LT(BytesOf(0, n), limit) << "rank 0 has fewer heads";
    if (n > 0) {
      ASSERT_GT(BytesOf(1, n - 1), limit);
    }
    Plan plan = plan_;
    const MemoryFit fit = Fit({limit, limit}, plan);
    EXPECT_TRUE(fit.fits);
    EXPECT_EQ(fit.bytes, limit);
    EXPECT_EQ(plan.recomputed.size(), n);
    EXPECT_EQ(FitOf(spec_, graph_, index_, plan, v1::Cluster::CPU, std::vector{limit, limit}).bytes,
              limit);
  }
}

TEST_F(MemoryFitTest, EveryRankHasItsLimit) {
  // Rank 0 needs all blocks, although rank 1, which needs more, has room.
  Plan plan = plan_;
  const int64_t all = BytesOf(0, blocks_.size());
  EXPECT_TRUE(Fit({all, BytesOf(1, 0)}, plan).fits);
  EXPECT_EQ(plan.recomputed.size(), blocks_.size());
  EXPECT_TRUE(Fit({0, 0}, plan).fits) << "unknown limits";
  EXPECT_TRUE(plan.recomputed.empty());
  EXPECT_FALSE(Fit({all - 1, 0}, plan).fits);
  EXPECT_EQ(plan.recomputed.size(), blocks_.size());
}

}  // namespace
}  // namespace cadre
