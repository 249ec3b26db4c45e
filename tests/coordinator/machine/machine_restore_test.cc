// Shards that have lost their values: every source from which they are restored, and parked runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "coordinator/store/keys.h"
#include "tests/coordinator/machine/restore_shard_test.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(RestoreShardTest, FirstVersionIsComputedAgain) {
  const std::string run = Begin(0);
  cluster_.Wipe(agg(0));
  EXPECT_EQ(ReasonOf(run), "");
  TrainBoth(run);
  EXPECT_EQ(VersionOf(run), 1u);
}

TEST_F(RestoreShardTest, SeedOfAGroup) {
  const std::string run = Begin();
  cluster_.behaviour.restage = false;
  cluster_.Wipe(agg(0));
  EXPECT_EQ(ReasonOf(run), "shard 0 on agg-0 is being restored from group 0");
  cluster_.behaviour.restage = true;
  for (int rank : {0, 1}) cluster_.Reconnect(cluster_.Rank(run, 0, rank));
  ExpectRestored(run);
  TrainBoth(run);
  EXPECT_EQ(VersionOf(run), 2u);
}

TEST_F(RestoreShardTest, RoundDoesNotCloseDuringRestoring) {
  const std::string run = Begin();
  cluster_.behaviour.restage = false;
  cluster_.Wipe(agg(0));
  Train(run, 1);
  Train(run, 0);
  EXPECT_FALSE(cluster_.Commit(run, 2).has_value());
  cluster_.behaviour.restage = true;
  for (FakeWorker& worker : cluster_.workers()) cluster_.Reconnect(worker);
  cluster_.behaviour.train = true;
  EXPECT_TRUE(cluster_.RunUntil([&] { return VersionOf(run) >= 3; }));
}

TEST_F(RestoreShardTest, NextGroupIfASeedIsRefused) {
  const std::string run = Begin();
  // Group 0 has staged its next contribution, which the coordinator does not know.
  FakeWorker& lead = cluster_.Lead(run, 0);
  lead.contributed = cluster_.ContributionOf(lead);
  cluster_.Wipe(agg(0));
  ExpectRestored(run);
  bool second = false;
  for (const v1::CoordinatorMessage& message : cluster_.Lead(run, 1).received) {
    second = second || message.restage().seed();
  }
  EXPECT_TRUE(second);
}

// The aggregator repeats the earlier order until the next one has arrived.
TEST_F(RestoreShardTest, AnswerToAnEarlierOrderConcernsNoOtherSource) {
  const std::string run = Begin();
  cluster_.behaviour.restage = false;
  cluster_.Wipe(agg(0));
  cluster_.Fail(cluster_.Lead(run, 0));
  const std::string reason = "shard 0 on agg-0 is being restored from group 1";
  ASSERT_EQ(ReasonOf(run), reason);
  v1::Applied earlier;
  earlier.set_run(run);
  earlier.set_round(1);
  earlier.add_missing(0);
  cluster_.Send(agg(0), earlier);
  EXPECT_EQ(ReasonOf(run), reason);
}

TEST_F(RestoreShardTest, ContributionsToTheNewestVersion) {
  const std::string run = Begin();
  cluster_.behaviour.slow_pulls = {0, 1};
  TrainBoth(run);
  ASSERT_EQ(VersionOf(run), 2u);
  cluster_.Wipe(agg(0));
  cluster_.behaviour.slow_pulls.clear();
  ExpectRestored(run);
  cluster_.Run(absl::Seconds(1));
  TrainBoth(run);
  EXPECT_EQ(VersionOf(run), 3u);
}

TEST_F(RestoreShardTest, ClosingRound) {
  const std::string run = Begin();
  cluster_.behaviour.apply = false;
  TrainBoth(run);
  ASSERT_TRUE(cluster_.Commit(run, 2).has_value());
  cluster_.behaviour.apply = true;
  cluster_.Wipe(agg(0));
  EXPECT_EQ(VersionOf(run), 1u) << "the other shard has not applied";
  cluster_.Reconnect(agg(1));
  EXPECT_EQ(VersionOf(run), 2u);
  ExpectRestored(run);
}

// The digest of the shard is recorded already, while another shard has not applied.
TEST_F(RestoreShardTest, ClosingRoundThatTheShardHadApplied) {
  const std::string run = Begin();
  cluster_.Kill(agg(1));
  TrainBoth(run);
  ASSERT_TRUE(cluster_.Commit(run, 2)->digests(0).applied());
  cluster_.Wipe(agg(0));
  cluster_.Restart(agg(1));
  EXPECT_EQ(VersionOf(run), 2u);
  ExpectRestored(run);
}

