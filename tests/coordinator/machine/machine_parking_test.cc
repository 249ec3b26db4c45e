// Runs that cannot continue without help: what a parked run gives up, and how it continues.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/base/expect.h"
#include "tests/coordinator/machine/restore_shard_test.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MachineParkingTest : public RestoreShardTest {
 protected:
  // The groups end, and a shard without a copy loses its disk.
  void LoseEverything() {
    for (FakeWorker& worker : cluster_.workers()) cluster_.Kill(worker);
    disk_ = agg(0).shards;
    cluster_.Wipe(agg(0));
    cluster_.Run(absl::Minutes(1));
  }
  void RestoreAndResume(const std::string& run) {
    RestoreDisk(agg(0), disk_);
    cluster_.ResumeRun(run);
    ASSERT_THAT(cluster_.last_status, IsOk());
  }
  // A rollback to a version that agg-1 has lost meanwhile parks the run.
  void ParkByRollback(const std::string& run, uint32_t version,
                      const std::vector<uint32_t>& leave_out = {}) {
    cluster_.Kill(agg(1));
    cluster_.RollBackRun(run, version, leave_out);
    ASSERT_THAT(cluster_.last_status, IsOk());
    agg(1).shards.at(run).digests.erase(version);
    cluster_.Restart(agg(1));
    ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED) << ReasonOf(run);
  }

  decltype(FakeAggregator::shards) disk_;
};

TEST_F(MachineParkingTest, ParkedRunIsCountedAndContinuesWithoutAReason) {
  const std::string run = Begin();
  LoseEverything();
  ExpectParked(run);
  EXPECT_EQ(cluster_.Counter("runs_parked"), 1U);
  RestoreAndResume(run);
  EXPECT_EQ(cluster_.StoredRun(run).reason(), "");
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
}

// One group evaluates both parts then.
TEST_F(MachineParkingTest, PartsOfAnEvaluationAreFree) {
  AddMembers(2, 2);
  v1::RunSpec spec = MakeSpec(2, 1, 5, 100);
  spec.mutable_evaluation()->set_every_steps(5);
  const std::string run = cluster_.Submit(spec);
  cluster_.behaviour.evaluate = false;
  TrainBoth(run);
  ASSERT_TRUE(cluster_.StoredRun(run).has_evaluating());
  LoseEverything();
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED);
  cluster_.behaviour.evaluate = true;
  RestoreAndResume(run);
  cluster_.AddWorker("another");
  ASSERT_TRUE(cluster_.RunUntil([&] { return StateOf(run) == v1::GROUP_STATE_TRAINING; }));
  Train(run, 0);
  EXPECT_EQ(cluster_.RunStatus(run).test().samples(), kTestSamples);
}

TEST_F(MachineParkingTest, BytesOfTheOpenRoundAreCounted) {
  const std::string run = Begin();
  const uint64_t before = cluster_.StoredRun(run).message_bytes();
  Train(run, 0);
  LoseEverything();
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED);
  cluster_.RestartCoordinator();
  EXPECT_EQ(cluster_.StoredRun(run).message_bytes(), before + 1010 + 2 * 110)
      << "a contribution, and the version that two groups have pulled";
}

// What was trained since the version is not based on the one from which the run continues.
TEST_F(MachineParkingTest, OpenRoundBeginsAgain) {
  const std::string run = Begin(3);
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::Contributed leaving = cluster_.ContributionOf(lead);
  leaving.set_leaves(true);
  cluster_.Send(lead, leaving);
  cluster_.Fail(lead);
  ASSERT_EQ(cluster_.StoredRun(run).left_size(), 1) << "it remains in the round";
  ParkByRollback(run, 2);
  EXPECT_EQ(cluster_.StoredRun(run).left_size(), 0);
  cluster_.ResumeRun(run);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.RunStatus(run).groups_alive() == 2; }));
  Train(run, 1);
  EXPECT_EQ(VersionOf(run), 3U) << "the other group has to contribute again";
  Train(run, 0);
  EXPECT_EQ(VersionOf(run), 4U);
}

TEST_F(MachineParkingTest, FailuresBeforeTheRunWasParkedDoNotCount) {
  const std::string run = Begin();
  const auto diverge = [&] {
    ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.RunStatus(run).groups_alive() == 2; }));
    cluster_.Fail(cluster_.Lead(run, 0), "loss is nan", v1::FAILURE_CAUSE_DIVERGED);
  };
  diverge();
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << "the samples of one group may be the cause";
  diverge();
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED);
  cluster_.ResumeRun(run);
  diverge();
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << ReasonOf(run);
}

TEST_F(MachineParkingTest, RollbackThatIsNotPossibleLeavesNothingBehind) {
  const std::string run = Begin(3);
  ParkByRollback(run, 2, {1});
  EXPECT_THAT(ReasonOf(run), HasSubstr("version 2"));
  EXPECT_EQ(cluster_.Counter("rollbacks_ordered"), 1U);
  EXPECT_FALSE(cluster_.RunStatus(run).has_rolling_back_to());
  EXPECT_THAT(cluster_.RunStatus(run).left_out_groups(), IsEmpty());
  cluster_.ResumeRun(run);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.RunStatus(run).groups_alive() == 2; }));
  EXPECT_EQ(VersionOf(run), 3U);
}

// It goes on from an earlier step, so it trains again.
TEST_F(MachineParkingTest, ParkedRunAtItsEndIsRolledBack) {
  AddMembers(2, 2);
  v1::RunSpec spec = MakeSpec(2, 1, 5, 15);
  spec.mutable_averaging()->mutable_keep_versions()->set_every(1);
  spec.mutable_averaging()->mutable_keep_versions()->set_count(3);
  const std::string run = cluster_.Submit(spec);
  cluster_.behaviour.evaluate = false;
  for (int round = 0; round < 3; ++round) TrainBoth(run);
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_FINISHING);
  ParkByRollback(run, 2);
  cluster_.RollBackRun(run, 1);
  ASSERT_THAT(cluster_.last_status, IsOk());
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(cluster_.RunStatus(run).step(), 5U);
}

TEST_F(MachineParkingTest, RollbackDiscardsTheEvaluation) {
  AddMembers(2, 2);
  v1::RunSpec spec = MakeSpec(2, 1, 5, 100);
  spec.mutable_evaluation()->set_every_steps(10);
  const std::string run = cluster_.Submit(spec);
  cluster_.behaviour.evaluate = false;
  for (int round = 0; round < 2; ++round) TrainBoth(run);
  ASSERT_TRUE(cluster_.StoredRun(run).has_evaluating());
  cluster_.behaviour.apply = false;
  cluster_.RollBackRun(run, 1);
  EXPECT_FALSE(cluster_.StoredRun(run).has_evaluating());
}

// The run was adopted, and has not started again.
TEST_F(MachineParkingTest, RunThatHasNotStartedIsQueuedAgain) {
  const std::string run = Begin();
  for (FakeWorker& worker : cluster_.workers()) cluster_.Kill(worker);
  cluster_.LoseStore();
  cluster_.Adopt();
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_QUEUED);
  disk_ = agg(0).shards;
  cluster_.Wipe(agg(0));
  cluster_.Run(absl::Minutes(1));
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED);
  RestoreAndResume(run);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_QUEUED);
}

}  // namespace
}  // namespace cadre::testing
