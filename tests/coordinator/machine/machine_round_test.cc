// Rounds: valid and invalid contributions, decisions, digests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <limits>

#include "tests/coordinator/machine/round_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(MachineRoundTest, OrdersNameTheOuterUpdate) {
  v1::RunSpec spec = MakeSpec(2, 1, 5, 100);
  spec.mutable_averaging()->mutable_outer()->mutable_slowmo()->set_momentum(0.5F);
  const std::string run = Begin(2, spec);
  for (uint32_t group = 0; group < 2; ++group) {
    v1::Contributed contributed = cluster_.ContributionOf(cluster_.Lead(run, group));
    contributed.set_rate(0.25F);
    Contribute(cluster_.Lead(run, group), contributed);
  }
  const v1::OuterStep step = cluster_.Commit(run, 1)->outer();
  EXPECT_EQ(step.rate(), 0.25F);
  EXPECT_EQ(step.optimizer().slowmo().momentum(), 0.5F);
  EXPECT_EQ(step.optimizer().slowmo().learning_rate(), 1) << "the default";
  EXPECT_EQ(cluster_.aggregators()[0].shards[run].newest.outer().SerializeAsString(),
            step.SerializeAsString());
  EXPECT_THAT(cluster_.RunStatus(run).outer().optimizer(), HasSubstr("momentum: 0.5"));
}

TEST_F(MachineRoundTest, RoundsExchangeFragments) {
  v1::RunSpec spec = MakeSpec(2, 1, 8, 12);
  spec.mutable_averaging()->mutable_fragments()->set_count(2);
  const std::string run = Begin(2, spec);
  for (const uint32_t fragment : {1U, 2U, 0U}) {
    const FakeWorker& lead = cluster_.Lead(run, 0);
    const uint32_t version = cluster_.RunStatus(run).version();
    EXPECT_EQ(version == 0 ? lead.start->fragment() : LastDecision(run, 0).fragment(), fragment);
    for (uint32_t group = 0; group < 2; ++group) Train(run, group);
    EXPECT_EQ(cluster_.Commit(run, version + 1)->step(), 4 * (version + 1));
    EXPECT_EQ(cluster_.Commit(run, version + 1)->fragment(), fragment);
    EXPECT_EQ(cluster_.aggregators()[0].shards[run].newest.fragment(), fragment);
  }
}

// Samples of the steps that the slow group leaves out are not used, so the steps of versions are
// those of the fast one.
TEST_F(MachineRoundTest, SlowGroupsTakeFewerSteps) {
  v1::RunSpec spec = MakeSpec(3, 1, 12, 100);
  spec.mutable_averaging()->set_steps_by_speed(true);
  const std::string run = Begin(3, spec);
  const auto contribute = [&](const std::vector<float>& step_seconds) {
    cluster_.Run(absl::Seconds(40));
    for (uint32_t group = 0; group < 3; ++group) {
      FakeWorker& lead = cluster_.Lead(run, group);
      v1::Contributed contributed = cluster_.ContributionOf(lead);
      contributed.set_train_seconds(step_seconds[group] * (*lead.next_step - lead.step));
      Contribute(lead, contributed);
    }
  };
  contribute({1, 3, 1.05F});
  EXPECT_EQ(LastDecision(run, 0).next_step(), 24U);
  EXPECT_EQ(LastDecision(run, 1).next_step(), 16U);
  EXPECT_EQ(LastDecision(run, 2).next_step(), 24U) << "hardly slower";
  contribute({1, 3, 1});
  EXPECT_EQ(cluster_.Commit(run, 2)->step(), 24U);
  EXPECT_EQ(cluster_.Commit(run, 2)->samples(), (12U + 4 + 12) * 32);
  EXPECT_EQ(LastDecision(run, 1).next_step(), 28U);
  cluster_.Run(absl::Seconds(4000));
  contribute({1, 1000, std::numeric_limits<float>::infinity()});
  EXPECT_EQ(LastDecision(run, 1).next_step(), 37U) << "at least one step";
  EXPECT_EQ(LastDecision(run, 2).next_step(), 48U) << "by the measurements before";
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1U);
}

