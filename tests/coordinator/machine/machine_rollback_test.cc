// The versions that a run keeps, and its way back to one of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "tests/base/expect.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

v1::RunSpec KeepingSpec(uint32_t groups, uint32_t every, uint32_t count, uint32_t steps = 1000) {
  v1::RunSpec spec = MakeSpec(groups, 1, 5, steps);
  v1::KeepVersions& keep = *spec.mutable_averaging()->mutable_keep_versions();
  keep.set_every(every);
  keep.set_count(count);
  return spec;
}

std::vector<uint32_t> KeptIn(const v1::RunStatus& status) {
  std::vector<uint32_t> versions;
  for (const v1::KeptVersionStatus& kept : status.kept_versions()) {
    versions.push_back(kept.version());
  }
  return versions;
}

std::string DigestIn(const v1::RunStatus& status, uint32_t version) {
  for (const v1::KeptVersionStatus& kept : status.kept_versions()) {
    if (kept.version() == version) return kept.digest();
  }
  return "none";
}

class MachineRollbackTest : public MachineTest {
 protected:
  // Two shards, groups of one worker, and so many versions.
  std::string BeginAt(uint32_t version, uint32_t groups, const v1::RunSpec& spec) {
    const std::string run = Begin(groups, spec);
    TrainTo(run, version, groups);
    return run;
  }
  void TrainTo(const std::string& run, uint32_t version, uint32_t groups) {
    while (Status(run).version() < version) {
      const uint32_t before = Status(run).version();
      for (uint32_t group = 0; group < groups; ++group) Train(run, group);
      ASSERT_EQ(Status(run).version(), before + 1) << ReasonOf(run);
    }
  }
  v1::RunStatus Status(const std::string& run) { return cluster_.RunStatus(run); }
  std::vector<uint32_t> Kept(const std::string& run) { return KeptIn(Status(run)); }
  FakeAggregator& agg(int i) { return cluster_.aggregators()[i]; }
  // The versions on the disk of an aggregator, the oldest first.
  std::vector<uint32_t> OnDisk(const std::string& run, int aggregator) {
    std::vector<uint32_t> versions;
    for (const auto& [version, digest] : agg(aggregator).shards.at(run).digests) {
      versions.push_back(version);
    }
    return versions;
  }
};

TEST_F(MachineRollbackTest, VersionsAreKeptByThePolicy) {
  const std::string run = BeginAt(10, 2, KeepingSpec(2, 4, 2));
  EXPECT_THAT(Kept(run), ElementsAre(10, 9, 8, 4));
  EXPECT_THAT(OnDisk(run, 0), ElementsAre(4, 8, 9, 10));
  TrainTo(run, 17, 2);
  EXPECT_THAT(Kept(run), ElementsAre(17, 16, 12, 8));
  EXPECT_EQ(Status(run).kept_versions(3).step(), 40u);
  const std::string digest = DigestIn(Status(run), 8);
  // The record of version 8 is older than all that --keep-commits keeps.
  TrainTo(run, 26, 2);
  EXPECT_THAT(Kept(run), ElementsAre(26, 25, 24, 20));
  EXPECT_FALSE(cluster_.Commit(run, 8).has_value());
  cluster_.RestartCoordinator();
  EXPECT_THAT(Kept(run), ElementsAre(26, 25, 24, 20));
  EXPECT_NE(digest, "none");
}

TEST_F(MachineRollbackTest, RecordsOfKeptVersionsRemain) {
  FakeCluster cluster([](Machine::Options& options) { options.keep_commits = 2; });
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  const std::string run = cluster.Submit(KeepingSpec(1, 6, 1, 60));
  ASSERT_TRUE(cluster.RunUntilEnded(run));
  ASSERT_EQ(cluster.RunStatus(run).version(), 12u);
  EXPECT_THAT(KeptIn(cluster.RunStatus(run)), ElementsAre(12, 11, 6));
  for (uint32_t round = 0; round <= 12; ++round) {
    EXPECT_EQ(cluster.Commit(run, round).has_value(), round > 10 || round == 6) << round;
  }
}

TEST_F(MachineRollbackTest, DefaultKeepsOneOlderVersion) {
  const std::string run = BeginAt(9, 1, MakeSpec(1, 1, 5, 1000));
  EXPECT_THAT(Kept(run), ElementsAre(9, 8, 0));
}