// The version before was damaged, which the aggregator notices when the round requires it.
TEST_F(RestoreShardTest, OpenShardTurnsOutToBeHollow) {
  const std::string run = Begin();
  cluster_.behaviour.apply = false;
  TrainBoth(run);
  cluster_.behaviour.apply = true;
  FakeAggregator::Shard& shard = agg(0).shards.at(run);
  shard.digests.clear();
  shard.hollow = 1;
  v1::RunOpened hollow;
  hollow.set_run(run);
  hollow.set_shards(2);
  hollow.set_version(1);
  hollow.set_hollow(true);
  cluster_.Send(agg(0), hollow);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_SHARD_LOST, "agg-0 has lost the values of shard 0"));
  cluster_.Reconnect(agg(1));
  EXPECT_EQ(VersionOf(run), 2u);
  ExpectRestored(run);
}

// Its disk is that of before the round.
TEST_F(RestoreShardTest, ClosingRoundThatTheShardHadAppliedAndLost) {
  const std::string run = Begin();
  const auto disk = agg(0).shards;
  cluster_.Kill(agg(1));
  TrainBoth(run);
  ASSERT_TRUE(cluster_.Commit(run, 2)->digests(0).applied());
  cluster_.Kill(agg(0));
  agg(0).shards = disk;
  cluster_.Restart(agg(0));
  cluster_.Restart(agg(1));
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_SHARD_LOST,
                       "shard 0 is lost: aggregator agg-0 holds version 1 of shard 0, but it had "
                       "applied round 2"));
  EXPECT_EQ(cluster_.Counter("shards_lost"), 1U);
  EXPECT_EQ(VersionOf(run), 2u);
  EXPECT_EQ(agg(0).shards.at(run).version, 2u);
  ExpectRestored(run);
}

TEST_F(RestoreShardTest, OpenRoundIfAllGroupsHaveContinued) {
  const std::string run = Begin();
  Train(run, 0);
  FakeWorker& other = cluster_.Lead(run, 1);
  other.contributed = cluster_.ContributionOf(other);
  cluster_.Wipe(agg(0));
  EXPECT_EQ(ReasonOf(run), "shard 0 on agg-0 is being restored from the round in progress");
  cluster_.Send(other, *other.contributed);
  EXPECT_EQ(VersionOf(run), 2u);
  ExpectRestored(run);
}

// The restoring awaits a group that hangs while it stages its contribution.
// No round is closing that the shard could have applied.
TEST_F(RestoreShardTest, AnswerWithoutAnOrderIsIgnored) {
  const std::string run = Begin();
  Train(run, 0);
  FakeWorker& other = cluster_.Lead(run, 1);
  other.contributed = cluster_.ContributionOf(other);
  cluster_.Wipe(agg(0));
  const std::string reason = "shard 0 on agg-0 is being restored from the round in progress";
  ASSERT_EQ(ReasonOf(run), reason);
  v1::Applied forged;
  forged.set_run(run);
  forged.set_round(2);
  cluster_.Send(agg(0), forged);
  EXPECT_EQ(ReasonOf(run), reason);
  forged.set_error("the disk is full");
  cluster_.Send(agg(0), forged);
  EXPECT_EQ(ReasonOf(run), reason);
}

TEST_F(RestoreShardTest, HungGroupIsNotAwaited) {
  const std::string run = Begin();
  Train(run, 0);
  FakeWorker& other = cluster_.Lead(run, 1);
  other.contributed = cluster_.ContributionOf(other);
  cluster_.Wipe(agg(0));
  for (const int rank : {0, 1}) {
    FakeWorker& hung = cluster_.Rank(run, 1, rank);
    hung.activity = v1::ACTIVITY_EXCHANGING;
    hung.hung = true;
  }
  EXPECT_TRUE(cluster_.RunUntil([&] { return VersionOf(run) == 2; }));
  EXPECT_EQ(cluster_.Counter("groups_stalled"), 1u);
  ExpectRestored(run);
}

