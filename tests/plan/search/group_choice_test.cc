#include "plan/search/group_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "plan/cost/hierarchical_averaging.h"
#include "tests/plan/profile.h"
#include "tests/plan/search/small_model.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

class GroupChoiceTest : public ::testing::Test {
 protected:
  // Equal workers with 10 Gbit/s and 10 Gflop/s.
  GroupsProblem Uniform(int workers) {
    GroupsProblem problem{
        .spec = &spec_, .graph = &graph_, .index = &index_, .workers = workers, .samples = 64'000};
    problem.uniform = UniformHardware({.alpha = 50e-6, .beta = 0.8e-9}, 1e10);
    return problem;
  }

  // Epochs by number of workers with 64 samples each; negative: target not reached.
  static v1::EpochsTable Table(const std::vector<std::pair<uint32_t, double>>& epochs) {
    v1::EpochsTable table;
    table.set_batch_per_worker(64);
    for (const auto& [workers, needed] : epochs) {
      v1::EpochsEntry& entry = *table.add_entry();
      entry.set_workers(workers);
      entry.set_epochs(std::abs(needed));
      entry.set_reached(needed > 0);
    }
    return table;
  }

  static const GroupChoice* Find(const GroupsResult& result, int groups) {
    for (const GroupChoice& choice : result.choices) {
      if (choice.groups == groups) return &choice;
    }
    return nullptr;
  }

  testing::SmallModel model_{16, {1024, 1024, 16}, 64};
  v1::RunSpec& spec_ = model_.spec;
  const Graph& graph_ = model_.graph;
  const ParameterIndex& index_ = model_.index;
};

TEST_F(GroupChoiceTest, OneGroupWithoutTable) {
  GroupsProblem problem = Uniform(8);
  auto result = ChooseGroups(problem);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->choices.size(), 1u);
  EXPECT_EQ(result->best().groups, 1);
  EXPECT_EQ(result->best().every_steps, 0);
  EXPECT_THAT(result->reason, HasSubstr("the number of epochs that they need is unknown"));
  problem.max_groups = 4;
  result = ChooseGroups(problem);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->choices.size(), 3u);
  EXPECT_EQ(Find(*result, 8), nullptr);
  EXPECT_FALSE(result->best().seconds_to_target.has_value());
}

TEST_F(GroupChoiceTest, Formula) {
  v1::EpochsTable table = Table({{1, 4}, {2, 4.5}, {4, 6}});
  spec_.mutable_averaging()->set_every_steps(8);
  GroupsProblem problem = Uniform(4);
  problem.epochs = &table;
  const auto result = ChooseGroups(problem);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->choices.size(), 3u);
  const GroupChoice* two = Find(*result, 2);
  ASSERT_NE(two, nullptr);
  EXPECT_EQ(two->ranks, 2);
  EXPECT_EQ(two->every_steps, 8);
  // n / 2 words and one message in each direction.
  const double n = index_.size();
  EXPECT_DOUBLE_EQ(two->averaging_seconds, 2 * 50e-6 + 2 * (n / 2) * 4 * 0.8e-9);
  EXPECT_EQ(two->bytes_per_average, TrafficOfRound(index_.size(), 2, 2).bytes_per_round);
  EXPECT_DOUBLE_EQ(two->seconds_per_step(), two->step_seconds + two->averaging_seconds / 8);
  EXPECT_DOUBLE_EQ(two->seconds_per_epoch, 500 * two->seconds_per_step());
  EXPECT_DOUBLE_EQ(*two->epochs, 4.5);
  EXPECT_DOUBLE_EQ(*two->seconds_to_target, 4.5 * two->seconds_per_epoch);
  for (size_t c = 1; c < result->choices.size(); ++c) {
    EXPECT_GE(*result->choices[c].seconds_to_target, *result->choices[c - 1].seconds_to_target);
  }
}

TEST_F(GroupChoiceTest, AggregatorLinksLimitAverages) {
  GroupsProblem problem = Uniform(8);
  problem.groups = 8;
  auto leaders = ChooseGroups(problem);
  ASSERT_TRUE(leaders.ok()) << leaders.status();
  spec_.mutable_cluster()->set_aggregators(1);
  auto one = ChooseGroups(problem);
  ASSERT_TRUE(one.ok());
  const double n = index_.size();
  EXPECT_DOUBLE_EQ(leaders->best().averaging_seconds, 2 * 50e-6 + 2 * n * 4 * 0.8e-9);
  // The models of all eight groups cross the aggregator's link.
  EXPECT_DOUBLE_EQ(one->best().averaging_seconds, 2 * 50e-6 + 8 * 2 * n * 4 * 0.8e-9);
}

