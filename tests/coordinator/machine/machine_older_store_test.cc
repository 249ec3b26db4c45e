// A store that was replaced by an older copy, in the coordinator's state machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "coordinator/cluster/journal.h"
#include "coordinator/store/keys.h"
#include "tests/coordinator/machine/restore_shard_test.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class OlderStoreTest : public RestoreShardTest {
 protected:
  using Records = std::map<std::string, std::string>;
  // As `cadre backup` makes it.
  Records BackUp() {
    Records copy = cluster_.store();
    v1::MetaRecord meta;
    EXPECT_TRUE(meta.ParseFromString(copy.at(kMetaKey)));
    generation_ = meta.generation();
    meta.set_backup(true);
    copy[kMetaKey] = meta.SerializeAsString();
    return copy;
  }
  void ExpectDone(const std::string& run) {
    cluster_.behaviour.train = true;
    ASSERT_TRUE(cluster_.RunUntilEnded(run)) << ReasonOf(run);
    EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE) << ReasonOf(run);
    EXPECT_EQ(cluster_.RunStatus(run).step(), 100u);
    EXPECT_EQ(cluster_.Counter("refused_wrong_digest"), 0u);
    EXPECT_EQ(cluster_.Counter("shards_lost"), 0u);
  }
  uint32_t generation_ = 0;
};

TEST_F(OlderStoreTest, RunContinuesFromItsNewestVersion) {
  const std::string run = Begin(2);
  const Records copy = BackUp();
  for (int round = 0; round < 3; ++round) TrainBoth(run);
  const v1::RunStatus before = cluster_.RunStatus(run);
  ASSERT_EQ(before.version(), 5u);
  const auto samples_of_round = [&] {
    v1::CommitRecord commit;
    EXPECT_TRUE(commit.ParseFromString(cluster_.store().at(CommitKey(run, 5))));
    return commit.samples();
  };
  const uint64_t samples = samples_of_round();
  EXPECT_GT(samples, 0u);
  ASSERT_GT(cluster_.History(run).entries_size(), 0);
  cluster_.RollBackStore(copy);
  EXPECT_EQ(VersionOf(run), 5u);
  EXPECT_EQ(cluster_.Counter("runs_brought_forward"), 1U);
  EXPECT_EQ(cluster_.History(run).entries_size(), 0) << "that of the copy is not continued";
  EXPECT_EQ(samples_of_round(), samples);
  EXPECT_EQ(cluster_.RunStatus(run).digest(), before.digest());
  EXPECT_EQ(cluster_.RunStatus(run).step(), before.step());
  EXPECT_EQ(cluster_.RunStatus(run).samples(), before.samples());
  cluster_.Run(absl::Seconds(2));
  EXPECT_GE(cluster_.Group(run, 0).generation(), generation_ + kBackupGap);
  cluster_.RestartCoordinator();
  EXPECT_EQ(VersionOf(run), 5u) << "what was rebuilt is durable";
  ExpectDone(run);
}

TEST_F(OlderStoreTest, NothingHasChangedSince) {
  const std::string run = Begin(2);
  cluster_.RollBackStore(BackUp());
  EXPECT_EQ(cluster_.Counter("runs_behind"), 0u);
  ExpectDone(run);
}

// Members do not return to a generation that has ended since, so none may be waited for.
TEST_F(OlderStoreTest, GroupsOfTheBackupEnd) {
  const std::string run = Begin(2);
  cluster_.behaviour.prepare = false;
  cluster_.Fail(cluster_.workers()[0]);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.workers()[0].assignment.has_value(); }));
  const uint32_t generation = cluster_.Group(run, 0).generation();
  cluster_.RollBackStore(BackUp());
  cluster_.Run(absl::Seconds(2));
  EXPECT_GE(cluster_.Group(run, 0).generation(), generation + kBackupGap);
  cluster_.behaviour.prepare = true;
  ExpectDone(run);
}

// The run is at its last step, which its older record does not have.
TEST_F(OlderStoreTest, RunAtItsEndIsEvaluated) {
  AddMembers(2, 4);
  const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 10));
  cluster_.behaviour.evaluate = false;
  TrainBoth(run);
  const Records copy = BackUp();
  TrainBoth(run);
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_FINISHING);
  cluster_.behaviour.evaluate = true;
  cluster_.RollBackStore(copy);
  ASSERT_TRUE(cluster_.RunUntilEnded(run)) << ReasonOf(run);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster_.RunStatus(run).test().samples(), kTestSamples);
}