TEST_F(MachineRoundTest, ClaimedTimesHaveNotPassed) {
  v1::RunSpec spec = MakeSpec(2, 1, 12, 100);
  spec.mutable_averaging()->set_steps_by_speed(true);
  const std::string run = Begin(2, spec);
  for (const uint32_t next_step : {24, 36}) {
    cluster_.Run(absl::Seconds(30));
    for (uint32_t group = 0; group < 2; ++group) {
      v1::Contributed contributed = cluster_.ContributionOf(cluster_.Lead(run, group));
      contributed.set_train_seconds(group == 0 ? 12 : 48);
      Contribute(cluster_.Lead(run, group), contributed);
    }
    EXPECT_EQ(LastDecision(run, 1).next_step(), next_step) << "as if it was not measured";
  }
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 2U);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_MESSAGE_REFUSED,
                       "it claims 48 seconds for 12 steps, and at most 31 seconds"));
}

// A group trains for the steps of the overlap while its round is under way.
TEST_F(MachineRoundTest, SlowGroupsTakeMoreStepsThanOverlap) {
  v1::RunSpec spec = MakeSpec(2, 1, 12, 100);
  spec.mutable_averaging()->set_steps_by_speed(true);
  spec.mutable_averaging()->mutable_overlap()->set_steps(4);
  const std::string run = Begin(2, spec);
  cluster_.Run(absl::Seconds(100));
  for (uint32_t group = 0; group < 2; ++group) {
    v1::Contributed contributed = cluster_.ContributionOf(cluster_.Lead(run, group));
    contributed.set_train_seconds(group == 0 ? 1 : 100);
    Contribute(cluster_.Lead(run, group), contributed);
  }
  EXPECT_EQ(LastDecision(run, 0).next_step(), 24U);
  EXPECT_EQ(LastDecision(run, 1).next_step(), 12U + 5);
}

// The shards do not have the version any more that the first Start named.
TEST_F(MachineRoundTest, LateStartNamesTheNewestVersion) {
  const std::string run = Begin(2, WithQuorum(1));
  FakeWorker& lead = cluster_.Lead(run, 1);
  cluster_.Cut(lead);
  for (int round = 0; round < 2; ++round) {
    Train(run, 0);
    cluster_.Run(absl::Seconds(2));
  }
  ASSERT_GE(cluster_.RunStatus(run).version(), 2U);
  lead.start.reset();
  cluster_.Reconnect(lead);
  ASSERT_TRUE(lead.start.has_value());
  EXPECT_EQ(lead.start->version(), cluster_.RunStatus(run).version());
  EXPECT_NE(lead.start->digest(), 0U);
  EXPECT_TRUE(lead.start->catch_up());
}

TEST_F(MachineRoundTest, WaitsForAllLiveGroups) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  Train(run, 0);
  EXPECT_EQ(StateOf(run, 0), v1::GROUP_STATE_AT_BOUNDARY);
  cluster_.Run(absl::Minutes(5));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u);
  Train(run, 1);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
  const v1::Decision decision = LastDecision(run, 0);
  EXPECT_TRUE(decision.adopt());
  EXPECT_TRUE(decision.included());
  EXPECT_EQ(decision.round(), 1u);
  EXPECT_EQ(decision.version(), 1u);
  EXPECT_EQ(decision.step(), 5u);
  EXPECT_EQ(decision.next_step(), 10u);
  EXPECT_EQ(decision.digest(), cluster_.Commit(run, 1)->digest());
  EXPECT_EQ(decision.evaluate_end(), 0u);
}

TEST_F(MachineRoundTest, ApplyHasStepAndSamplesOfVersion) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  for (uint32_t version = 1; version <= 3; ++version) {
    for (uint32_t g = 0; g < 2; ++g) Train(run, g);
    const v1::RunStatus status = cluster_.RunStatus(run);
    ASSERT_EQ(status.version(), version);
    for (const FakeAggregator& aggregator : cluster_.aggregators()) {
      EXPECT_EQ(aggregator.received.back().publish().round(), version);
      const v1::CoordinatorMessage& newest = *std::prev(aggregator.received.end(), 2);
      ASSERT_TRUE(newest.has_apply());
      EXPECT_EQ(newest.apply().step(), version * 5);
      EXPECT_EQ(newest.apply().samples(), status.samples());
      EXPECT_GT(newest.apply().samples(), 0u);
    }
  }
}

