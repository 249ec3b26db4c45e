// Shards that have lost their values: every source from which they are restored, parked runs, and
// the adoption of runs after the loss of the store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/protocol.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/store/keys.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RestoreShardTest : public MachineTest {
 protected:
  // Two shards and two groups of two workers; version 1 is committed.
  std::string Begin(uint32_t rounds = 1) {
    AddMembers(2, 4);
    const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 100));
    for (uint32_t round = 1; round <= rounds; ++round) TrainBoth(run);
    EXPECT_EQ(VersionOf(run), rounds);
    return run;
  }
  void TrainBoth(const std::string& run) {
    Train(run, 0);
    Train(run, 1);
  }
  uint32_t VersionOf(const std::string& run) { return cluster_.RunStatus(run).version(); }
  FakeAggregator& agg(int i) { return cluster_.aggregators()[i]; }
  void ExpectRestored(const std::string& run) {
    EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << ReasonOf(run);
    EXPECT_EQ(ReasonOf(run), "");
    EXPECT_EQ(cluster_.Counter("shards_restored"), 1u);
    EXPECT_EQ(cluster_.Counter("refused_wrong_digest"), 0u);
  }
  void ExpectParked(const std::string& run) {
    EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED);
    EXPECT_THAT(ReasonOf(run), AllOf(HasSubstr("aggregator agg-0"),
                                     HasSubstr(absl::StrCat("cadre resume ", run))));
    for (const FakeWorker& worker : cluster_.workers()) {
      EXPECT_FALSE(worker.assignment.has_value()) << "workers of a parked run are free";
    }
  }
};

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

  cluster_.Kill(agg(0));
  agg(0).shards = disk;
  agg(0).wiped = false;
  cluster_.Restart(agg(0));
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
       cluster_.machine().Handle(ResumeRun{.request = 900, .run = run}, cluster_.now())) {
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
  cluster_.Kill(agg(0));
  agg(0).shards = disk;
  agg(0).wiped = false;
  cluster_.Restart(agg(0));
  cluster_.ResumeRun(run);
  EXPECT_EQ(VersionOf(run), 2u);
}

// Hello of another process with the name of an aggregator and an empty folder.
v1::Hello ImpostorHello(const std::string& name) {
  v1::Hello hello;
  hello.set_protocol(kProtocol);
  hello.set_role(v1::ROLE_AGGREGATOR);
  hello.set_name(name);
  hello.set_incarnation("another process");
  hello.set_address("elsewhere:1");
  return hello;
}

TEST_F(RestoreShardTest, ImpostorIsRefused) {
  const std::string run = Begin();
  const ConnectionId impostor = cluster_.Open();
  const v1::Hello hello = ImpostorHello("agg-0");
  cluster_.SendFrom(impostor, hello);
  EXPECT_FALSE(cluster_.IsOpen(impostor));
  EXPECT_THAT(cluster_.SentTo(impostor).back().refused().reason(),
              HasSubstr("another process named agg-0"));
  EXPECT_NE(agg(0).connection, 0u);
  EXPECT_EQ(ReasonOf(run), "");
  // Once the process has gone, the name is free.
  cluster_.Kill(agg(0));
  const ConnectionId successor = cluster_.Open();
  cluster_.SendFrom(successor, hello);
  EXPECT_TRUE(cluster_.IsOpen(successor));
}

// Neither a parked run nor one that the coordinator does not know has open shards.
TEST_F(RestoreShardTest, ImpostorOfAnAggregatorWithoutOpenShardsIsRefused) {
  const std::string run = Begin();
  const auto expect_refused = [&] {
    const ConnectionId impostor = cluster_.Open();
    cluster_.SendFrom(impostor, ImpostorHello("agg-1"));
    EXPECT_FALSE(cluster_.IsOpen(impostor));
    EXPECT_NE(agg(1).connection, 0u);
  };
  for (FakeWorker& worker : cluster_.workers()) cluster_.Kill(worker);
  cluster_.Wipe(agg(0));
  cluster_.Run(absl::Minutes(1));
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_PARKED);
  cluster_.Reconnect(agg(1));
  expect_refused();
  cluster_.LoseStore();
  ASSERT_NE(agg(1).connection, 0u);
  expect_refused();
}

