#include "coordinator/plan/group_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cost/hierarchical_averaging.h"
#include "spec/cluster_profile.h"
#include "spec/text.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr char kSpec[] = R"pb(
  model {
    input { channels: 1 height: 16 width: 16 }
    layer {
      name: "fc1"
      fully_connected { out_features: 1024 }
    }
    layer {
      name: "fc2"
      fully_connected { out_features: 1024 }
    }
    layer {
      name: "fc3"
      fully_connected { out_features: 16 }
    }
    layer {
      name: "loss"
      softmax_cross_entropy {}
    }
  }
  batch_per_group: 64
  optimizer { sgd {} }
)pb";

class GroupChoiceTest : public ::testing::Test {
 protected:
  GroupChoiceTest() : spec_(ParseRunSpec("spec", kSpec)->spec) {}

  // Workers that are alike, at 10 Gbit/s and 10 Gflop/s.
  GroupsQuestion Uniform(int workers) {
    GroupsQuestion question{
        .spec = &spec_, .graph = &graph_, .index = &index_, .workers = workers, .samples = 64'000};
    question.uniform = UniformMachine({.alpha = 50e-6, .beta = 0.8e-9}, 1e10);
    return question;
  }

  // Epochs by workers of 64 samples; below 0: not reached after so many.
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

  static const GroupChoice* Find(const GroupsAnswer& answer, int groups) {
    for (const GroupChoice& choice : answer.choices) {
      if (choice.groups == groups) return &choice;
    }
    return nullptr;
  }

  v1::RunSpec spec_;
  const Graph graph_ = *Graph::FromModel(spec_.model());
  const ParameterIndex index_ = ParameterIndex::FromGraph(graph_);
};

TEST_F(GroupChoiceTest, WithoutATableOneGroupUnlessAsked) {
  GroupsQuestion question = Uniform(8);
  auto answer = ChooseGroups(question);
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->choices.size(), 1u);
  EXPECT_EQ(answer->best().groups, 1);
  EXPECT_EQ(answer->best().every_steps, 0);
  EXPECT_THAT(answer->why, HasSubstr("nobody says how many epochs"));
  question.most_groups = 4;
  answer = ChooseGroups(question);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->choices.size(), 3u);
  EXPECT_EQ(Find(*answer, 8), nullptr);
  EXPECT_FALSE(answer->best().seconds_to_target.has_value());
}

TEST_F(GroupChoiceTest, TheFormula) {
  v1::EpochsTable table = Table({{1, 4}, {2, 4.5}, {4, 6}});
  spec_.mutable_averaging()->set_every_steps(8);
  GroupsQuestion question = Uniform(4);
  question.epochs = &table;
  const auto answer = ChooseGroups(question);
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->choices.size(), 3u);
  const GroupChoice* two = Find(*answer, 2);
  ASSERT_NE(two, nullptr);
  EXPECT_EQ(two->ranks, 2);
  EXPECT_EQ(two->every_steps, 8);
  // n / 2 words up and as many down, a message each way.
  const double n = static_cast<double>(index_.size());
  EXPECT_DOUBLE_EQ(two->averaging_seconds, 2 * 50e-6 + 2 * (n / 2) * 4 * 0.8e-9);
  EXPECT_EQ(two->bytes_per_average, TrafficOfRound(index_.size(), 2, 2).bytes_per_round);
  EXPECT_DOUBLE_EQ(two->seconds_per_step(), two->step_seconds + two->averaging_seconds / 8);
  EXPECT_DOUBLE_EQ(two->seconds_per_epoch, 500 * two->seconds_per_step());
  EXPECT_DOUBLE_EQ(*two->epochs, 4.5);
  EXPECT_DOUBLE_EQ(*two->seconds_to_target, 4.5 * two->seconds_per_epoch);
  for (size_t c = 1; c < answer->choices.size(); ++c) {
    EXPECT_GE(*answer->choices[c].seconds_to_target, *answer->choices[c - 1].seconds_to_target);
  }
}

TEST_F(GroupChoiceTest, FewAggregatorsAreWaitedFor) {
  GroupsQuestion question = Uniform(8);
  question.groups = 8;
  auto leaders = ChooseGroups(question);
  ASSERT_TRUE(leaders.ok()) << leaders.status();
  spec_.mutable_cluster()->set_aggregators(1);
  auto one = ChooseGroups(question);
  ASSERT_TRUE(one.ok());
  const double n = static_cast<double>(index_.size());
  EXPECT_DOUBLE_EQ(leaders->best().averaging_seconds, 2 * 50e-6 + 2 * n * 4 * 0.8e-9);
  // All eight models meet at one link.
  EXPECT_DOUBLE_EQ(one->best().averaging_seconds, 2 * 50e-6 + 8 * 2 * n * 4 * 0.8e-9);
}

// Epochs that do not grow: one rank each. Epochs that explode: one group. Between them the model is
// split from some number of groups on.
TEST_F(GroupChoiceTest, TheHybridRule) {
  const v1::EpochsTable flat = Table({{1, 4}, {2, 4}, {4, 4}, {8, 4}});
  GroupsQuestion question = Uniform(8);
  // Computing is fast, so that what moves counts.
  question.uniform.flops = 1e12;
  spec_.mutable_averaging()->set_every_steps(64);
  question.epochs = &flat;
  auto answer = ChooseGroups(question);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->best().groups, 8);
  EXPECT_FALSE(answer->crossover);
  EXPECT_THAT(answer->why, HasSubstr("more groups were not possible"));

  const v1::EpochsTable steep = Table({{1, 4}, {2, 40}, {4, 400}, {8, 4000}});
  question.epochs = &steep;
  answer = ChooseGroups(question);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->best().groups, 1);
  EXPECT_TRUE(answer->crossover);
  ASSERT_TRUE(answer->more.has_value());
  EXPECT_EQ(answer->more->groups, 2);
  EXPECT_GT(answer->more_takes, 1);
  EXPECT_THAT(answer->why, HasSubstr("from 1 on it pays more that 8 ranks share a group"));

  const v1::EpochsTable knee = Table({{1, 4}, {2, 4}, {4, 4}, {8, 400}});
  question.epochs = &knee;
  answer = ChooseGroups(question);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->best().groups, 4);
  EXPECT_EQ(answer->best().ranks, 2);
  EXPECT_TRUE(answer->crossover);
}