TEST_F(MachineRoundTest, QuorumWaitsForGraceWindow) {
  v1::RunSpec spec = MakeSpec(2, 1, 5, 100);
  spec.mutable_averaging()->set_quorum(1);
  spec.mutable_averaging()->set_min_grace_ms(3000);
  const std::string run = Begin(2, spec);
  Train(run, 0);
  cluster_.Run(absl::Milliseconds(2900));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u);
  cluster_.Run(absl::Milliseconds(200));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_EQ(cluster_.Commit(run, 1)->participants_size(), 1);
  Train(run, 1);
  const v1::Decision decision = LastDecision(run, 1);
  EXPECT_FALSE(decision.included());
  EXPECT_EQ(decision.refusal(), v1::REFUSAL_CLOSED_ROUND);
  EXPECT_TRUE(decision.adopt());
  EXPECT_EQ(decision.version(), 1u);
  EXPECT_EQ(decision.next_step(), 10u);
  EXPECT_EQ(cluster_.Counter("refused_closed_round"), 1u);
  Train(run, 0);
  Train(run, 1);
  EXPECT_EQ(cluster_.Commit(run, 2)->participants_size(), 2);
}

TEST_F(MachineRoundTest, LostGroupLeavesRound) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  Train(run, 0);
  cluster_.behaviour.prepare = false;
  cluster_.Fail(cluster_.Lead(run, 0));
  Train(run, 1);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  ASSERT_EQ(cluster_.Commit(run, 1)->participants_size(), 1);
  EXPECT_EQ(cluster_.Commit(run, 1)->participants(0).group(), 1u);
}

// A re-formed group does not delay the others by a period.
TEST_F(MachineRoundTest, GroupThatCatchesUpIsNudgedWhenOthersWait) {
  const std::string run = Begin(3, MakeSpec(3, 1, 5, 100));
  EXPECT_FALSE(cluster_.Lead(run, 1).start->catch_up());
  FakeWorker& lead = cluster_.Lead(run, 1);
  cluster_.Fail(lead);
  EXPECT_TRUE(lead.start->catch_up());
  Train(run, 0);
  EXPECT_TRUE(Nudges(lead).empty()) << "group 2 still trains";
  Train(run, 2);
  EXPECT_EQ(Nudges(lead), std::vector<uint32_t>{1});
  cluster_.Reconnect(lead);
  EXPECT_EQ(Nudges(lead), (std::vector<uint32_t>{1, 1})) << "it may be lost with the stream";
  Train(run, 1);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_FALSE(LastDecision(run, 1).catch_up()) << "all groups train again";
  Train(run, 0);
  Train(run, 2);
  EXPECT_EQ(Nudges(lead).size(), 2u);
}

TEST_F(MachineRoundTest, RestartedCoordinatorNudgesGroupsThatCatchUp) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  FakeWorker& lead = cluster_.Lead(run, 1);
  cluster_.Fail(lead);
  ASSERT_TRUE(lead.start->catch_up());
  cluster_.RestartCoordinator();
  cluster_.Run(absl::Seconds(2));
  ASSERT_TRUE(Nudges(lead).empty());
  Train(run, 0);
  EXPECT_EQ(Nudges(lead), std::vector<uint32_t>{1});
}

TEST_F(MachineRoundTest, LateGroupCatchesUp) {
  const std::string run = Begin(2, WithQuorum(1));
  FakeWorker& lead = cluster_.Lead(run, 1);
  Train(run, 0);
  cluster_.Run(absl::Seconds(2));
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_TRUE(Nudges(lead).empty()) << "it does not catch up yet";
  Train(run, 1);
  EXPECT_FALSE(LastDecision(run, 1).included());
  EXPECT_EQ(LastDecision(run, 1).version(), 1u);
  EXPECT_TRUE(LastDecision(run, 1).catch_up());
  Train(run, 0);
  EXPECT_EQ(Nudges(lead), std::vector<uint32_t>{2});
}

// The first rounds of equal runs have equal participants.
TEST_F(MachineRoundTest, FirstGroupsAreAwaitedWhileTheyLoad) {
  cluster_.behaviour.load = false;
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  ReportLoaded(cluster_.Lead(run, 0));
  Train(run, 0);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u);
  ReportLoaded(cluster_.Lead(run, 1));
  Train(run, 1);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_EQ(cluster_.Commit(run, 1)->participants_size(), 2);
}