TEST_F(RestoreShardTest, FolderWithoutADeletedRunIsNoImpostor) {
  const std::string run = Begin();
  cluster_.Reconnect(agg(1));
  cluster_.StopRun(run);
  cluster_.DeleteRun(run);
  ASSERT_FALSE(agg(1).shards.contains(run));
  const ConnectionId successor = cluster_.Open();
  cluster_.SendFrom(successor, ImpostorHello("agg-1"));
  EXPECT_TRUE(cluster_.IsOpen(successor));
}

// The folder of another cluster, with higher generations.
TEST_F(RestoreShardTest, UnknownRunsDoNotEndGroups) {
  const std::string run = Begin();
  const uint32_t generation = cluster_.Group(run, 0).generation();
  FakeAggregator& other = cluster_.AddAggregator("agg-2");
  other.shards["other-7"] = agg(0).shards.at(run);
  other.shards["other-7"].lineage = "other-7.1";
  other.shards["other-7"].generations[0] = 5'000'000;
  cluster_.Restart(other);
  EXPECT_NE(other.connection, 0u);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), generation);
}

TEST_F(RestoreShardTest, ImplausibleGenerationIsIgnored) {
  const std::string run = Begin();
  const uint32_t generation = cluster_.Group(run, 0).generation();
  agg(0).shards.at(run).generations[0] = kMaxReportedNumber;
  cluster_.behaviour.open = false;
  cluster_.Reconnect(agg(0));
  cluster_.behaviour.open = true;
  EXPECT_EQ(cluster_.Group(run, 0).generation(), generation);
  EXPECT_EQ(cluster_.Counter("implausible_generations"), 1u);
  agg(0).shards.at(run).generations[0] = 5'000'000;
  cluster_.Reconnect(agg(0));
  EXPECT_GT(cluster_.Group(run, 0).generation(), 5'000'000u) << "the store is older";
  EXPECT_LT(cluster_.Group(run, 0).generation(), 10'000'000u);
}

// OpenRun would set aside what the folder stores.
TEST_F(RestoreShardTest, OtherLineageOfALiveRunIsRefused) {
  const std::string run = Begin();
  FakeAggregator& other = cluster_.AddAggregator("agg-2");
  other.shards[run] = agg(0).shards.at(run);
  other.shards[run].lineage = run + ".another";
  cluster_.Restart(other);
  ASSERT_FALSE(other.received.empty());
  EXPECT_EQ(other.received.back().refused().refusal(), v1::REFUSAL_WRONG_LINEAGE);
  EXPECT_THAT(other.received.back().refused().reason(),
              AllOf(HasSubstr("move the folder " + run), HasSubstr("--data-dir")));
  cluster_.StopRun(run);
  cluster_.Restart(other);
  EXPECT_NE(other.connection, 0u) << "the ended run orders nothing";
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

// ---- Adoption

class AdoptTest : public RestoreShardTest {
 protected:
  // The store is lost after version 2.
  std::string Lose() {
    const std::string run = Begin(2);
    digest_ = cluster_.RunStatus(run).digest();
    cluster_.LoseStore();
    return run;
  }
  std::string ProblemOf(const std::string& run) {
    const v1::AdoptReply reply = cluster_.Adopt(run);
    EXPECT_TRUE(cluster_.last_status.ok()) << cluster_.last_status;
    EXPECT_EQ(reply.runs_size(), 1);
    return reply.runs_size() == 1 ? reply.runs(0).problem() : "";
  }
  std::string digest_;
};

TEST_F(AdoptTest, RunContinues) {
  const std::string run = Lose();
  for (FakeAggregator& aggregator : cluster_.aggregators()) {
    EXPECT_FALSE(aggregator.shards.at(run).closed) << "unknown runs are left alone";
  }
  const uint32_t generation = agg(0).shards.at(run).generations.at(0);
  const v1::AdoptReply reply = cluster_.Adopt();
  ASSERT_EQ(reply.runs_size(), 1);
  EXPECT_EQ(reply.runs(0).run(), run);
  EXPECT_EQ(reply.runs(0).problem(), "");
  EXPECT_EQ(reply.runs(0).version(), 2u);
  EXPECT_EQ(reply.runs(0).step(), 10u);
  EXPECT_EQ(cluster_.RunStatus(run).digest(), digest_);
  EXPECT_EQ(cluster_.RunStatus(run).samples(), 2u * 10 * 32);
  cluster_.Run(absl::Seconds(2));
  EXPECT_GE(cluster_.Group(run, 0).generation(), generation + 1'000'000);
  cluster_.RestartCoordinator();  // What was adopted is durable.
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE) << ReasonOf(run);
  EXPECT_EQ(cluster_.RunStatus(run).step(), 100u);
  EXPECT_EQ(cluster_.Adopt().runs_size(), 0) << "the run is known";
  EXPECT_EQ(cluster_.Submit(MakeSpec(1, 1, 5, 10)), "run-2-test") << "numbers continue";
}