TEST_F(MachineRollbackTest, NextVersionIsACopy) {
  const std::string run = BeginAt(4, 2, KeepingSpec(2, 1, 3));
  const v1::RunStatus before = Status(run);
  const absl::Time opened = cluster_.now();
  cluster_.Run(absl::Seconds(1));
  Train(run, 0);  // to a round that is never closed
  const absl::Time at = cluster_.now();
  const uint32_t generation = cluster_.Group(run, 0).generation();
  cluster_.RollBackRun(run, 2);
  ASSERT_EQ(cluster_.last_status, absl::OkStatus());
  const v1::RunStatus after = Status(run);
  EXPECT_EQ(after.state(), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(after.version(), 5u);
  EXPECT_EQ(after.step(), 10u);
  EXPECT_EQ(after.samples(), before.samples() / 2);
  EXPECT_EQ(after.digest(), DigestIn(before, 2));
  EXPECT_EQ(after.kept_versions(0).restores(), 2u);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_ROLLBACK, "rolled back to version 2"));
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_ROLLBACK, "version 5 is a copy of version 2, of step 10"));
  for (const uint32_t group : {0, 1}) {
    const FakeWorker& lead = cluster_.Lead(run, group);
    EXPECT_GT(lead.place().generation(), generation);
    EXPECT_EQ(lead.assignment->branch(), 5u);
    EXPECT_EQ(lead.start->version(), 5u);
    EXPECT_EQ(lead.start->step(), 10u);
    EXPECT_EQ(lead.start->next_step(), 15u);
  }
  TrainTo(run, 6, 2);
  EXPECT_EQ(Status(run).step(), 15u);
  EXPECT_EQ(cluster_.Commit(run, 5)->run(), run);
  EXPECT_EQ(cluster_.Commit(run, 5)->closed_ms(), absl::ToUnixMillis(at));
  EXPECT_EQ(cluster_.Commit(run, 5)->opened_ms(), absl::ToUnixMillis(opened));
  EXPECT_EQ(cluster_.Commit(run, 6)->participants_size(), 2);
  EXPECT_EQ(cluster_.Counter("refused_wrong_digest"), 0u);
}

// Those between the copy and its original are no way back.
TEST_F(MachineRollbackTest, PolicyLeavesTheAbandonedBranchOut) {
  const std::string run = BeginAt(7, 1, KeepingSpec(1, 2, 2));
  EXPECT_THAT(Kept(run), ElementsAre(7, 6, 4, 2));
  cluster_.RollBackRun(run, 2);
  EXPECT_THAT(Kept(run), ElementsAre(8, 7, 2)) << "the newest two remain in any case";
  TrainTo(run, 9, 1);
  EXPECT_THAT(Kept(run), ElementsAre(9, 8, 2));
  TrainTo(run, 11, 1);
  EXPECT_THAT(Kept(run), ElementsAre(11, 10, 8, 2));
}

TEST_F(MachineRollbackTest, VersionThatIsNotKeptIsRefused) {
  const std::string run = BeginAt(5, 1, KeepingSpec(1, 2, 1));
  for (const uint32_t version : {3, 6}) {
    cluster_.RollBackRun(run, version);
    EXPECT_THAT(cluster_.last_status,
                IsError(StatusCode::kFailedPrecondition,
                        absl::StrCat("version ", version, " of run ", run,
                                     " is not kept; those that are kept: 5, 4, 2")));
  }
  v1::LocateRequest locate;
  locate.set_run(run);
  locate.set_version(3);
  EXPECT_THAT(cluster_.machine().Locate(locate),
              IsError(StatusCode::kFailedPrecondition, "those that are kept: 5, 4, 2"));
  locate.set_version(2);
  const auto located = cluster_.machine().Locate(locate);
  ASSERT_TRUE(located.ok()) << located.status();
  EXPECT_EQ(located->step(), 10u);
  EXPECT_EQ(DigestHex(located->digest()), DigestIn(Status(run), 2));
  EXPECT_EQ(located->version(), 2u);
  v1::LocateRequest newest;
  newest.set_run(run);
  EXPECT_EQ(cluster_.machine().Locate(newest)->version(), 5u);
  EXPECT_EQ(cluster_.machine().Locate(newest)->step(), 25u);
  EXPECT_EQ(DigestHex(cluster_.machine().Locate(newest)->digest()), Status(run).digest());
  ASSERT_EQ(located->shards_size(), 2);
  EXPECT_EQ(located->shards(1).aggregator(), "agg-1");
  EXPECT_EQ(located->shards(1).address(), agg(1).address);
  EXPECT_EQ(located->lineage(), agg(1).shards.at(run).lineage);
  cluster_.Cut(agg(1));
  EXPECT_EQ(cluster_.machine().Locate(locate)->shards(1).address(), "");
  EXPECT_EQ(Status(run).version(), 5u);
}

