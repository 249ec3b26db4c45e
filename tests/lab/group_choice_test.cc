#include "lab/group_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lab/hierarchical_averaging.h"
#include "tests/lab/questions.h"
#include "tests/plan/search/problems.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

class GroupChoiceTest : public ::testing::Test {
 protected:
  // Equal workers with 10 Gbit/s and 10 Gflop/s.
  GroupChoiceTest() {
    const testing::SmallModel model(16, {1024, 1024, 16}, 64);
    request_ = {.spec = model.spec, .flops = 1e10, .samples = 64'000};
    request_.link = {.alpha = 50e-6, .bandwidth = 1.25e9};
    parameters_ = model.index.size();
  }

  absl::StatusOr<GroupsResult> TryChoose(int workers) {
    request_.workers = workers;
    return ChooseGroups(*testing::QuestionOf(request_));
  }
  GroupsResult Choose(int workers) {
    auto result = TryChoose(workers);
    EXPECT_TRUE(result.ok()) << result.status();
    return *std::move(result);
  }

  // A table for workers with 64 samples each.
  void SetEpochs(std::initializer_list<std::pair<int, double>> entries) {
    request_.epochs = testing::Epochs(entries, /*batch_per_worker=*/64);
  }

  static const GroupChoice& Find(const GroupsResult& result, int groups) {
    const auto found =
        std::find_if(result.choices.begin(), result.choices.end(),
                     [&](const GroupChoice& choice) { return choice.groups == groups; });
    EXPECT_NE(found, result.choices.end()) << groups;
    return *found;
  }

  PlanRequest request_;
  double parameters_ = 0;
};

TEST_F(GroupChoiceTest, OneGroupWithoutTable) {
  GroupsResult result = Choose(8);
  ASSERT_EQ(result.choices.size(), 1u);
  EXPECT_EQ(result.best().groups, 1);
  EXPECT_EQ(result.best().every_steps, 0);
  EXPECT_THAT(result.reason, HasSubstr("the number of epochs that they need is unknown"));
  request_.max_groups = 4;
  result = Choose(8);
  EXPECT_EQ(result.choices.size(), 3u) << "1, 2 and 4 groups";
  EXPECT_FALSE(result.best().seconds_to_target.has_value());
}

TEST_F(GroupChoiceTest, Formula) {
  SetEpochs({{1, 4}, {2, 4.5}, {4, 6}});
  request_.spec.mutable_averaging()->set_every_steps(8);
  const GroupsResult result = Choose(4);
  ASSERT_EQ(result.choices.size(), 3u);
  const GroupChoice& two = Find(result, 2);
  EXPECT_EQ(two.ranks, 2);
  EXPECT_EQ(two.every_steps, 8);
  // n / 2 words and one message in each direction.
  EXPECT_DOUBLE_EQ(two.averaging_seconds, 2 * 50e-6 + 2 * (parameters_ / 2) * 4 * 0.8e-9);
  EXPECT_EQ(two.bytes_per_average(), TrafficOfRound(parameters_, 2, 2).bytes_per_round);
  EXPECT_DOUBLE_EQ(two.seconds_per_step(), two.step_seconds + two.averaging_seconds / 8);
  EXPECT_DOUBLE_EQ(two.seconds_per_epoch, 500 * two.seconds_per_step());
  EXPECT_DOUBLE_EQ(*two.epochs, 4.5);
  EXPECT_DOUBLE_EQ(*two.seconds_to_target, 4.5 * two.seconds_per_epoch);
  for (size_t c = 1; c < result.choices.size(); ++c) {
    EXPECT_GE(*result.choices[c].seconds_to_target, *result.choices[c - 1].seconds_to_target);
  }
}

TEST_F(GroupChoiceTest, AggregatorLinksLimitAverages) {
  request_.max_groups = 8;
  EXPECT_DOUBLE_EQ(Find(Choose(8), 8).averaging_seconds, 2 * 50e-6 + 2 * parameters_ * 4 * 0.8e-9);
  // The models of all eight groups cross the aggregator's link.
  request_.spec.mutable_cluster()->set_aggregators(1);
  EXPECT_DOUBLE_EQ(Find(Choose(8), 8).averaging_seconds,
                   2 * 50e-6 + 8 * 2 * parameters_ * 4 * 0.8e-9);
}

// Codes shorten the exchange in the direction that they code.
TEST_F(GroupChoiceTest, CodesShortenAverages) {
  request_.max_groups = 2;
  const GroupChoice plain = Find(Choose(4), 2);
  EXPECT_EQ(plain.bytes_up, plain.bytes_down);
  v1::Averaging& averaging = *request_.spec.mutable_averaging();
  averaging.mutable_up()->set_codec(v1::CODEC_E3M0);
  const GroupChoice up = Find(Choose(4), 2);
  EXPECT_EQ(up.bytes_down, plain.bytes_down);
  EXPECT_NEAR(up.bytes_up, plain.bytes_up / 8.0, 0.02 * plain.bytes_up);
  // A rank has half of a group's bytes.
  EXPECT_DOUBLE_EQ(up.averaging_seconds, 2 * 50e-6 + up.bytes_per_average() / 2.0 / 2 * 0.8e-9);
  averaging.mutable_down()->set_codec(v1::CODEC_BF16);
  const GroupChoice both = Find(Choose(4), 2);
  EXPECT_EQ(both.bytes_up, up.bytes_up);
  EXPECT_NEAR(both.bytes_down, plain.bytes_down / 2.0, 0.01 * plain.bytes_down);
}

// Groups wait only for what takes longer than the steps that overlap the exchange.
TEST_F(GroupChoiceTest, OverlapHidesAverages) {
  request_.max_groups = 4;
  v1::Averaging& averaging = *request_.spec.mutable_averaging();
  averaging.set_every_steps(8);
  const GroupChoice waiting = Find(Choose(4), 4);
  EXPECT_EQ(waiting.exposed_seconds, waiting.averaging_seconds);
  averaging.mutable_overlap()->set_steps(1);
  request_.link = {.alpha = 50e-6, .bandwidth = 1e7};
  const GroupChoice slow = Find(Choose(4), 4);
  EXPECT_GT(slow.averaging_seconds, slow.step_seconds);
  EXPECT_DOUBLE_EQ(slow.exposed_seconds, slow.averaging_seconds - slow.step_seconds);
  EXPECT_DOUBLE_EQ(slow.seconds_per_step(), slow.step_seconds + slow.exposed_seconds / 8);
  averaging.mutable_overlap()->set_steps(7);
  request_.link = {.alpha = 50e-6, .bandwidth = 1.25e9};
  const GroupChoice hidden = Find(Choose(4), 4);
  EXPECT_GT(hidden.averaging_seconds, 0);
  EXPECT_EQ(hidden.exposed_seconds, 0);
  EXPECT_DOUBLE_EQ(hidden.seconds_per_step(), hidden.step_seconds);
}

// If epochs do not depend on the batch, groups of one rank are best; if epochs grow rapidly, a
// single group is. Otherwise there is a number of groups from which on ranks are better used inside
// groups.
TEST_F(GroupChoiceTest, HybridRule) {
  // Fast compute, so that communication matters.
  request_.flops = 1e12;
  request_.spec.mutable_averaging()->set_every_steps(64);
  SetEpochs({{1, 4}, {2, 4}, {4, 4}, {8, 4}});
  const GroupsResult flat = Choose(8);
  EXPECT_EQ(flat.best().groups, 8);
  EXPECT_FALSE(flat.crossover);
  EXPECT_THAT(flat.reason, HasSubstr("more groups were not possible"));

  SetEpochs({{1, 4}, {2, 40}, {4, 400}, {8, 4000}});
  const GroupsResult steep = Choose(8);
  EXPECT_EQ(steep.best().groups, 1);
  EXPECT_TRUE(steep.crossover);
  ASSERT_TRUE(steep.more.has_value());
  EXPECT_EQ(steep.more->groups, 2);
  EXPECT_GT(steep.more_time_ratio, 1);
  EXPECT_THAT(steep.reason,
              HasSubstr("from 1 groups on, ranks are better used inside groups (8 per group)"));

  SetEpochs({{1, 4}, {2, 4}, {4, 4}, {8, 400}});
  const GroupsResult knee = Choose(8);
  EXPECT_EQ(knee.best().groups, 4);
  EXPECT_EQ(knee.best().ranks, 2);
  EXPECT_TRUE(knee.crossover);
}

TEST_F(GroupChoiceTest, RejectsUnmeasuredBatches) {
  SetEpochs({{1, 4}, {2, 5}, {4, 0}});
  const GroupsResult result = Choose(8);
  EXPECT_EQ(result.choices.size(), 2u);
  ASSERT_EQ(result.rejected.size(), 2u);
  EXPECT_EQ(result.rejected[0].groups, 4);
  EXPECT_THAT(result.rejected[0].reason, HasSubstr("did not reach the target"));
  EXPECT_EQ(result.rejected[1].groups, 8);
}

// The interval is within the convergence bound and no longer than needed to make averages cheap.
TEST_F(GroupChoiceTest, StepsBetweenAverages) {
  request_.max_groups = 2;
  const auto every_steps = [&] { return Find(Choose(2), 2).every_steps; };
  EXPECT_EQ(every_steps(), 1) << "the length of the training is unknown";
  // (T / 8)^(1/4) for T = 8 * 10^4 steps is 10: at most 8 steps.
  request_.spec.mutable_stop()->set_steps(80'000);
  EXPECT_EQ(every_steps(), 8);
  // If the link costs nothing, a longer interval is not needed.
  request_.link = {.alpha = 0, .bandwidth = 1e15};
  EXPECT_EQ(every_steps(), 1);
  request_.spec.mutable_averaging()->set_every_steps(32);
  EXPECT_EQ(every_steps(), 32);
}

// Two hosts of four workers: groups of four use their host's link.
TEST_F(GroupChoiceTest, GroupsUseFastLinksInside) {
  request_.profile = testing::ProfileOf(R"(
      host { name: "a" workers: 4 device: "d" inside { alpha: 1e-6 beta: 1e-10 } }
      host { name: "b" workers: 4 device: "slow" inside { alpha: 1e-6 beta: 1e-10 } }
      default_link { alpha: 1e-3 beta: 1e-7 }
      device { name: "d" flops: 1e12 } device { name: "slow" flops: 5e11 })");
  request_.max_groups = 8;
  const GroupsResult result = Choose(8);
  ASSERT_EQ(result.choices.size(), 4u);
  const GroupChoice& two = Find(result, 2);
  // One group of eight ranks uses the slow link; two groups of four use fast links.
  EXPECT_GT(Find(result, 1).step_seconds, two.step_seconds);
  // Averages use the slow link.
  EXPECT_DOUBLE_EQ(two.averaging_seconds, 2 * 1e-3 + 2 * (parameters_ / 4) * 4 * 1e-7);
}

TEST_F(GroupChoiceTest, InvalidProblems) {
  request_.memory_bytes = 1000;
  EXPECT_TRUE(absl::IsResourceExhausted(TryChoose(4).status()));
  SetEpochs({{1, 4}});
  request_.samples = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(TryChoose(4).status()));
  request_.samples = 100;
  request_.epochs->set_batch_per_worker(0);
  EXPECT_TRUE(absl::IsInvalidArgument(TryChoose(4).status()));
}

// A cluster of these hosts (fields in text format) with the devices d and e.
v1::ClusterProfile ProfileWith(const std::vector<std::string>& hosts) {
  std::string text = R"(default_link { alpha: 1e-5 beta: 1e-9 }
      device { name: "d" flops: 1e9 } device { name: "e" flops: 2e9 })";
  for (const std::string& host : hosts) {
    absl::StrAppend(&text, "host { ", host, " inside { alpha: 1e-6 beta: 1e-10 } }");
  }
  return testing::ProfileOf(text);
}