// The aggregators keep the version until the group has loaded it.
TEST_F(MachineRoundTest, VersionThatAGroupLoadsIsKept) {
  const std::string run = Begin(2, WithQuorum(1));
  cluster_.behaviour.load = false;
  FakeWorker& lead = cluster_.Lead(run, 1);
  cluster_.Fail(lead);
  for (uint32_t round = 1; round <= 4; ++round) {
    Train(run, 0);
    cluster_.Run(absl::Seconds(2));
    EXPECT_EQ(cluster_.RunStatus(run).version(), round);
    EXPECT_TRUE(cluster_.aggregators()[0].shards.at(run).digests.contains(0));
  }
  EXPECT_FALSE(cluster_.aggregators()[0].shards.at(run).digests.contains(2));
  ReportLoaded(lead);
  EXPECT_EQ(Nudges(lead), std::vector<uint32_t>{1}) << "its round is closed";
  Train(run, 0);
  cluster_.Run(absl::Seconds(2));
  EXPECT_FALSE(cluster_.aggregators()[0].shards.at(run).digests.contains(0));
}

// The same while a coordinator that has been started again has not heard of the group yet.
TEST_F(MachineRoundTest, VersionThatAGroupLoadsIsKeptAfterARestart) {
  const std::string run = Begin(2, WithQuorum(1));
  cluster_.behaviour.load = false;
  FakeWorker& lead = cluster_.Lead(run, 1);
  cluster_.Fail(lead);
  Train(run, 0);
  cluster_.Run(absl::Seconds(2));
  cluster_.RestartCoordinator();
  for (uint32_t round = 2; round <= 4; ++round) {
    Train(run, 0);
    cluster_.Run(absl::Seconds(2));
    EXPECT_EQ(cluster_.RunStatus(run).version(), round);
    EXPECT_TRUE(cluster_.aggregators()[0].shards.at(run).digests.contains(0));
  }
  EXPECT_TRUE(Nudges(lead).empty()) << "it has not loaded the version";
  ReportLoaded(lead);
  Train(run, 0);
  cluster_.Run(absl::Seconds(2));
  EXPECT_FALSE(cluster_.aggregators()[0].shards.at(run).digests.contains(0));
  // That it has loaded the version is not forgotten with the next restart either.
  cluster_.RestartCoordinator();
  Train(run, 0);
  cluster_.Run(absl::Seconds(2));
  EXPECT_FALSE(cluster_.aggregators()[0].shards.at(run).digests.contains(0));
}

TEST_F(MachineRoundTest, VersionIsNotKeptForAGroupThatHasEndedBeforeARestart) {
  const std::string run = Begin(2, WithQuorum(1));
  for (const uint32_t group : {0, 1}) Train(run, group);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1U);
  cluster_.Kill(cluster_.Lead(run, 1));
  cluster_.Run(absl::Seconds(15));
  ASSERT_EQ(StateOf(run, 1), v1::GROUP_STATE_WAITING);
  cluster_.RestartCoordinator();
  for (uint32_t round = 2; round <= 4; ++round) {
    Train(run, 0);
    cluster_.Run(absl::Seconds(2));
    ASSERT_EQ(cluster_.RunStatus(run).version(), round);
  }
  EXPECT_FALSE(cluster_.aggregators()[0].shards.at(run).digests.contains(1));
}

// Two such versions are kept. A third one is lost, but the group has the grace window to load it.
TEST_F(MachineRoundTest, GroupThatLoadsHoldsARoundForTheGraceWindow) {
  v1::RunSpec spec = WithQuorum(1);
  spec.mutable_cluster()->set_groups(4);
  spec.mutable_averaging()->set_min_grace_ms(4000);
  const std::string run = Begin(4, spec);
  cluster_.behaviour.load = false;
  for (uint32_t group = 1; group <= 3; ++group) {
    cluster_.Fail(cluster_.Lead(run, group));
    Train(run, 0);
    cluster_.Run(absl::Seconds(5));
    ASSERT_EQ(cluster_.RunStatus(run).version(), group);
  }
  Train(run, 0);
  cluster_.Run(absl::Seconds(5));
  EXPECT_THAT(ReasonOf(run), AllOf(HasSubstr("round 4 waits at most"),
                                   HasSubstr("group 3, which loads version 2")));
  cluster_.Run(absl::Seconds(5));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 4u);
  EXPECT_EQ(ReasonOf(run), "");
}