TEST_F(MachineRollbackTest, RunsWithoutAWayBackSaySo) {
  cluster_.RollBackRun("run-9", 0);
  EXPECT_EQ(cluster_.last_status.code(), StatusCode::kNotFound);
  const std::string run = BeginAt(1, 1, KeepingSpec(1, 1, 1));
  cluster_.StopRun(run);
  cluster_.RollBackRun(run, 0);
  EXPECT_THAT(cluster_.last_status,
              IsError(StatusCode::kFailedPrecondition, "has ended (stopped)"));
  const std::string never = cluster_.Submit(MakeSpec(1, 1, 0, 100));
  cluster_.RollBackRun(never, 0);
  EXPECT_THAT(cluster_.last_status, IsError(StatusCode::kFailedPrecondition, "never averages"));
}

TEST_F(MachineRollbackTest, ClosingRoundIsFinishedFirst) {
  const std::string run = BeginAt(4, 2, KeepingSpec(2, 1, 3));
  const std::string digest = DigestIn(Status(run), 2);
  cluster_.behaviour.apply = false;
  for (const uint32_t group : {0, 1}) Train(run, group);
  // The closing round discards version 0, as it is no newer than three before it.
  EXPECT_THAT(Kept(run), ElementsAre(4, 3, 2, 1));
  cluster_.RollBackRun(run, 2);
  ASSERT_EQ(cluster_.last_status, absl::OkStatus());
  EXPECT_EQ(ReasonOf(run), "the run is being rolled back to version 2");
  EXPECT_EQ(Status(run).rolling_back_to(), 2u);
  cluster_.behaviour.apply = true;
  cluster_.RestartCoordinator();
  EXPECT_EQ(Status(run).version(), 6u);
  EXPECT_EQ(Status(run).digest(), digest);
  EXPECT_FALSE(Status(run).has_rolling_back_to());
  EXPECT_EQ(cluster_.Lead(run, 0).assignment->branch(), 6u);
}

TEST_F(MachineRollbackTest, LastRoundThatClosesBeforeTheRollbackDoesNotEndTheRun) {
  const std::string run = BeginAt(3, 1, KeepingSpec(1, 1, 3, 20));
  cluster_.behaviour.apply = false;
  Train(run);
  cluster_.RollBackRun(run, 2);
  EXPECT_THAT(cluster_.last_status, IsOk());
  cluster_.behaviour.apply = true;
  for (const int i : {0, 1}) cluster_.Reconnect(agg(i));
  EXPECT_EQ(Status(run).state(), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(Status(run).step(), 10U);
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(Status(run).state(), v1::RUN_STATE_DONE);
  EXPECT_EQ(Status(run).step(), 20U);
}

TEST_F(MachineRollbackTest, AggregatorThatIsAwayIsAwaited) {
  const std::string run = BeginAt(4, 1, KeepingSpec(1, 1, 3));
  const std::string digest = DigestIn(Status(run), 2);
  cluster_.Kill(agg(1));
  cluster_.RollBackRun(run, 2);
  cluster_.Run(absl::Minutes(1));
  EXPECT_EQ(Status(run).version(), 4u);
  EXPECT_THAT(ReasonOf(run), StartsWith("waiting for aggregator agg-1, away for "));
  cluster_.Restart(agg(1));
  EXPECT_EQ(Status(run).version(), 5u);
  EXPECT_EQ(Status(run).digest(), digest);
}

// A disk without the version: the run is parked, and another version can be chosen.
TEST_F(MachineRollbackTest, ShardThatLacksTheVersionParksTheRun) {
  const std::string run = BeginAt(4, 1, KeepingSpec(1, 1, 3));
  cluster_.Kill(agg(1));
  cluster_.RollBackRun(run, 2);
  agg(1).shards.at(run).digests.erase(2);
  cluster_.Restart(agg(1));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED);
  cluster_.ResumeRun(run);
  EXPECT_EQ(cluster_.Lead(run, 0).assignment->branch(), 0u) << "its optimizer states remain";
  cluster_.Kill(agg(1));
  cluster_.RollBackRun(run, 1);
  agg(1).shards.at(run).digests.erase(1);
  cluster_.Restart(agg(1));
  EXPECT_THAT(ReasonOf(run), AllOf(HasSubstr("version 1 of run"), HasSubstr("kept: 4, 3, 0"),
                                   HasSubstr(absl::StrCat("cadre rollback ", run))));
  const std::string digest = DigestIn(Status(run), 3);
  cluster_.RollBackRun(run, 3);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(Status(run).version(), 5u);
  EXPECT_EQ(Status(run).digest(), digest);
}