TEST_F(AdoptTest, NumbersOfUnknownRunsAreNotGivenAway) {
  const std::string run = Lose();
  cluster_.behaviour.prepare = false;
  EXPECT_EQ(cluster_.Submit(MakeSpec(1, 1, 5, 10)), "run-2-test");
  EXPECT_EQ(ProblemOf(run), "");
}

TEST_F(AdoptTest, MissingShard) {
  const std::string run = Lose();
  cluster_.Kill(agg(1));
  EXPECT_THAT(ProblemOf(run), HasSubstr("shard 1 of 2 is missing"));
  EXPECT_EQ(cluster_.Status().runs_size(), 0);
  cluster_.Restart(agg(1));
  EXPECT_EQ(ProblemOf(run), "");
}

TEST_F(AdoptTest, SilentAggregatorIsLeftOut) {
  const std::string run = Lose();
  cluster_.Do(AdoptRuns{.request = 900});
  agg(1).connection = 999;  // It does not receive the order.
  cluster_.Run(absl::Minutes(1));
  ASSERT_EQ(cluster_.last_adopted.runs_size(), 1);
  EXPECT_THAT(cluster_.last_adopted.runs(0).problem(), HasSubstr("shard 1 of 2 is missing"));
}

TEST_F(AdoptTest, ShardOneVersionAhead) {
  const std::string run = Begin(2);
  cluster_.Kill(agg(1));
  TrainBoth(run);
  ASSERT_EQ(agg(0).shards.at(run).version, 3u);
  cluster_.LoseStore();
  const v1::AdoptReply reply = cluster_.Adopt();
  ASSERT_EQ(reply.runs_size(), 1);
  EXPECT_THAT(reply.runs(0).problem(), HasSubstr("shard 1 of 2 is missing"));
  cluster_.Connect(agg(1));
  EXPECT_EQ(ProblemOf(run), "");
  EXPECT_EQ(VersionOf(run), 3u) << "the other shard has its contributions";
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
}

// Two coordinators have closed the round, and each of them has reached one of the shards.
TEST_F(AdoptTest, ShardsThatWereMadeOfDifferentContributions) {
  const std::string run = Lose();
  v1::Participant& participant = *agg(0).shards.at(run).newest.mutable_participants(0);
  participant.set_generation(participant.generation() + 1);
  EXPECT_THAT(ProblemOf(run), HasSubstr("agg-0 and agg-1 have made version 2 of different"));
  participant.set_generation(participant.generation() - 1);
  EXPECT_EQ(ProblemOf(run), "");
}

// The order of a seed names only the group that had the version, and not those that made it.
TEST_F(AdoptTest, RestoredShardAheadDoesNotCloseTheRoundAgain) {
  const std::string run = Begin(2);
  cluster_.Kill(agg(1));
  TrainBoth(run);
  agg(0).shards.at(run).newest.set_seed(true);
  cluster_.LoseStore();
  cluster_.Connect(agg(1));
  EXPECT_THAT(ProblemOf(run),
              HasSubstr("agg-1 does not have version 3 of shard 1, and which groups "
                        "made it is not known"));
}

TEST_F(AdoptTest, ShardAheadWithoutTheContributionsParksTheRun) {
  const std::string run = Begin(2);
  cluster_.Kill(agg(0));
  TrainBoth(run);
  ASSERT_EQ(agg(1).shards.at(run).version, 3u);
  cluster_.LoseStore();
  // The shard at version 2 has lost what was staged.
  agg(0).shards.at(run).hollow = 2;
  cluster_.Connect(agg(0));
  EXPECT_EQ(ProblemOf(run), "");
  ExpectParked(run);
}