// First worker and number of groups of each kind.
std::vector<std::pair<int, int64_t>> Kinds(const v1::ClusterProfile& profile, int64_t groups,
                                           int64_t ranks) {
  std::vector<std::pair<int, int64_t>> kinds;
  for (const GroupKind& kind : KindsOfGroups(profile, groups, ranks)) {
    kinds.emplace_back(kind.first_worker, kind.groups);
  }
  return kinds;
}

using Pairs = std::vector<std::pair<int, int64_t>>;

TEST(GroupKindsTest, EqualHostsMakeEqualGroups) {
  const v1::ClusterProfile profile =
      ProfileWith({"name: 'a' workers: 4 device: 'd'", "name: 'b' workers: 4 device: 'd'",
                   "name: 'c' workers: 4 device: 'e'"});
  EXPECT_EQ(Kinds(profile, 12, 1), (Pairs{{0, 8}, {8, 4}}));
  EXPECT_EQ(Kinds(profile, 6, 2), (Pairs{{0, 4}, {8, 2}}));
  EXPECT_EQ(Kinds(profile, 3, 4), (Pairs{{0, 2}, {8, 1}}));
  // Groups across hosts depend on links, so each is of its own kind.
  EXPECT_EQ(Kinds(profile, 2, 6), (Pairs{{0, 1}, {6, 1}}));
  EXPECT_EQ(Kinds(profile, 1, 12), (Pairs{{0, 1}}));
}

TEST(GroupKindsTest, CountedHosts) {
  const v1::ClusterProfile profile = ProfileWith({"name: 'rack' count: 6 workers: 2 device: 'd'"});
  EXPECT_EQ(Kinds(profile, 3, 4), (Pairs{{0, 3}}));
  // Groups of three ranks begin on a host's first worker or on its second.
  EXPECT_EQ(Kinds(profile, 4, 3), (Pairs{{0, 2}, {3, 2}}));
}

TEST(GroupKindsTest, ManyWorkers) {
  const v1::ClusterProfile profile =
      ProfileWith({"name: 'rack' count: 12500 workers: 8 device: 'd'"});
  EXPECT_EQ(Kinds(profile, 100'000, 1), (Pairs{{0, 100'000}}));
  EXPECT_EQ(Kinds(profile, 6'250, 16), (Pairs{{0, 6'250}}));
}

}  // namespace
}  // namespace cadre