// The newest one is restored.
TEST_F(MachineRollbackTest, OlderVersionsOfALostShardAreNotKept) {
  const std::string run = BeginAt(4, 2, KeepingSpec(2, 1, 3));
  ASSERT_EQ(Kept(run).size(), 5u);
  cluster_.Wipe(agg(0));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  EXPECT_THAT(Kept(run), ElementsAre(4));
  TrainTo(run, 6, 2);
  EXPECT_THAT(Kept(run), ElementsAre(6, 5, 4));
}

TEST_F(MachineRollbackTest, RestoredVersionCanBeChosen) {
  const std::string run = BeginAt(4, 2, KeepingSpec(2, 1, 3));
  const std::string digest = DigestIn(Status(run), 4);
  cluster_.Wipe(agg(0));
  for (const uint32_t version : {5, 6}) {
    cluster_.RollBackRun(run, version - 1);
    ASSERT_EQ(cluster_.last_status, absl::OkStatus());
    EXPECT_EQ(Status(run).version(), version);
    EXPECT_EQ(Status(run).digest(), digest);
  }
}

// The aggregator returns without its disk: only the groups have the version.
TEST_F(MachineRollbackTest, GroupsRestoreTheShardFirst) {
  const std::string run = BeginAt(4, 2, KeepingSpec(2, 1, 3));
  const std::string digest = DigestIn(Status(run), 4);
  const uint32_t generation = cluster_.Group(run, 0).generation();
  cluster_.Kill(agg(1));
  cluster_.RollBackRun(run, 4);
  ASSERT_EQ(cluster_.last_status, absl::OkStatus());
  cluster_.Run(absl::Minutes(1));
  EXPECT_THAT(ReasonOf(run), StartsWith("waiting for aggregator agg-1, away for "));
  EXPECT_EQ(Status(run).rolling_back_to(), 4u);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), generation);
  cluster_.Wipe(agg(1));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << ReasonOf(run);
  EXPECT_EQ(Status(run).version(), 5u);
  EXPECT_EQ(Status(run).digest(), digest);
  EXPECT_EQ(cluster_.Lead(run, 0).assignment->branch(), 5u);
  TrainTo(run, 6, 2);
}

// The same, but the groups hold only their contributions to the open round.
TEST_F(MachineRollbackTest, OpenRoundRestoresTheShardFirst) {
  const std::string run = BeginAt(4, 2, KeepingSpec(2, 1, 3));
  Train(run, 0);
  cluster_.Kill(agg(1));
  cluster_.RollBackRun(run, 4);
  ASSERT_EQ(cluster_.last_status, absl::OkStatus());
  Train(run, 1);
  cluster_.Wipe(agg(1));
  cluster_.Run(absl::Minutes(1));
  EXPECT_FALSE(Status(run).has_rolling_back_to()) << ReasonOf(run);
}