TEST_F(AdoptTest, OtherLineage) {
  const std::string run = Lose();
  const std::string another = run + ".0123456789abcdef";
  for (std::string* lineage :
       {agg(1).shards.at(run).open.mutable_lineage(), &agg(1).shards.at(run).lineage}) {
    *lineage = another;
  }
  EXPECT_THAT(ProblemOf(run), AllOf(HasSubstr("agg-0 and agg-1"), HasSubstr(another)));
}

TEST_F(AdoptTest, EndedRun) {
  const std::string run = Begin();
  cluster_.StopRun(run);
  cluster_.LoseStore();
  EXPECT_EQ(cluster_.Adopt().runs_size(), 0);
  EXPECT_EQ(ProblemOf(run), "it has ended");
}

// Its aggregators were away when it was stopped and until its record was removed.
TEST(AdoptEvictedTest, EndedRunIsNotAdopted) {
  FakeCluster cluster([](Machine::Options& options) { options.keep_closed_runs = 1; });
  cluster.behaviour.train = false;
  cluster.AddWorker("w0");
  cluster.AddAggregator("agg-0");
  const std::string run = cluster.Submit(MakeSpec(1, 1, 5, 10));
  cluster.Kill(cluster.aggregators()[0]);
  cluster.StopRun(run);
  cluster.StopRun(cluster.Submit(MakeSpec(1, 1, 5, 10)));
  ASSERT_EQ(cluster.machine().Status(cluster.now(), run).runs_size(), 0);
  cluster.RestartCoordinator();
  FakeAggregator& aggregator = cluster.aggregators()[0];
  const FakeAggregator::Shard stored = aggregator.shards.at(run);
  cluster.Restart(aggregator);
  EXPECT_FALSE(aggregator.shards.contains(run)) << "the run was deleted with its record";
  // It returns with a disk of before it removed the files.
  aggregator.shards[run] = stored;
  cluster.Restart(aggregator);
  EXPECT_FALSE(aggregator.shards.contains(run));
  EXPECT_EQ(cluster.Adopt().runs_size(), 0);
}

// No record of the deletion remains after many others.
TEST(AdoptEvictedTest, ForgottenRunIsNotAdopted) {
  FakeCluster cluster([](Machine::Options& options) { options.keep_closed_runs = 0; });
  cluster.behaviour.train = false;
  cluster.AddWorker("w0");
  cluster.AddAggregator("agg-0");
  const std::string run = cluster.Submit(MakeSpec(1, 1, 5, 10));
  FakeAggregator& aggregator = cluster.aggregators()[0];
  const FakeAggregator::Shard stored = aggregator.shards.at(run);
  cluster.StopRun(run);
  ASSERT_FALSE(aggregator.shards.contains(run));
  for (int i = 0; i < 1024; ++i) cluster.StopRun(cluster.Submit(MakeSpec(1, 1, 5, 10)));
  aggregator.shards[run] = stored;
  cluster.Restart(aggregator);
  EXPECT_EQ(cluster.Adopt().runs_size(), 0);
  const v1::AdoptReply reply = cluster.Adopt(run);
  ASSERT_EQ(reply.runs_size(), 1);
  EXPECT_THAT(reply.runs(0).problem(), HasSubstr("it may have ended"));
  EXPECT_EQ(cluster.machine().Status(cluster.now(), run).runs_size(), 0);
}

// Both were submitted after the backup that the store was restored from.
TEST_F(AdoptTest, OlderUnknownRunAfterYoungerOneWasDeleted) {
  const std::string older = Begin();
  cluster_.AddWorkers(1);
  const std::string younger = cluster_.Submit(MakeSpec(1, 1, 5, 10));
  cluster_.LoseStore();
  EXPECT_EQ(ProblemOf(younger), "");
  cluster_.StopRun(younger);
  cluster_.DeleteRun(younger);
  ASSERT_EQ(cluster_.last_status, absl::OkStatus());
  EXPECT_EQ(ProblemOf(older), "");
}

struct MalformedReport {
  const char* label;
  void (*change)(FakeAggregator::Shard& shard);
  const char* problem;
};
class MalformedReportTest : public AdoptTest,
                            public ::testing::WithParamInterface<MalformedReport> {};

