// Training under plans has the results of one worker on the host if the ranks are threads on one
// emulated device that exchange data by copies. gpu_plans_test.cc does the same on a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plan/search/planner.h"
#include "tests/emulator/emulated_cuda.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/equivalence/card_group.h"
#include "tests/equivalence/pipeline_case.h"
#include "tests/equivalence/test_plans.h"

namespace cadre {
namespace {

using Mode = EmulatedCuda::Mode;

// Members are destroyed in reverse order.
struct EmulatedCard {
  explicit EmulatedCard(Mode mode, absl::Duration limit = absl::Minutes(2))
      : machine(mode),
        group(
            machine.api(),
            [this]() -> absl::StatusOr<CardRank> {
              EmulatedRank rank = MakeEmulatedRank(machine);
              return CardRank{std::move(rank.device), std::move(rank.kernels)};
            },
            limit) {}

  EmulatedCuda machine;
  CardGroup group;
};

class CardPlans : public testing::TestWithParam<PlanCase> {};

TEST_P(CardPlans, EqualOneRankOnTheHost) {
  for (const Mode mode : {Mode::kInline, Mode::kThreads}) {
    SCOPED_TRACE(mode == Mode::kInline ? "inline" : "threads");
    EmulatedCard card(mode);
    Comparison comparison(ZooSpec(GetParam().model), OneThreadCpu, card.group.trainer());
    ExpectEqual(comparison, PlansOf(GetParam(), comparison));
  }
}

const auto kName = [](const auto& info) { return CaseName(info.param); };

INSTANTIATE_TEST_SUITE_P(Zoo, CardPlans,
                         testing::Values(PlanCase{"lenet", 1, 1}, PlanCase{"lenet", 2, 4},
                                         PlanCase{"gpt", 4, 2}, PlanCase{"mlp", 4, 4},
                                         PlanCase{"resnet18", 2, 1}, PlanCase{"lenet", 2, 4, true},
                                         PlanCase{"gpt", 4, 2, true}),
                         kName);

// As on a GPU. Takes minutes: --gtest_also_run_disabled_tests.
INSTANTIATE_TEST_SUITE_P(DISABLED_AllOfGpuPlans, CardPlans, testing::ValuesIn(AllPlanCases()),
                         kName);

TEST(CardCollectives, NativeEqualOneRank) {
  EmulatedCard card(Mode::kThreads);
  for (const char* const model : {"lenet", "gpt"}) {
    Comparison comparison(ZooSpec(model), OneThreadCpu, card.group.trainer());
    std::mt19937_64 random(12);
    std::vector<Plan> plans = comparison.Plans(3, 1, random);
    for (Bucket& bucket : plans[0].buckets) bucket.algorithm = Algorithm::kNative;
    const int64_t before = card.group.nccl().calls("all_reduce") +
                           card.group.nccl().calls("reduce_scatter") +
                           card.group.nccl().calls("reduce");
    ExpectEqual(comparison, plans);
    EXPECT_GT(card.group.nccl().calls("all_reduce") + card.group.nccl().calls("reduce_scatter") +
                  card.group.nccl().calls("reduce"),
              before);
  }
}

TEST(CardPipeline, HasTheSameBitsInEveryOrder) {
  const PipelineCase tried{
      .model = "lenet", .stages = 2, .data = 2, .micro_batches = 3, .batch = 12};
  v1::RunSpec spec = SpecOf(tried);
  const Graph graph = *Graph::FromModel(spec.model());
  std::vector<GroupResult> results;
  for (const Mode mode : {Mode::kInline, Mode::kThreads}) {
    for (const auto pipeline : {v1::Cluster::NO_PIPELINE, v1::Cluster::ONE_FORWARD_ONE_BACKWARD,
                                v1::Cluster::ALL_FORWARD_FIRST}) {
      EmulatedCard card(mode);
      spec.mutable_cluster()->set_pipeline(pipeline);
      auto result =
          card.group.trainer()(spec, *MakePlan(spec, tried.ranks()),
                               {.steps = 3, .batches = RandomBatches(graph, tried.batch, 5)});
      ASSERT_TRUE(result.ok()) << result.status();
      results.push_back(*std::move(result));
      EXPECT_EQ(results.back().losses, results[0].losses);
      EXPECT_TRUE(results.back().weights == results[0].weights);
    }
  }
}

// One rank fails in the middle of a step; the others end with its error, well within the limit.
TEST(CardFailure, ReleasesAllRanks) {
  for (const Mode mode : {Mode::kInline, Mode::kThreads}) {
    EmulatedCard card(mode, absl::Minutes(10));
    Comparison comparison(ZooSpec("lenet"), OneThreadCpu, card.group.trainer());
    std::mt19937_64 random(3);
    const std::vector<Plan> plans = comparison.Plans(3, 1, random);
    card.group.nccl().FailNext("group_end", ncclInternalError, /*after=*/20);
    const auto result = comparison.Run(plans);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->failures, 1);
    EXPECT_THAT(result->messages[0], testing::HasSubstr("internal error"));
    EXPECT_EQ(card.group.nccl().live_communicators(), 0);
    // The card remains usable for a new group.
    ExpectEqual(comparison, plans);
  }
}

}  // namespace
}  // namespace cadre