TEST_F(MachineRollbackTest, DivergedRunContinuesFromAnOlderVersion) {
  const std::string run = BeginAt(4, 1, KeepingSpec(1, 1, 3));
  const std::string digest = DigestIn(Status(run), 1);
  cluster_.Fail(cluster_.Lead(run, 0), "loss is nan", v1::FAILURE_CAUSE_DIVERGED);
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED);
  EXPECT_THAT(Kept(run), ElementsAre(4, 3, 2, 1, 0));
  cluster_.RestartCoordinator();
  EXPECT_TRUE(Status(run).diverged());
  cluster_.RollBackRun(run, 1);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  EXPECT_FALSE(Status(run).diverged());
  EXPECT_EQ(Status(run).digest(), digest);
  TrainTo(run, 6, 1);
}

TEST_F(MachineRollbackTest, RunAtItsEndGoesBack) {
  const std::string run = Begin(2, KeepingSpec(2, 1, 3, 20));
  cluster_.behaviour.evaluate = false;
  TrainTo(run, 4, 2);
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_FINISHING);
  cluster_.RollBackRun(run, 3);
  cluster_.behaviour.evaluate = true;
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(Status(run).step(), 15u);
  for (const uint32_t group : {0, 1}) Train(run, group);
  EXPECT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(Status(run).version(), 6u);
  EXPECT_EQ(Status(run).test().version(), 6u);
}

TEST_F(MachineRollbackTest, GroupIsLeftOutUntilTheRunIsScaled) {
  const std::string run = BeginAt(3, 3, KeepingSpec(3, 1, 3));
  cluster_.RollBackRun(run, 1, {1});
  ASSERT_EQ(cluster_.last_status, absl::OkStatus());
  EXPECT_THAT(Status(run).left_out_groups(), ElementsAre(1));
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_WAITING);
  EXPECT_THAT(cluster_.Group(run, 1).reason(), HasSubstr("left out"));
  for (const uint32_t group : {0, 2}) Train(run, group);
  EXPECT_EQ(Status(run).version(), 5u);
  cluster_.RestartCoordinator();
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_WAITING);
  cluster_.Scale(run, 3);
  EXPECT_THAT(Status(run).left_out_groups(), IsEmpty());
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_TRAINING);
}

TEST_F(MachineRollbackTest, GroupsThatAreNeededAreNotLeftOut) {
  v1::RunSpec spec = KeepingSpec(2, 1, 3);
  spec.mutable_averaging()->set_quorum(2);
  spec.mutable_checkpoint()->set_directory("/checkpoints");
  const std::string run = BeginAt(2, 2, spec);
  const auto expect = [&](const std::vector<uint32_t>& groups, const std::string& reason) {
    cluster_.RollBackRun(run, 1, groups);
    EXPECT_THAT(cluster_.last_status, IsError(StatusCode::kInvalidArgument, reason));
  };
  expect({2}, "has no group 2");
  expect({1}, "less than averaging.quorum");
  EXPECT_EQ(Status(run).version(), 2u);
}

// The number of groups changes with the copy.
TEST_F(MachineRollbackTest, GroupsThatAreRemovedAnywayAreNotLeftOut) {
  const std::string run = BeginAt(2, 3, KeepingSpec(3, 1, 3));
  cluster_.Scale(run, 1);
  cluster_.RollBackRun(run, 1, {1});
  EXPECT_THAT(cluster_.last_status,
              IsError(StatusCode::kInvalidArgument, "has no group 1, but groups 0 to 0"));
  cluster_.RollBackRun(run, 1, {0});
  EXPECT_THAT(cluster_.last_status,
              IsError(StatusCode::kInvalidArgument, "0 groups would remain, less than averaging."));
  cluster_.RollBackRun(run, 1);
  EXPECT_THAT(cluster_.last_status, IsOk());
  EXPECT_EQ(Status(run).groups(), 1u);
}

TEST_F(MachineRollbackTest, AnotherGroupWritesTheCheckpointsOfOneThatIsLeftOut) {
  v1::RunSpec spec = KeepingSpec(2, 1, 3);
  spec.mutable_checkpoint()->set_directory("/checkpoints");
  const std::string run = BeginAt(2, 2, spec);
  cluster_.RollBackRun(run, 1, {0});
  EXPECT_THAT(cluster_.last_status, IsOk());
  ASSERT_TRUE(cluster_.RunUntil([&] { return StateOf(run, 1) == v1::GROUP_STATE_TRAINING; }));
  EXPECT_EQ(cluster_.Lead(run, 1).assignment->spec().checkpoint().directory(), "/checkpoints");
}