// The last round is finished by the rebuilt run, which does not know its data yet.
TEST_F(OlderStoreTest, RunThatClosesItsLastRoundIsEvaluated) {
  AddMembers(2, 4);
  const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 10));
  TrainBoth(run);
  const Records copy = BackUp();
  cluster_.Kill(agg(1));
  TrainBoth(run);
  ASSERT_EQ(agg(0).shards.at(run).version, 2u);
  cluster_.RollBackStore(copy);
  cluster_.Restart(agg(1));
  ASSERT_TRUE(cluster_.RunUntilEnded(run)) << ReasonOf(run);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster_.RunStatus(run).test().samples(), kTestSamples);
}

// In the copy, the run has not chosen its aggregators, and those that have its values are away.
TEST_F(OlderStoreTest, ShardsThatWereOpenedInsteadAreLeftovers) {
  cluster_.AddAggregator("agg-1");
  cluster_.AddAggregator("agg-2");
  const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 100));
  const Records copy = BackUp();
  cluster_.AddWorkers(4);
  TrainBoth(run);
  TrainBoth(run);
  cluster_.AddAggregator("agg-0");
  const auto before = cluster_.aggregators();
  for (int i = 0; i < 2; ++i) cluster_.Kill(cluster_.aggregators()[i]);
  cluster_.behaviour.prepare = false;
  cluster_.RollBackStore(copy);
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.aggregators()[2].shards.contains(run); }));
  for (int i = 0; i < 2; ++i) cluster_.Restart(cluster_.aggregators()[i]);
  EXPECT_EQ(VersionOf(run), 2u) << ReasonOf(run);
  cluster_.behaviour.prepare = true;
  ExpectDone(run);
}

// An aggregator has made a version of the round that is open in the copy.
TEST_F(OlderStoreTest, RoundClosesOnlyWhenAllShardsAreKnown) {
  const std::string run = Begin(1);
  // Not made by `cadre backup`, so the groups continue.
  const Records copy = cluster_.store();
  cluster_.Kill(agg(0));
  TrainBoth(run);
  ASSERT_EQ(agg(1).shards.at(run).version, 2u);
  cluster_.Kill(agg(1));
  cluster_.RollBackStore(copy);
  cluster_.Restart(agg(0));
  TrainBoth(run);
  EXPECT_FALSE(cluster_.Commit(run, 2).has_value());
  cluster_.Restart(agg(1));
  EXPECT_EQ(VersionOf(run), 2u);
  ExpectDone(run);
}

// A coordinator that is replaced while it closes a round, and returns: the other one has closed the
// same round differently.
TEST_F(OlderStoreTest, RoundThatWasClosedDifferently) {
  const std::string run = Begin(1);
  const Records copy = BackUp();
  cluster_.behaviour.apply = false;
  TrainBoth(run);
  ASSERT_EQ(cluster_.Commit(run, 2)->participants_size(), 2);
  const Records first = cluster_.store();
  cluster_.behaviour.apply = true;
  cluster_.RollBackStore(copy);
  TrainBoth(run);
  const v1::CommitRecord made = *cluster_.Commit(run, 2);
  ASSERT_TRUE(made.committed());
  cluster_.RollBackStore(first);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << ReasonOf(run);
  EXPECT_EQ(VersionOf(run), 2u);
  const v1::CommitRecord rebuilt = *cluster_.Commit(run, 2);
  ASSERT_EQ(rebuilt.participants_size(), 2);
  EXPECT_EQ(rebuilt.participants(0).generation(), made.participants(0).generation());
  EXPECT_EQ(rebuilt.digest(), made.digest());
  ExpectDone(run);
}

// The lineage is not a secret among aggregators.
TEST_F(OlderStoreTest, AggregatorWithoutAShardShowsNothing) {
  const std::string run = Begin(2);
  FakeAggregator& other = cluster_.AddAggregator("agg-2");
  other.shards[run] = agg(0).shards.at(run);
  other.shards[run].closed = true;
  cluster_.Restart(other);
  EXPECT_EQ(cluster_.Counter("runs_behind"), 0u);
  ExpectDone(run);
}

