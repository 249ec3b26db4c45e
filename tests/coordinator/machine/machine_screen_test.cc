// Contributions that a round is not made of because of what they contain (run.proto, Screen).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/base/expect.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class MachineScreenTest : public MachineTest {
 protected:
  // Two shards and groups of one worker, whose changes have these squared lengths.
  std::string BeginWith(uint32_t groups, const std::string& screen) {
    cluster_.behaviour.changes = [this](const v1::Apply& apply) {
      v1::ChangeSums sums;
      for (const v1::Participant& each : apply.participants()) {
        const auto found = squared_.find(each.group());
        const double scale = each.scale() > 0 ? each.scale() : 1;
        sums.add_squared((found == squared_.end() ? 1 : found->second) * scale * scale);
        sums.add_sampled_squared(1);
        sums.add_product(1);
      }
      sums.add_mean_squared(1);
      return sums;
    };
    v1::RunSpec spec = MakeSpec(groups, 1, 5, 1000);
    *spec.mutable_averaging()->mutable_screen() = Parse<v1::Screen>(screen);
    groups_ = groups;
    return Begin(groups, spec);
  }
  void TrainAll(const std::string& run) {
    for (uint32_t group = 0; group < groups_; ++group) Train(run, group);
  }
  v1::RunStatus Status(const std::string& run) { return cluster_.RunStatus(run); }
  v1::Apply NewestOrder(const std::string& run) {
    return cluster_.aggregators()[0].shards.at(run).newest;
  }
  std::vector<uint32_t> ParticipantsOf(const v1::Apply& order) {
    std::vector<uint32_t> groups;
    for (const v1::Participant& each : order.participants()) groups.push_back(each.group());
    return groups;
  }
  std::string EventsText() {
    std::string text;
    const v1::EventsReply events = cluster_.Events();
    for (const v1::ClusterEvent& event : events.events())
      absl::StrAppend(&text, event.text(), "\n");
    return text;
  }

  uint32_t groups_ = 0;
  std::map<uint32_t, double> squared_;
};

TEST_F(MachineScreenTest, UsualRoundHasOneAttempt) {
  const std::string run = BeginWith(3, "");
  TrainAll(run);
  EXPECT_EQ(Status(run).version(), 1u);
  EXPECT_EQ(NewestOrder(run).attempt(), 1u);
  EXPECT_EQ(cluster_.aggregators()[1].shards.at(run).published, 1u);
  EXPECT_EQ(cluster_.Commit(run, 1)->changes().squared_size(), 3);
  EXPECT_EQ(cluster_.Commit(run, 1)->claims_size(), 0) << "needed until the version is published";
}

TEST_F(MachineScreenTest, GroupIsLeftOutAndTheRunGoesOn) {
  const std::string run = BeginWith(3, "");
  squared_[1] = kInfinity;
  TrainAll(run);
  EXPECT_EQ(Status(run).version(), 1u);
  EXPECT_EQ(NewestOrder(run).attempt(), 2u);
  EXPECT_THAT(ParticipantsOf(NewestOrder(run)), ElementsAre(0, 2));
  EXPECT_EQ(Status(run).samples(), 2 * 5 * 32u) << "those of the others";
  const v1::CommitRecord commit = *cluster_.Commit(run, 1);
  EXPECT_EQ(commit.times_size(), 2);
  ASSERT_EQ(commit.included_size(), 2);
  EXPECT_EQ(commit.included(1).group(), 2u);
  // The group learns it, and continues from the version.
  const v1::Decision decision = LastDecision(run, 1);
  EXPECT_FALSE(decision.included());
  EXPECT_EQ(decision.refusal(), v1::REFUSAL_SCREENED);
  EXPECT_EQ(decision.version(), 1u);
  EXPECT_THAT(EventsText(), HasSubstr("the contribution of group 1 to round 1 was left out: it has "
                                      "values that are not finite"));
  EXPECT_EQ(cluster_.Group(run, 1).screened(), 1u);
  EXPECT_EQ(cluster_.Group(run, 1).newest_screened().cause(), v1::SCREEN_CAUSE_NOT_FINITE);
  squared_.clear();
  TrainAll(run);
  EXPECT_EQ(Status(run).version(), 2u);
  EXPECT_THAT(ParticipantsOf(NewestOrder(run)), ElementsAre(0, 1, 2));
}