TEST_F(GroupChoiceTest, WhatTheTableDoesNotKnowIsRefused) {
  const v1::EpochsTable table = Table({{1, 4}, {2, 5}, {4, -50}});
  GroupsQuestion question = Uniform(8);
  question.epochs = &table;
  const auto answer = ChooseGroups(question);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->choices.size(), 2u);
  ASSERT_EQ(answer->refused.size(), 2u);
  EXPECT_EQ(answer->refused[0].groups, 4);
  EXPECT_THAT(answer->refused[0].why, HasSubstr("did not reach the target"));
  EXPECT_EQ(answer->refused[1].groups, 8);
}

// Averaging is no more seldom than is proved to be fast, nor than it takes to cost little.
TEST_F(GroupChoiceTest, StepsBetweenAverages) {
  GroupsQuestion question = Uniform(2);
  question.groups = 2;
  auto unknown = ChooseGroups(question);
  ASSERT_TRUE(unknown.ok());
  EXPECT_EQ(unknown->best().every_steps, 1);
  // (T / 8)^(1/4) for T = 8 * 10^4 steps is 10: at most 8 steps.
  spec_.mutable_stop()->set_steps(80'000);
  auto bounded = ChooseGroups(question);
  ASSERT_TRUE(bounded.ok());
  EXPECT_EQ(bounded->best().every_steps, 8);
  // Over a link that costs nothing there is no reason to wait.
  question.uniform = UniformMachine({.alpha = 0, .beta = 1e-15}, 1e10);
  auto free = ChooseGroups(question);
  ASSERT_TRUE(free.ok());
  EXPECT_EQ(free->best().every_steps, 1);
  spec_.mutable_averaging()->set_every_steps(32);
  auto pinned = ChooseGroups(question);
  ASSERT_TRUE(pinned.ok());
  EXPECT_EQ(pinned->best().every_steps, 32);
}

// Two hosts of four: groups of four stay on their host and have its link.
TEST_F(GroupChoiceTest, FastLinksLieInside) {
  const auto profile = ParseClusterProfile(R"pb(
                                             host {
                                               name: "a"
                                               workers: 4
                                               device: "d"
                                               inside { alpha: 1e-6 beta: 1e-10 }
                                             }
                                             host {
                                               name: "b"
                                               workers: 4
                                               device: "slow"
                                               inside { alpha: 1e-6 beta: 1e-10 }
                                             }
                                             default_link { alpha: 1e-3 beta: 1e-7 }
                                             device { name: "d" flops: 1e12 }
                                             device { name: "slow" flops: 5e11 }
                                           )pb",
                                           "profile");
  ASSERT_TRUE(profile.ok()) << profile.status();
  GroupsQuestion question = Uniform(8);
  question.profile = &*profile;
  question.most_groups = 8;
  const auto answer = ChooseGroups(question);
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->choices.size(), 4u);
  const GroupChoice* one = Find(*answer, 1);
  const GroupChoice* two = Find(*answer, 2);
  ASSERT_TRUE(one != nullptr && two != nullptr);
  // Eight ranks over the slow link against four over the fast one, of which the slower group
  // counts.
  EXPECT_GT(one->step_seconds, two->step_seconds);
  EXPECT_EQ(two->slowest_first_worker, 4);
  // Averages cross the slow link.
  const double n = static_cast<double>(index_.size());
  EXPECT_DOUBLE_EQ(two->averaging_seconds, 2 * 1e-3 + 2 * (n / 4) * 4 * 1e-7);
}

TEST_F(GroupChoiceTest, Pins) {
  GroupsQuestion question = Uniform(12);
  question.ranks = 3;
  const auto answer = ChooseGroups(question);
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->choices.size(), 1u);
  EXPECT_EQ(answer->best().groups, 4);
  question.groups = 3;
  EXPECT_THAT(std::string(ChooseGroups(question).status().message()),
              HasSubstr("3 groups of 3 ranks are not 12 workers"));
  question.ranks = 0;
  question.groups = 5;
  EXPECT_THAT(std::string(ChooseGroups(question).status().message()),
              HasSubstr("groups is 5, which does not divide the 12 workers"));
}

TEST_F(GroupChoiceTest, WhatCannotBe) {
  v1::EpochsTable table = Table({{1, 4}});
  GroupsQuestion question = Uniform(4);
  question.epochs = &table;
  question.samples = 0;
  EXPECT_EQ(ChooseGroups(question).status().code(), absl::StatusCode::kInvalidArgument);
  question.samples = 100;
  table.set_batch_per_worker(0);
  EXPECT_EQ(ChooseGroups(question).status().code(), absl::StatusCode::kInvalidArgument);
  // No plan has so little memory.
  question = Uniform(4);
  question.uniform.memory_bytes = 1000;
  EXPECT_EQ(ChooseGroups(question).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace cadre