// Group 1 still pulls version 2 from the lost shard, and group 0 has continued: no source can
// restore version 2. It is left out, and group 1 adopts version 3.
TEST_F(RestoreShardTest, GroupThatPullsALostVersionIsNotAwaited) {
  const std::string run = Begin();
  cluster_.behaviour.slow_pulls = {1};
  TrainBoth(run);
  ASSERT_EQ(VersionOf(run), 2u);
  Train(run, 0);
  const uint32_t generation = cluster_.Group(run, 1).generation();
  cluster_.Wipe(agg(0));
  EXPECT_EQ(VersionOf(run), 3u);
  ExpectRestored(run);
  EXPECT_GT(cluster_.Group(run, 1).generation(), generation);
  EXPECT_EQ(cluster_.Counter("groups_left_out"), 1u);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_GROUP_ENDED, "the version that it loads is lost"));
  cluster_.behaviour.slow_pulls.clear();
  cluster_.behaviour.train = true;
  EXPECT_TRUE(cluster_.RunUntil([&] { return VersionOf(run) >= 5; }));
}

// A pull from a lost shard cannot make progress.
TEST_F(RestoreShardTest, PullOfALostVersionHasNoDeadline) {
  const std::string run = Begin();
  cluster_.behaviour.slow_pulls = {1};
  TrainBoth(run);
  FakeWorker& other = cluster_.Lead(run, 0);
  other.contributed = cluster_.ContributionOf(other);
  cluster_.Wipe(agg(0));
  EXPECT_EQ(ReasonOf(run), "shard 0 on agg-0 is being restored from the round in progress");
  for (const int rank : {0, 1}) {
    FakeWorker& pulling = cluster_.Rank(run, 1, rank);
    pulling.activity = v1::ACTIVITY_EXCHANGING;
    pulling.hung = true;
  }
  cluster_.Run(absl::Minutes(10));
  EXPECT_EQ(cluster_.Counter("groups_stalled"), 0u);
  cluster_.Send(other, *other.contributed);
  EXPECT_EQ(VersionOf(run), 3u);
  ExpectRestored(run);
}

// The next round would need min_groups groups, and none is formed while a shard is lost.
TEST_F(RestoreShardTest, TooFewGroupsForTheOpenRoundParkTheRun) {
  AddMembers(2, 4);
  v1::RunSpec spec = MakeSpec(2, 2, 5, 100);
  spec.mutable_averaging()->set_min_groups(2);
  const std::string run = cluster_.Submit(spec);
  TrainBoth(run);
  cluster_.behaviour.slow_pulls = {1};
  TrainBoth(run);
  Train(run, 0);
  cluster_.Wipe(agg(0));
  EXPECT_FALSE(cluster_.Commit(run, 3).has_value());
  ExpectParked(run);
}

// A group may have adopted the lost version, and staged its next contribution, while its rank 0 was
// disconnected. The reports that follow its Hello say so.
TEST_F(RestoreShardTest, ReturningGroupIsAwaited) {
  const std::string run = Begin();
  cluster_.behaviour.slow_pulls = {1};
  TrainBoth(run);
  Train(run, 0);
  FakeWorker& late = cluster_.Lead(run, 1);
  const v1::Decision decision = *late.pulling;
  cluster_.Cut(late);
  late.pulling.reset();
  late.version = decision.version();
  late.step = decision.step();
  late.next_step = decision.next_step();
  late.adopted->set_version(decision.version());
  late.adopted->set_digest(decision.digest());
  late.contributed = cluster_.ContributionOf(late);
  cluster_.Wipe(agg(0));
  const uint32_t generation = cluster_.Group(run, 1).generation();
  cluster_.Connect(late);
  EXPECT_EQ(VersionOf(run), 3u);
  EXPECT_EQ(cluster_.Commit(run, 3)->participants_size(), 2);
  EXPECT_EQ(cluster_.Group(run, 1).generation(), generation);
  ExpectRestored(run);
}

TEST_F(RestoreShardTest, ReturningGroupIsAwaitedAfterRestart) {
  const std::string run = Begin();
  for (uint32_t group : {0, 1}) {
    FakeWorker& lead = cluster_.Lead(run, group);
    lead.contributed = cluster_.ContributionOf(lead);
  }
  const uint32_t generation = cluster_.Group(run, 1).generation();
  FakeWorker& late = cluster_.Lead(run, 1);
  late.alive = false;
  agg(0).shards.clear();
  agg(0).wiped = true;
  cluster_.RestartCoordinator();
  ASSERT_EQ(ReasonOf(run), "shard 0 on agg-0 is being restored from the round in progress");
  cluster_.Connect(late);
  EXPECT_EQ(VersionOf(run), 2u);
  EXPECT_EQ(cluster_.Commit(run, 2)->participants_size(), 2);
  EXPECT_EQ(cluster_.Group(run, 1).generation(), generation);
  ExpectRestored(run);
}