TEST_F(OlderStoreTest, NumbersOfRunsAreNotReused) {
  Begin(1);
  const Records copy = BackUp();
  const std::string lost = cluster_.Submit(MakeSpec(2, 2, 5, 100));
  cluster_.RollBackStore(copy);
  EXPECT_NE(cluster_.Submit(MakeSpec(2, 2, 5, 100)), lost);
}

TEST_F(OlderStoreTest, WaitsForAllShards) {
  const std::string run = Begin(1);
  const Records copy = BackUp();
  TrainBoth(run);
  cluster_.Kill(agg(1));
  TrainBoth(run);  // Only agg-0 makes version 3.
  ASSERT_EQ(agg(0).shards.at(run).version, 3u);
  cluster_.RollBackStore(copy);
  EXPECT_THAT(ReasonOf(run), HasSubstr("shard 1 of 2 is missing"));
  cluster_.ResumeRun(run);
  EXPECT_EQ(cluster_.last_status.code(), absl::StatusCode::kFailedPrecondition);
  cluster_.Run(absl::Minutes(1));
  for (const FakeWorker& worker : cluster_.workers()) EXPECT_FALSE(worker.assignment.has_value());
  EXPECT_EQ(agg(0).shards.at(run).version, 3u) << "nothing is discarded";
  cluster_.Restart(agg(1));
  EXPECT_EQ(VersionOf(run), 3u) << "the round is finished on the other shard";
  ExpectDone(run);
}

TEST_F(OlderStoreTest, RunThatHadNoShards) {
  cluster_.AddAggregator("agg-0");
  cluster_.AddAggregator("agg-1");
  const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 100));
  const Records copy = BackUp();
  cluster_.AddWorkers(4);
  TrainBoth(run);
  TrainBoth(run);
  cluster_.RollBackStore(copy);
  EXPECT_EQ(VersionOf(run), 2u);
  ExpectDone(run);
}

TEST_F(OlderStoreTest, RunThatHasEndedDoesNotContinue) {
  const std::string run = Begin(1);
  const Records copy = BackUp();
  TrainBoth(run);
  cluster_.StopRun(run);
  cluster_.RollBackStore(copy);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_STOPPED);
  EXPECT_THAT(ReasonOf(run), HasSubstr("it had ended"));
  cluster_.DeleteRun(run);
  EXPECT_FALSE(agg(0).shards.contains(run) || agg(1).shards.contains(run));
}

TEST_F(OlderStoreTest, RunIsBehindUntilItIsStopped) {
  const std::string run = Begin(1);
  const Records copy = BackUp();
  TrainBoth(run);
  cluster_.Kill(agg(1));
  cluster_.RollBackStore(copy);
  ASSERT_THAT(ReasonOf(run), HasSubstr("shard 1 of 2 is missing"));
  cluster_.StopRun(run);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_STOPPED);
  EXPECT_TRUE(agg(0).shards.at(run).closed);
  cluster_.Restart(agg(1));
  EXPECT_TRUE(agg(1).shards.at(run).closed);
}

// A copy of the file that no backup has made, of a coordinator that has been started often since.
// The aggregators know which generations were assigned.
TEST_F(OlderStoreTest, PlainCopyAssignsNoGenerationTwice) {
  const std::string run = Begin(1);
  const Records copy = cluster_.store();
  for (int start = 0; start < 3; ++start) cluster_.RestartCoordinator();
  cluster_.Fail(cluster_.Lead(run, 0));
  cluster_.Run(absl::Minutes(1));
  const uint32_t newest = cluster_.Group(run, 0).generation();
  ASSERT_GT(newest, 300'000u);
  for (FakeAggregator& aggregator : cluster_.aggregators()) cluster_.Reconnect(aggregator);
  cluster_.RollBackStore(copy);
  cluster_.Run(absl::Minutes(1));
  EXPECT_GT(cluster_.Group(run, 0).generation(), newest);
  EXPECT_GT(cluster_.Group(run, 1).generation(), newest);
  ExpectDone(run);
}

}  // namespace
}  // namespace cadre::testing