// If epochs do not depend on the batch, groups of one rank are best; if epochs grow rapidly, a
// single group is. Otherwise there is a number of groups from which on ranks are better used inside
// groups.
TEST_F(GroupChoiceTest, HybridRule) {
  const v1::EpochsTable flat = Table({{1, 4}, {2, 4}, {4, 4}, {8, 4}});
  GroupsProblem problem = Uniform(8);
  // Fast compute, so that communication matters.
  problem.uniform.flops = 1e12;
  spec_.mutable_averaging()->set_every_steps(64);
  problem.epochs = &flat;
  auto result = ChooseGroups(problem);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->best().groups, 8);
  EXPECT_FALSE(result->crossover);
  EXPECT_THAT(result->reason, HasSubstr("more groups were not possible"));

  const v1::EpochsTable steep = Table({{1, 4}, {2, 40}, {4, 400}, {8, 4000}});
  problem.epochs = &steep;
  result = ChooseGroups(problem);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->best().groups, 1);
  EXPECT_TRUE(result->crossover);
  ASSERT_TRUE(result->more.has_value());
  EXPECT_EQ(result->more->groups, 2);
  EXPECT_GT(result->more_time_ratio, 1);
  EXPECT_THAT(result->reason,
              HasSubstr("from 1 groups on, ranks are better used inside groups (8 per group)"));

  const v1::EpochsTable knee = Table({{1, 4}, {2, 4}, {4, 4}, {8, 400}});
  problem.epochs = &knee;
  result = ChooseGroups(problem);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->best().groups, 4);
  EXPECT_EQ(result->best().ranks, 2);
  EXPECT_TRUE(result->crossover);
}

TEST_F(GroupChoiceTest, RejectsUnmeasuredBatches) {
  const v1::EpochsTable table = Table({{1, 4}, {2, 5}, {4, -50}});
  GroupsProblem problem = Uniform(8);
  problem.epochs = &table;
  const auto result = ChooseGroups(problem);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->choices.size(), 2u);
  ASSERT_EQ(result->rejected.size(), 2u);
  EXPECT_EQ(result->rejected[0].groups, 4);
  EXPECT_THAT(result->rejected[0].reason, HasSubstr("did not reach the target"));
  EXPECT_EQ(result->rejected[1].groups, 8);
}

// The interval is within the convergence bound and no longer than needed to make averages cheap.
TEST_F(GroupChoiceTest, StepsBetweenAverages) {
  GroupsProblem problem = Uniform(2);
  problem.groups = 2;
  auto unknown = ChooseGroups(problem);
  ASSERT_TRUE(unknown.ok());
  EXPECT_EQ(unknown->best().every_steps, 1);
  // (T / 8)^(1/4) for T = 8 * 10^4 steps is 10: at most 8 steps.
  spec_.mutable_stop()->set_steps(80'000);
  auto bounded = ChooseGroups(problem);
  ASSERT_TRUE(bounded.ok());
  EXPECT_EQ(bounded->best().every_steps, 8);
  // If the link costs nothing, a longer interval is not needed.
  problem.uniform = UniformHardware({.alpha = 0, .beta = 1e-15}, 1e10);
  auto free = ChooseGroups(problem);
  ASSERT_TRUE(free.ok());
  EXPECT_EQ(free->best().every_steps, 1);
  spec_.mutable_averaging()->set_every_steps(32);
  auto pinned = ChooseGroups(problem);
  ASSERT_TRUE(pinned.ok());
  EXPECT_EQ(pinned->best().every_steps, 32);
}

// Two hosts of four workers: groups of four use their host's link.
TEST_F(GroupChoiceTest, GroupsUseFastLinksInside) {
  const v1::ClusterProfile profile = testing::ProfileOf(R"(
      host { name: "a" workers: 4 device: "d" inside { alpha: 1e-6 beta: 1e-10 } }
      host { name: "b" workers: 4 device: "slow" inside { alpha: 1e-6 beta: 1e-10 } }
      default_link { alpha: 1e-3 beta: 1e-7 }
      device { name: "d" flops: 1e12 } device { name: "slow" flops: 5e11 })");
  GroupsProblem problem = Uniform(8);
  problem.profile = &profile;
  problem.max_groups = 8;
  const auto result = ChooseGroups(problem);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->choices.size(), 4u);
  const GroupChoice* one = Find(*result, 1);
  const GroupChoice* two = Find(*result, 2);
  ASSERT_TRUE(one != nullptr && two != nullptr);
  // One group of eight ranks uses the slow link; two groups of four use fast links.
  EXPECT_GT(one->step_seconds, two->step_seconds);
  // Averages use the slow link.
  const double n = index_.size();
  EXPECT_DOUBLE_EQ(two->averaging_seconds, 2 * 1e-3 + 2 * (n / 4) * 4 * 1e-7);
}

TEST_F(GroupChoiceTest, Pins) {
  GroupsProblem problem = Uniform(12);
  problem.ranks = 3;
  const auto result = ChooseGroups(problem);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->choices.size(), 1u);
  EXPECT_EQ(result->best().groups, 4);
  problem.groups = 3;
  EXPECT_THAT(std::string(ChooseGroups(problem).status().message()),
              HasSubstr("3 groups of 3 ranks are not 12 workers"));
  problem.ranks = 0;
  problem.groups = 5;
  EXPECT_THAT(std::string(ChooseGroups(problem).status().message()),
              HasSubstr("groups is 5, which does not divide the 12 workers"));
}

TEST_F(GroupChoiceTest, InvalidProblems) {
  v1::EpochsTable table = Table({{1, 4}});
  GroupsProblem problem = Uniform(4);
  problem.epochs = &table;
  problem.samples = 0;
  EXPECT_EQ(ChooseGroups(problem).status().code(), absl::StatusCode::kInvalidArgument);
  problem.samples = 100;
  table.set_batch_per_worker(0);
  EXPECT_EQ(ChooseGroups(problem).status().code(), absl::StatusCode::kInvalidArgument);
  problem = Uniform(4);
  problem.uniform.memory_bytes = 1000;
  EXPECT_EQ(ChooseGroups(problem).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace cadre