// Its rank hangs while it pulls version 0.
TEST_F(MachineRoundTest, VersionIsNotKeptForAGroupThatStopsWhileItLoads) {
  const std::string run = Begin(2, WithQuorum(1));
  cluster_.behaviour.load = false;
  FakeWorker& lead = cluster_.Lead(run, 1);
  cluster_.Fail(lead);
  lead.activity = v1::ACTIVITY_EXCHANGING;
  lead.hung = true;
  Train(run, 0);
  cluster_.Run(absl::Seconds(2));
  Train(run, 0);
  cluster_.Run(absl::Seconds(15));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 2u);
  EXPECT_TRUE(cluster_.aggregators()[0].shards.at(run).digests.contains(0));
  Train(run, 0);
  cluster_.Run(absl::Seconds(2));
  EXPECT_FALSE(cluster_.aggregators()[0].shards.at(run).digests.contains(0));
  EXPECT_EQ(cluster_.Counter("groups_stalled"), 0u);
}

// However short rounds are, a group contributes to the first round after its start.
TEST_F(MachineRoundTest, JoiningGroupIsIncludedAtTheFirstTry) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  cluster_.behaviour.load = false;
  FakeWorker& lead = cluster_.Lead(run, 1);
  cluster_.Fail(lead);
  Train(run, 0);
  cluster_.Run(absl::Seconds(5));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u);
  ReportLoaded(lead);
  EXPECT_EQ(Nudges(lead), std::vector<uint32_t>{1});
  Train(run, 1);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_EQ(cluster_.Commit(run, 1)->participants_size(), 2);
}

TEST_F(MachineRoundTest, VersionThatAnIncludedGroupAdoptsIsKept) {
  const std::string run = Begin(2, WithQuorum(1));
  FakeWorker& lead = cluster_.Lead(run, 1);
  Train(run, 0);
  cluster_.behaviour.adopt = false;
  Train(run, 1);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  for (int round = 2; round <= 4; ++round) {
    Train(run, 0);
    cluster_.Run(absl::Seconds(2));
  }
  EXPECT_EQ(cluster_.RunStatus(run).version(), 4u);
  EXPECT_TRUE(cluster_.aggregators()[0].shards.at(run).digests.contains(1));
  v1::Adopted adopted;
  *adopted.mutable_place() = lead.place();
  adopted.set_version(1);
  adopted.set_digest(cluster_.Commit(run, 1)->digest());
  cluster_.Send(lead, adopted);
  Train(run, 0);
  cluster_.Run(absl::Seconds(2));
  EXPECT_FALSE(cluster_.aggregators()[0].shards.at(run).digests.contains(1));
}

TEST_F(MachineRoundTest, GroupThatIsAwayDoesNotHoldBackCommits) {
  const std::string run = Begin(2, WithQuorum(1));
  cluster_.behaviour.load = false;
  FakeWorker& lead = cluster_.Lead(run, 1);
  cluster_.Fail(lead);
  Train(run, 0);
  cluster_.Run(absl::Seconds(2));
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  cluster_.Kill(lead);
  Train(run, 0);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
  cluster_.Run(absl::Seconds(3));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 2u) << "its lease has not ended";
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_TRAINING);
}

TEST_F(MachineRoundTest, WrongDigestFencesGroup) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  Train(run, 0);
  cluster_.behaviour.digest_error = 1;
  cluster_.behaviour.load = false;
  Train(run, 1);
  EXPECT_EQ(cluster_.Counter("refused_wrong_digest"), 2u);
  EXPECT_EQ(cluster_.Counter("groups_failed"), 2u);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u) << "the committed version remains";
  cluster_.behaviour.digest_error = 0;
  cluster_.behaviour.load = true;
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
}

TEST_F(MachineRoundTest, LateAdoptedIsComparedWithItsVersion) {
  const std::string run = Begin(1, MakeSpec(1, 1, 5, 100));
  FakeWorker& lead = cluster_.Lead(run, 0);
  Train(run);
  v1::Adopted adopted = *lead.adopted;
  Train(run);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 2u);
  cluster_.Send(lead, adopted);
  EXPECT_EQ(cluster_.Counter("refused_wrong_digest"), 0u);
  adopted.set_digest(5);
  cluster_.Send(lead, adopted);
  EXPECT_EQ(cluster_.Counter("refused_wrong_digest"), 1u);
}