// After a restart, a group that pulls a lost version is left out when its rank 0 has returned.
TEST_F(RestoreShardTest, GroupThatPullsALostVersionIsNotAwaitedAfterRestart) {
  const std::string run = Begin();
  cluster_.behaviour.slow_pulls = {1};
  TrainBoth(run);
  Train(run, 0);
  agg(0).shards.clear();
  agg(0).wiped = true;
  cluster_.RestartCoordinator();
  EXPECT_EQ(VersionOf(run), 2u);
  EXPECT_TRUE(cluster_.RunUntil([&] { return VersionOf(run) == 3; }, absl::Seconds(5)));
  ExpectRestored(run);
}

TEST_F(RestoreShardTest, WrongDigestOfASeedTriesOtherSources) {
  const std::string run = Begin();
  cluster_.behaviour.seed_error = 1;
  cluster_.Wipe(agg(0));
  EXPECT_EQ(cluster_.Counter("shards_restored"), 0u);
  EXPECT_EQ(ReasonOf(run), "shard 0 on agg-0 is being restored from the round in progress");
  TrainBoth(run);
  EXPECT_EQ(VersionOf(run), 2u) << "the next version does not depend on the lost one";
  ExpectRestored(run);
}

// It has written the version, and is made hollow again.
TEST_F(RestoreShardTest, AggregatorsThatCompareNoDigestsAreNotTrusted) {
  const std::string run = Begin();
  cluster_.behaviour.seed_error = 1;
  cluster_.behaviour.compare_digests = false;
  cluster_.Wipe(agg(0));
  EXPECT_EQ(cluster_.Counter("shards_restored"), 0u);
  TrainBoth(run);
  EXPECT_EQ(VersionOf(run), 2u);
  ExpectRestored(run);
}

TEST_F(RestoreShardTest, AggregatorThatReturnsWhileTheRunIsParkedIsNotAway) {
  const std::string run = Begin();
  cluster_.Kill(agg(0));
  cluster_.Fail(cluster_.Lead(run, 0));
  cluster_.Fail(cluster_.Lead(run, 1));
  const auto disk = agg(0).shards;
  cluster_.Wipe(agg(0));
  ExpectParked(run);
  cluster_.Kill(agg(1));
  cluster_.Restart(agg(1));
  cluster_.Run(absl::Hours(2));
  RestoreDisk(agg(0), disk);
  cluster_.ResumeRun(run);
  cluster_.Run(absl::Seconds(30));
  const uint32_t generation = cluster_.Group(run, 0).generation();
  ASSERT_NE(generation, 0u) << ReasonOf(run);
  cluster_.Kill(agg(1));
  cluster_.Run(absl::Seconds(1));
  EXPECT_EQ(cluster_.Group(run, 0).generation(), generation) << cluster_.Group(run, 0).reason();
  EXPECT_EQ(cluster_.Counter("aggregator_waits_ended"), 0u);
}

TEST_F(RestoreShardTest, NoSourceParksTheRun) {
  const std::string run = Begin();
  cluster_.Kill(agg(0));
  // The groups fail while the shards are closed, so they are not formed again.
  cluster_.Fail(cluster_.Lead(run, 0));
  cluster_.Fail(cluster_.Lead(run, 1));
  const auto disk = agg(0).shards;
  cluster_.Wipe(agg(0));
  ExpectParked(run);
  // It stays parked after a restart, and its shards are kept.
  cluster_.RestartCoordinator();
  ExpectParked(run);
  EXPECT_FALSE(agg(1).shards.at(run).closed);

  cluster_.ResumeRun(run);
  EXPECT_TRUE(cluster_.last_status.ok()) << cluster_.last_status;
  ExpectParked(run);  // Nothing has changed.

  RestoreDisk(agg(0), disk);
  ExpectParked(run);
  cluster_.ResumeRun(run);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
  cluster_.ResumeRun(run);
  EXPECT_EQ(cluster_.last_status.code(), absl::StatusCode::kFailedPrecondition);
}