// Either one of two groups may be wrong, so only its own earlier changes tell.
TEST_F(MachineScreenTest, EarlierChangesAreKnownAfterARestart) {
  const std::string run = BeginWith(2, "");
  for (int round = 0; round < 2; ++round) TrainAll(run);
  cluster_.RestartCoordinator();
  squared_[1] = 1e8;
  TrainAll(run);
  EXPECT_EQ(Status(run).version(), 3u);
  EXPECT_EQ(cluster_.Group(run, 1).newest_screened().cause(), v1::SCREEN_CAUSE_TOO_LONG);
  EXPECT_EQ(cluster_.Counter("rounds_screened"), 1u);
  EXPECT_EQ(cluster_.Counter("refused_screened"), 1u);
}

// That is not a sign of an older store, and the version is made again.
TEST_F(MachineScreenTest, DiskReturnsToTheFirstAttempt) {
  const std::string run = BeginWith(3, "");
  squared_[1] = kInfinity;
  auto& aggregators = cluster_.aggregators();
  std::map<std::string, FakeAggregator::Shard> older;
  cluster_.behaviour.changes = [&, changes = cluster_.behaviour.changes](const v1::Apply& apply) {
    if (apply.attempt() == 1 && apply.shard() == 0) older = aggregators[0].shards;
    if (apply.attempt() == 1 && apply.shard() == 1) cluster_.behaviour.hung = {"agg-1"};
    return changes(apply);
  };
  TrainAll(run);
  ASSERT_EQ(NewestOrder(run).attempt(), 2u);
  ASSERT_EQ(Status(run).version(), 0u);
  aggregators[0].shards = older;
  ASSERT_EQ(NewestOrder(run).attempt(), 1u);
  cluster_.Reconnect(aggregators[0]);
  EXPECT_EQ(NewestOrder(run).attempt(), 2u);
  EXPECT_EQ(cluster_.Counter("runs_behind"), 0u);
  cluster_.behaviour.hung.clear();
  cluster_.Reconnect(aggregators[1]);
  EXPECT_EQ(Status(run).version(), 1u) << ReasonOf(run);
  EXPECT_THAT(ParticipantsOf(NewestOrder(run)), ElementsAre(0, 2));
  EXPECT_EQ(cluster_.Counter("groups_formed"), 3u);
}

TEST_F(MachineScreenTest, ScreenThatIsOffUsesEverything) {
  const std::string run = BeginWith(3, "off {}");
  squared_[1] = kInfinity;
  TrainAll(run);
  EXPECT_EQ(NewestOrder(run).attempt(), 0u);
  EXPECT_THAT(ParticipantsOf(NewestOrder(run)), ElementsAre(0, 1, 2));
}

TEST_F(MachineScreenTest, LongChangeIsClipped) {
  const std::string run = BeginWith(3, "clip { ratio: 2 }");
  squared_[2] = 1e4;
  TrainAll(run);
  EXPECT_EQ(Status(run).version(), 1u);
  EXPECT_EQ(NewestOrder(run).attempt(), 2u);
  EXPECT_THAT(ParticipantsOf(NewestOrder(run)), ElementsAre(0, 1, 2));
  EXPECT_FLOAT_EQ(NewestOrder(run).participants(2).scale(), 0.02F);
  EXPECT_EQ(Status(run).samples(), 3 * 5 * 32u);
  EXPECT_TRUE(LastDecision(run, 2).included());
  EXPECT_THAT(EventsText(), HasSubstr("was clipped to 0.02 of it"));
}

TEST_F(MachineScreenTest, MeanIsTrimmed) {
  const std::string run = BeginWith(5, "trimmed_mean {}");
  squared_[4] = kInfinity;
  TrainAll(run);
  EXPECT_EQ(NewestOrder(run).attempt(), 2u);
  EXPECT_EQ(NewestOrder(run).trim(), 0u) << "a fifth of four groups";
  squared_.clear();
  TrainAll(run);
  EXPECT_EQ(NewestOrder(run).trim(), 1u);
}