// A coordinator with an older store has taken over, and the disk with the version was lost.
TEST_F(MachineRoundTest, GroupWithVersionThatTheRunDoesNotHaveIsFenced) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  const uint32_t generation = cluster_.Group(run, 1).generation();
  FakeWorker& lead = cluster_.Lead(run, 1);
  v1::Adopted adopted = *lead.adopted;
  adopted.set_version(2);
  cluster_.Send(lead, adopted);
  EXPECT_EQ(cluster_.Counter("refused_wrong_base"), 1u);
  EXPECT_GT(cluster_.Group(run, 1).generation(), generation);
  EXPECT_THAT(cluster_.Group(run, 1).reason(),
              HasSubstr("it has adopted version 2, but the newest of the run is 0"));
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
}

// A long run does not fill the store.
TEST(MachineCommitsTest, OldCommitsAreRemoved) {
  FakeCluster cluster([](Machine::Options& options) { options.keep_commits = 3; });
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  v1::RunSpec spec = MakeSpec(1, 1, 5, 40);
  spec.mutable_averaging()->mutable_keep_versions()->set_count(0);
  const std::string run = cluster.Submit(spec);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.RunStatus(run).version() >= 4; }));
  cluster.RestartCoordinator();
  ASSERT_TRUE(cluster.RunUntilEnded(run));
  ASSERT_EQ(cluster.RunStatus(run).version(), 8u);
  for (uint32_t round = 0; round <= 8; ++round) {
    EXPECT_EQ(cluster.Commit(run, round).has_value(), round > 5) << round;
  }
}

TEST_F(MachineRoundTest, MinGroups) {
  v1::RunSpec spec = MakeSpec(2, 1, 5, 1000);
  spec.mutable_averaging()->set_min_groups(2);
  const std::string run = Begin(2, spec);
  EXPECT_EQ(ReasonOf(run), "");
  cluster_.Kill(cluster_.Lead(run, 1));
  Train(run, 0);
  cluster_.Run(absl::Minutes(5));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u);
  EXPECT_EQ(ReasonOf(run), "waiting for groups: 1 of at least 2 are live");
  cluster_.AddWorker("new", "new");
  Train(run, 1);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
}

TEST_F(MachineRoundTest, KilledGroupDelaysOthersByReturnGrace) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 1000));
  const uint32_t generation = cluster_.Group(run, 1).generation();
  FakeWorker& away = cluster_.Lead(run, 1);
  const std::string id = away.member_id;
  away.alive = false;  // its process lives, but cannot reach the coordinator
  cluster_.Cut(away);
  Train(run, 0);
  cluster_.Run(absl::Milliseconds(1900));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u);
  cluster_.Run(absl::Milliseconds(200));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_EQ(cluster_.Group(run, 1).generation(), generation) << "it has its lease";
  cluster_.Connect(away);
  Train(run, 1);
  EXPECT_EQ(away.version, 1u) << "it is late and adopts the version";
  EXPECT_EQ(cluster_.Counter("refused_closed_round"), 1u);
  Train(run, 0);
  Train(run, 1);
  EXPECT_EQ(cluster_.Commit(run, 2)->participants_size(), 2);
}

TEST_F(MachineRoundTest, GroupOfWhichOneRankHasReturnedIsStillAway) {
  const std::string run = SubmitTo(2, 4, MakeSpec(2, 2, 5, 1000));
  for (const uint32_t rank : {0, 1}) {
    FakeWorker& away = cluster_.Rank(run, 1, rank);
    away.alive = false;
    cluster_.Cut(away);
  }
  cluster_.Connect(cluster_.Rank(run, 1, 0));
  Train(run, 0);
  cluster_.Run(absl::Milliseconds(2100));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
}

TEST_F(MachineRoundTest, MembersMayReturnAfterRestartOfCoordinator) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 1000));
  FakeWorker& away = cluster_.Lead(run, 1);
  away.alive = false;
  cluster_.RestartCoordinator();
  Train(run, 0);
  cluster_.Run(absl::Seconds(8));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u) << "it has its lease to return";
  cluster_.Connect(away);
  Train(run, 1);
  EXPECT_EQ(cluster_.Commit(run, 1)->participants_size(), 2);
}

TEST_F(MachineRoundTest, LateGroupStartsWithFewerRanks) {
  cluster_.AddAggregator("agg-0");
  cluster_.AddWorkers(3);
  const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 1000));
  cluster_.Run(absl::Seconds(5));
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_WAITING);
  cluster_.Run(absl::Seconds(5));
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(cluster_.Group(run, 1).members_size(), 1);
}

}  // namespace
}  // namespace cadre::testing