// It may have lost the version on which the round is based.
TEST_F(RestoreShardTest, ShardThatIsNotOpenReceivesNoApply) {
  const std::string run = Begin();
  cluster_.behaviour.open = false;
  cluster_.Reconnect(agg(0));
  agg(0).received.clear();
  TrainBoth(run);
  ASSERT_TRUE(cluster_.Commit(run, 2).has_value());
  for (const v1::CoordinatorMessage& message : agg(0).received) EXPECT_FALSE(message.has_apply());
  cluster_.behaviour.open = true;
  cluster_.Reconnect(agg(0));
  EXPECT_EQ(VersionOf(run), 2u);
}

TEST_F(RestoreShardTest, ParkedRunFreesItsWorkers) {
  const std::string run = Begin();
  const std::string next = cluster_.Submit(MakeSpec(2, 2, 5, 100));
  ASSERT_EQ(RunStateOf(next), v1::RUN_STATE_QUEUED);
  cluster_.behaviour.apply = false;
  TrainBoth(run);
  cluster_.behaviour.apply = true;
  cluster_.Kill(agg(0));
  cluster_.Fail(cluster_.Lead(run, 1));
  cluster_.Wipe(agg(0));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED);
  EXPECT_EQ(RunStateOf(next), v1::RUN_STATE_RUNNING);
}

// Its only group waits for the shard, and has reserved the workers.
TEST_F(RestoreShardTest, ResumedRunWaitsForWorkersAsARunningOne) {
  const std::string run = Begin();
  cluster_.Kill(agg(0));
  const auto disk = agg(0).shards;
  for (FakeWorker& worker : cluster_.workers()) cluster_.Kill(worker);
  cluster_.Run(absl::Minutes(1));
  cluster_.Wipe(agg(0));
  ExpectParked(run);
  RestoreDisk(agg(0), disk);
  cluster_.ResumeRun(run);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << "it has started before";
}

TEST_F(RestoreShardTest, ParkedRunReservesNoWorkers) {
  AddMembers(1, 2);
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 100));
  Train(run, 0);
  const std::string next = cluster_.Submit(MakeSpec(1, 2, 5, 100));
  cluster_.Kill(agg(0));
  cluster_.Fail(cluster_.Lead(run, 0));
  cluster_.Wipe(agg(0));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED);
  EXPECT_EQ(RunStateOf(next), v1::RUN_STATE_RUNNING);
}

// It is as long as the run file, and never changes.
TEST_F(RestoreShardTest, ResumeDoesNotStoreTheSpecAgain) {
  const std::string run = Begin();
  cluster_.Kill(agg(0));
  cluster_.Fail(cluster_.Lead(run, 0));
  cluster_.Fail(cluster_.Lead(run, 1));
  cluster_.Wipe(agg(0));
  ExpectParked(run);
  std::set<std::string> changed;
  for (const Action& action :
       HandleOne(cluster_.machine(), ResumeRun{.request = 900, .run = run}, cluster_.now())) {
    if (const auto* const op = std::get_if<Store::Op>(&action)) changed.insert(op->key);
  }
  EXPECT_TRUE(changed.contains(RunKey(run)));
  EXPECT_FALSE(changed.contains(SpecKey(run)));
}

TEST_F(RestoreShardTest, LostParticipantOfAClosingRoundParksTheRun) {
  const std::string run = Begin();
  cluster_.behaviour.apply = false;
  TrainBoth(run);
  cluster_.behaviour.apply = true;
  const auto disk = agg(0).shards;
  cluster_.Kill(agg(0));
  cluster_.Fail(cluster_.Lead(run, 1));
  cluster_.Wipe(agg(0));
  ExpectParked(run);
  cluster_.StopRun(run);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_STOPPED);
}

// The contribution of a group that has ended is on the disk of the shard; the other one is staged
// again.
TEST_F(RestoreShardTest, ClosingRoundOutlivesAParticipantWithADurableContribution) {
  const std::string run = Begin();
  Train(run, 0);
  FakeWorker& other = cluster_.Lead(run, 1);
  other.contributed = cluster_.ContributionOf(other);
  cluster_.Wipe(agg(0));
  cluster_.behaviour.apply = false;
  other.contributed.reset();
  cluster_.ContributeOnce(other);
  ASSERT_TRUE(cluster_.Commit(run, 2).has_value());
  cluster_.Fail(cluster_.Lead(run, 1));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << ReasonOf(run);
  cluster_.behaviour.apply = true;
  for (int i : {0, 1}) cluster_.Reconnect(agg(i));
  EXPECT_EQ(VersionOf(run), 2u) << ReasonOf(run);
}