TEST_P(MalformedReportTest, IsRefused) {
  const std::string run = Lose();
  for (FakeAggregator& aggregator : cluster_.aggregators()) {
    GetParam().change(aggregator.shards.at(run));
  }
  const auto before = cluster_.store();
  EXPECT_THAT(ProblemOf(run), HasSubstr(GetParam().problem));
  EXPECT_EQ(cluster_.Status().runs_size(), 0);
  EXPECT_EQ(cluster_.store(), before);
}

INSTANTIATE_TEST_SUITE_P(
    All, MalformedReportTest,
    ::testing::Values(
        MalformedReport{"NoShards", [](auto& shard) { shard.open.set_shards(0); },
                        "agg-0 stores shard 0 of 0"},
        MalformedReport{"ShardOutOfRange", [](auto& shard) { shard.open.set_shard(2); },
                        "agg-0 stores shard 2 of 2"},
        MalformedReport{"OtherState", [](auto& shard) { shard.lineage = "other"; },
                        "agg-0 stores values of another run"},
        MalformedReport{"Lineage",
                        [](auto& shard) { shard.open.set_lineage(std::string(1000, 'x')); },
                        "agg-0 stores a malformed lineage"},
        MalformedReport{"Name", [](auto& shard) { shard.open.mutable_spec()->set_name("other"); },
                        "agg-0 stores a run of another name"},
        MalformedReport{
            "Generation",
            [](auto& shard) { (*shard.open.mutable_generations())[0] = 0xffffffffU - 1'000'000; },
            "agg-0 stores generation 4293967295"},
        MalformedReport{"NoOrder", [](auto& shard) { shard.newest.Clear(); },
                        "agg-0 does not store the order that made version 2"},
        MalformedReport{
            "Division",
            [](auto& shard) { shard.newest.mutable_division()->set_groups(0xffffffffU); },
            "agg-0 stores a division among 4294967295 groups"}),
    [](const auto& info) { return info.param.label; });

TEST(AdoptInvalidTest, SpecIsValidated) {
  bool valid = true;
  FakeCluster cluster([&](Machine::Options& options) {
    options.validate = [&](const v1::RunSpec&) {
      return valid ? absl::OkStatus() : absl::InvalidArgumentError("batch_per_group: is 0");
    };
  });
  cluster.behaviour.train = false;
  cluster.AddWorker("w0");
  cluster.AddAggregator("agg-0");
  const std::string run = cluster.Submit(MakeSpec(1, 1, 5, 10));
  cluster.LoseStore();
  valid = false;
  const v1::AdoptReply reply = cluster.Adopt(run);
  ASSERT_EQ(reply.runs_size(), 1);
  EXPECT_EQ(reply.runs(0).problem(), "batch_per_group: is 0");
  EXPECT_EQ(cluster.Status().runs_size(), 0);
}

// The next number must not wrap around.
TEST_F(AdoptTest, HugeRunNumber) {
  const std::string run = Lose();
  const std::string huge = "run-4294967295-test";
  for (FakeAggregator& aggregator : cluster_.aggregators()) {
    aggregator.shards[huge] = aggregator.shards.at(run);
    cluster_.Restart(aggregator);
  }
  EXPECT_EQ(ProblemOf(huge), "this is not the id of a run");
  EXPECT_EQ(cluster_.Submit(MakeSpec(1, 1, 5, 10)), "run-2-test");
  EXPECT_EQ(cluster_.Submit(MakeSpec(1, 1, 5, 10)), "run-3-test");
}

TEST_F(AdoptTest, UnknownName) {
  const std::string run = Lose();
  cluster_.Adopt("run-7");
  EXPECT_EQ(cluster_.last_status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ProblemOf(run), "");
  cluster_.Adopt(run);
  EXPECT_EQ(cluster_.last_status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(AdoptTest, RunAtItsEnd) {
  AddMembers(2, 4);
  const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 10));
  cluster_.behaviour.evaluate = false;
  TrainBoth(run);
  TrainBoth(run);
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_FINISHING);
  cluster_.behaviour.evaluate = true;
  cluster_.LoseStore();
  EXPECT_EQ(ProblemOf(run), "");
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster_.RunStatus(run).test().samples(), kTestSamples);
}

// ---- A store that was replaced by an older copy

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
  cluster_.RollBackStore(copy);
  EXPECT_EQ(VersionOf(run), 5u);
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
