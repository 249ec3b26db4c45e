// What the state machine records for people: the history of runs, and events. Also what workers
// learn of the end of a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsSupersetOf;

class MachineHistoryTest : public MachineTest {
 protected:
  std::vector<v1::EventKind> Kinds() {
    std::vector<v1::EventKind> kinds;
    const v1::EventsReply reply = cluster_.Events();
    for (const v1::ClusterEvent& event : reply.events()) kinds.push_back(event.kind());
    return kinds;
  }
  void TrainAll(const std::string& run, uint32_t groups) {
    for (uint32_t group = 0; group < groups; ++group) Train(run, group);
  }
};

TEST_F(MachineHistoryTest, CommitsHaveTheTimesOfTheirParticipants) {
  const std::string run = SubmitTo(2, 2, MakeSpec(2, 1, 5, 100));
  const absl::Time opened = cluster_.now();
  for (uint32_t group = 0; group < 2; ++group) {
    cluster_.Run(absl::Seconds(3));
    FakeWorker& lead = cluster_.Lead(run, group);
    v1::Contributed contributed = cluster_.ContributionOf(lead);
    contributed.set_stage_seconds(0.5F);
    contributed.set_train_seconds(2.0F);
    contributed.set_rate(0.125F);
    lead.contributed = contributed;
    cluster_.Send(lead, contributed);
  }
  const v1::HistoryReply history = cluster_.History(run);
  ASSERT_EQ(history.entries_size(), 1);
  const v1::CommitPoint& commit = history.entries(0).commit();
  EXPECT_EQ(commit.version(), 1U);
  EXPECT_EQ(commit.step(), 5U);
  EXPECT_EQ(commit.rate(), 0.125);
  EXPECT_EQ(commit.groups(), 2U);
  EXPECT_EQ(commit.digest(), cluster_.RunStatus(run).digest());
  EXPECT_LE(commit.opened_ms(), absl::ToUnixMillis(opened));
  EXPECT_GE(history.entries(0).time_ms(), commit.closed_ms());
  ASSERT_EQ(commit.participants_size(), 2);
  EXPECT_NEAR(commit.participants(1).arrival_seconds() - commit.participants(0).arrival_seconds(),
              3, 0.1);
  EXPECT_EQ(commit.participants(0).stage_seconds(), 0.5F);
  EXPECT_EQ(commit.participants(0).train_seconds(), 2.0F);
  // The next round begins when this one is committed.
  TrainAll(run, 2);
  EXPECT_EQ(cluster_.History(run).entries(1).commit().opened_ms(), history.entries(0).time_ms());
}

TEST_F(MachineHistoryTest, WithoutALossThereIsNone) {
  const std::string run = SubmitTo(1, 1, MakeSpec(1, 1, 5, 100));
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::Progress progress;
  *progress.mutable_place() = lead.place();
  progress.set_step(3);
  cluster_.Send(lead, progress);
  EXPECT_FALSE(cluster_.RunStatus(run).has_loss());
  EXPECT_FALSE(cluster_.Group(run, 0).has_loss());
  lead.contributed = cluster_.ContributionOf(lead);
  lead.contributed->clear_loss();
  cluster_.Send(lead, *lead.contributed);
  const v1::HistoryReply history = cluster_.History(run);
  ASSERT_EQ(history.entries_size(), 1);
  EXPECT_FALSE(history.entries(0).commit().has_loss());
  EXPECT_FALSE(history.entries(0).commit().participants(0).has_loss());
  EXPECT_FALSE(cluster_.RunStatus(run).has_loss());
}

TEST_F(MachineHistoryTest, RestartsKeepHistoryAndEvents) {
  const std::string run = SubmitTo(2, 2, MakeSpec(2, 1, 5, 10));
  TrainAll(run, 2);
  const v1::HistoryReply before = cluster_.History(run);
  const uint64_t newest = cluster_.Events().newest();
  cluster_.RestartCoordinator();
  EXPECT_EQ(cluster_.History(run).SerializeAsString(), before.SerializeAsString());
  EXPECT_EQ(cluster_.Events().events(newest).kind(), v1::EVENT_KIND_COORDINATOR_STARTED);
  ASSERT_TRUE(cluster_.RunUntil([&] { return StateOf(run, 1) == v1::GROUP_STATE_TRAINING; }));
  TrainAll(run, 2);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.Ended(run); }));
  const v1::HistoryReply after = cluster_.History(run);
  ASSERT_EQ(after.entries_size(), 3);
  EXPECT_EQ(after.entries(1).commit().version(), 2U);
  EXPECT_EQ(after.entries(2).evaluation().step(), 10U);
  EXPECT_EQ(after.entries(2).evaluation().accuracy(), cluster_.RunStatus(run).test().accuracy());
}

TEST_F(MachineHistoryTest, EventsTellTheLifeOfARun) {
  const std::string run = SubmitTo(2, 3, MakeSpec(1, 2, 5, 100));
  EXPECT_THAT(Kinds(), IsSupersetOf({v1::EVENT_KIND_MEMBER_JOINED, v1::EVENT_KIND_RUN_SUBMITTED,
                                     v1::EVENT_KIND_RUN_STATE, v1::EVENT_KIND_GROUP_STARTED}));
  const uint64_t before = cluster_.Events().newest();
  FakeWorker& lost = cluster_.Rank(run, 0, 1);
  cluster_.Kill(lost);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.Events().newest() >= before + 3; }));
  std::vector<v1::EventKind> kinds = Kinds();
  kinds.erase(kinds.begin(), kinds.begin() + static_cast<int64_t>(before));
  EXPECT_THAT(kinds, ElementsAre(v1::EVENT_KIND_MEMBER_LEFT, v1::EVENT_KIND_GROUP_ENDED,
                                 v1::EVENT_KIND_GROUP_STARTED));
  EXPECT_EQ(cluster_.Events().events(static_cast<int>(before)).member(), lost.name);
  cluster_.StopRun(run);
  cluster_.DeleteRun(run);
  EXPECT_THAT(Kinds(), Contains(v1::EVENT_KIND_RUN_DELETED));
  for (const auto& [key, value] : cluster_.store()) EXPECT_NE(key.rfind("history/", 0), 0U) << key;
}

TEST_F(MachineHistoryTest, WorkersLearnThatTheRunHasEnded) {
  AddMembers(2, 3);
  const std::string run = cluster_.Submit(MakeSpec(2, 1, 5, 100));
  cluster_.StopRun(run);
  for (const FakeWorker& worker : cluster_.workers()) {
    bool ended = false;
    for (const v1::CoordinatorMessage& message : worker.received) {
      ended |= message.release().run_ended() && message.release().place().run() == run;
      EXPECT_FALSE(message.release().run_done());
    }
    EXPECT_TRUE(ended) << worker.name << ", with a rank or idle";
  }
}

}  // namespace
}  // namespace cadre::testing