// No further round closes at the end of a run, so none can replace the lost version.
TEST_F(RestoreShardTest, LostVersionAtTheEndParksTheRun) {
  AddMembers(2, 4);
  cluster_.behaviour.evaluate = false;
  const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 5));
  TrainBoth(run);
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_FINISHING);
  cluster_.behaviour.seed_error = 1;
  cluster_.Wipe(agg(0));
  ExpectParked(run);
}

// A group that was loading a version, or had loaded it, when the run was parked is not formed
// again, and is not awaited.
TEST_F(RestoreShardTest, ResumedRunForgetsItsGroups) {
  for (const bool load : {false, true}) {
    FakeCluster cluster;
    cluster.behaviour.train = false;
    for (const char* name : {"agg-0", "agg-1"}) cluster.AddAggregator(name);
    cluster.AddWorkers(4);
    const std::string run = cluster.Submit(MakeSpec(2, 2, 5, 100));
    for (uint32_t group : {0, 1}) cluster.ContributeOnce(cluster.Lead(run, group));
    cluster.behaviour.load = load;
    cluster.Fail(cluster.Lead(run, 1));
    ASSERT_TRUE(cluster.Lead(run, 1).start->catch_up());
    FakeWorker& lost = cluster.Lead(run, 1);
    cluster.behaviour.open_error = "no space";
    cluster.Restart(cluster.aggregators()[0]);
    ASSERT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_PARKED);
    cluster.Kill(lost);
    cluster.behaviour.open_error.clear();
    cluster.behaviour.load = true;
    cluster.behaviour.train = true;
    cluster.ResumeRun(run);
    EXPECT_TRUE(cluster.RunUntil([&] { return cluster.RunStatus(run).version() >= 5; }));
  }
}

TEST_F(RestoreShardTest, ClosingRoundIsFinishedAfterResume) {
  const std::string run = Begin();
  cluster_.behaviour.apply = false;
  TrainBoth(run);
  cluster_.behaviour.apply = true;
  const auto disk = agg(0).shards;
  cluster_.Kill(agg(0));
  cluster_.Fail(cluster_.Lead(run, 1));
  cluster_.Wipe(agg(0));
  ExpectParked(run);
  RestoreDisk(agg(0), disk);
  cluster_.ResumeRun(run);
  EXPECT_EQ(VersionOf(run), 2u);
}

// A shard is lost in the middle of a run whose coordinator crashes after each transaction.
TEST(RestoreShardCrashTest, CrashAfterEachTransaction) {
  const auto run_to_the_end = [](int crash_after) {
    FakeCluster cluster;
    if (crash_after > 0) cluster.CrashAfterTransaction(crash_after);
    cluster.AddAggregator("agg-0");
    cluster.AddAggregator("agg-1");
    cluster.AddWorkers(4);
    cluster.behaviour.train = false;
    cluster.Submit(MakeSpec(2, 2, 5, 20));
    const std::string run = "run-1-test";
    for (int round = 0; round < 4; ++round) {
      for (uint32_t group : {0, 1}) {
        if (!cluster.RunUntil(
                [&] { return cluster.Group(run, group).state() == v1::GROUP_STATE_TRAINING; })) {
          break;
        }
        cluster.ContributeOnce(cluster.Lead(run, group));
        if (round == 1) cluster.Wipe(cluster.aggregators()[group]);
      }
    }
    cluster.behaviour.train = true;
    EXPECT_TRUE(cluster.RunUntilEnded(run)) << cluster.RunStatus(run).ShortDebugString();
    EXPECT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_DONE)
        << cluster.RunStatus(run).reason();
    EXPECT_EQ(cluster.Counter("refused_wrong_digest"), 0u);
    if (crash_after == 0) {
      EXPECT_EQ(cluster.Counter("shards_restored"), 2u);
    }
    return std::pair(cluster.RunStatus(run), cluster.transactions());
  };
  const auto [whole, transactions] = run_to_the_end(0);
  EXPECT_EQ(whole.version(), 4u);
  for (int n = 1; n <= transactions; ++n) {
    SCOPED_TRACE(absl::StrCat("crash after transaction ", n, " of ", transactions));
    EXPECT_EQ(run_to_the_end(n).first.step(), whole.step());
  }
}

}  // namespace
}  // namespace cadre::testing