TEST_F(MachineScreenTest, AttemptSurvivesARestart) {
  const std::string run = BeginWith(3, "");
  squared_[1] = kInfinity;
  // The aggregators do not answer the second attempt.
  const auto changes = cluster_.behaviour.changes;
  int answers = 0;
  cluster_.behaviour.changes = [&](const v1::Apply& apply) {
    cluster_.behaviour.apply = ++answers < 2;
    return changes(apply);
  };
  TrainAll(run);
  EXPECT_EQ(Status(run).version(), 0u);
  EXPECT_EQ(cluster_.Commit(run, 1)->attempt(), 2u);
  cluster_.behaviour.apply = true;
  cluster_.behaviour.changes = changes;
  cluster_.RestartCoordinator();
  ASSERT_EQ(Status(run).version(), 1u);
  EXPECT_THAT(ParticipantsOf(NewestOrder(run)), ElementsAre(0, 2));
  EXPECT_EQ(LastDecision(run, 1).refusal(), v1::REFUSAL_SCREENED);
}

// The store is that of the first attempt, which one shard had applied, and another coordinator has
// made the second one since.
TEST_F(MachineScreenTest, StoreIsOlderThanTheLastAttempt) {
  const std::string run = BeginWith(3, "");
  squared_[1] = kInfinity;
  cluster_.behaviour.hung = {"agg-1"};
  TrainAll(run);
  ASSERT_TRUE(cluster_.Commit(run, 1)->digests(0).applied());
  const std::map<std::string, std::string> first = cluster_.store();
  cluster_.behaviour.hung.clear();
  cluster_.Reconnect(cluster_.aggregators()[1]);
  ASSERT_EQ(Status(run).version(), 1u);
  cluster_.Kill(cluster_.aggregators()[1]);
  cluster_.RollBackStore(first);
  EXPECT_EQ(cluster_.Counter("runs_behind"), 1u);
  cluster_.Restart(cluster_.aggregators()[1]);
  EXPECT_EQ(Status(run).version(), 1u);
  EXPECT_EQ(cluster_.Commit(run, 1)->attempt(), 2u);
  EXPECT_EQ(cluster_.Commit(run, 1)->participants_size(), 2);
}

TEST_F(MachineScreenTest, ThirdRoundInARowEndsTheGeneration) {
  const std::string run = BeginWith(3, "");
  squared_[1] = 1e12;
  TrainAll(run);
  TrainAll(run);
  const uint32_t generation = cluster_.Group(run, 1).generation();
  EXPECT_NE(generation, 0u);
  EXPECT_EQ(cluster_.Status().workers(1).standing().failures(), 0u);
  TrainAll(run);
  EXPECT_EQ(Status(run).version(), 3u);
  EXPECT_NE(cluster_.Group(run, 1).generation(), generation);
  EXPECT_EQ(cluster_.Status().workers(1).standing().failures(), 1u) << "its worker is avoided";
  cluster_.AddWorkers(1);
  ASSERT_TRUE(cluster_.RunUntil([&] { return StateOf(run, 1) == v1::GROUP_STATE_TRAINING; }));
  EXPECT_EQ(cluster_.Lead(run, 1).assignment->branch(), 3u) << "optimizer states are dropped";
  EXPECT_EQ(cluster_.Lead(run, 0).assignment->branch(), 0u);
  EXPECT_EQ(Status(run).state(), v1::RUN_STATE_RUNNING);
  EXPECT_THAT(EventsText(), HasSubstr("rounds have left out its contributions"));
}

TEST_F(MachineScreenTest, RoundOfWhichNothingRemainsParksTheRun) {
  const std::string run = BeginWith(2, "");
  TrainAll(run);
  const std::string digest = Status(run).digest();
  squared_ = {{0, kInfinity}, {1, kInfinity}};
  TrainAll(run);
  EXPECT_EQ(Status(run).state(), v1::RUN_STATE_PARKED);
  EXPECT_TRUE(Status(run).diverged());
  EXPECT_THAT(ReasonOf(run), HasSubstr("nothing remains of round 2: group 0: it has values that "
                                       "are not finite; group 1: "));
  EXPECT_EQ(Status(run).version(), 2u);
  EXPECT_EQ(Status(run).digest(), digest) << "a copy of version 1";
  EXPECT_EQ(Status(run).step(), 5u);
  EXPECT_TRUE(NewestOrder(run).has_restores());
  squared_.clear();
  cluster_.ResumeRun(run);
  EXPECT_EQ(Status(run).state(), v1::RUN_STATE_RUNNING);
  TrainAll(run);
  EXPECT_EQ(Status(run).version(), 3u) << ReasonOf(run);
}

}  // namespace
}  // namespace cadre::testing