TEST_F(MachineRollbackTest, GroupZeroMayBeLeftOutWithoutCheckpoints) {
  const std::string run = BeginAt(2, 2, KeepingSpec(2, 1, 3));
  cluster_.RollBackRun(run, 1, {0});
  EXPECT_THAT(cluster_.last_status, IsOk());
  EXPECT_THAT(Status(run).left_out_groups(), ElementsAre(0));
}

// The coordinator crashes after each transaction of a run that is rolled back on its way.
TEST(MachineRollbackCrashTest, EveryCrashIsSurvived) {
  std::string digest;
  for (int n = 0, transactions = 1; n <= transactions; ++n) {
    SCOPED_TRACE(absl::StrCat("crash after transaction ", n));
    FakeCluster cluster;
    cluster.behaviour.train = false;
    for (const char* name : {"agg-0", "agg-1"}) cluster.AddAggregator(name);
    cluster.AddWorkers(2);
    const std::string run = cluster.Submit(KeepingSpec(2, 1, 3, 40));
    const auto train = [&] {
      for (const uint32_t group : {0, 1}) cluster.ContributeOnce(cluster.Lead(run, group));
    };
    for (int round = 0; round < 4; ++round) train();
    ASSERT_EQ(cluster.RunStatus(run).version(), 4u);
    const std::string original = DigestIn(cluster.RunStatus(run), 2);
    const int before = cluster.transactions();
    if (n > 0) cluster.CrashAfterTransaction(n);
    cluster.RollBackRun(run, 2);
    ASSERT_TRUE(cluster.RunUntil([&] {
      return cluster.RunStatus(run).version() == 5 && cluster.RunStatus(run).groups_alive() == 2;
    })) << cluster.RunStatus(run).reason();
    EXPECT_EQ(cluster.RunStatus(run).digest(), original);
    EXPECT_EQ(cluster.RunStatus(run).step(), 10u);
    if (n == 0) transactions = cluster.transactions() - before;
    cluster.behaviour.train = true;
    ASSERT_TRUE(cluster.RunUntilEnded(run));
    EXPECT_EQ(cluster.RunStatus(run).version(), 11u);
    EXPECT_EQ(cluster.Counter("refused_wrong_digest"), 0u);
  }
}

// A coordinator that has lost its store finds the copy on the aggregators.
TEST_F(MachineRollbackTest, AdoptedRunContinuesTheCopy) {
  const std::string run = BeginAt(4, 1, KeepingSpec(1, 1, 3));
  cluster_.RollBackRun(run, 2);
  const v1::RunStatus before = Status(run);
  cluster_.LoseStore();
  cluster_.Adopt();
  const v1::RunStatus after = Status(run);
  EXPECT_EQ(after.version(), 5u);
  EXPECT_EQ(after.digest(), before.digest());
  EXPECT_EQ(after.step(), 10u);
  EXPECT_EQ(after.samples(), before.samples());
  ASSERT_TRUE(cluster_.RunUntil([&] { return Status(run).groups_alive() == 1; })) << ReasonOf(run);
  TrainTo(run, 6, 1);
}

// There are no further steps, and the generations end with the rollback.
TEST_F(MachineRollbackTest, GroupsDoNothingAfterTheLastStepWhileARollbackWaits) {
  const std::string run = BeginAt(2, 2, KeepingSpec(2, 1, 3, 15));
  cluster_.behaviour.apply = false;
  for (uint32_t group = 0; group < 2; ++group) Train(run, group);
  cluster_.RollBackRun(run, 1);
  ASSERT_EQ(cluster_.last_status, absl::OkStatus());
  cluster_.behaviour.apply = true;
  cluster_.Reconnect(agg(1));
  cluster_.Kill(agg(1));
  cluster_.Reconnect(agg(0));
  EXPECT_EQ(Status(run).version(), 3u);
  EXPECT_EQ(Status(run).step(), 15u);
  EXPECT_EQ(LastDecision(run, 0).version(), 2u);
  cluster_.Restart(agg(1));
  EXPECT_EQ(Status(run).version(), 4u) << ReasonOf(run);
  EXPECT_EQ(Status(run).step(), 5u);
  EXPECT_EQ(cluster_.Counter("groups_failed"), 0u);
}

}  // namespace
}  // namespace cadre::testing
