// Contributions: those that are refused, repeated or lost, and what a version includes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/coordinator/machine/round_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

class MachineContributionTest : public MachineRoundTest {};

TEST_F(MachineContributionTest, RetransmissionsAreIdempotent) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  const v1::Contributed sent = cluster_.ContributionOf(cluster_.Lead(run, 0));
  Train(run, 0);
  cluster_.Send(cluster_.Lead(run, 0), sent);
  EXPECT_EQ(Decisions(run, 0), 0);
  Train(run, 1);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_EQ(Decisions(run, 0), 1);
  // After the commit, the decision is repeated, but the bytes are not counted again.
  const uint64_t bytes = cluster_.RunStatus(run).payload_bytes_across_groups();
  cluster_.Send(cluster_.Lead(run, 0), sent);
  EXPECT_EQ(Decisions(run, 0), 2);
  EXPECT_TRUE(LastDecision(run, 0).included());
  EXPECT_EQ(LastDecision(run, 0).digest(), cluster_.Commit(run, 1)->digest());
  EXPECT_EQ(cluster_.RunStatus(run).payload_bytes_across_groups(), bytes);
  EXPECT_EQ(cluster_.Counter("refused_closed_round"), 0u);
  // The same holds after a restart of the coordinator.
  cluster_.RestartCoordinator();
  cluster_.Send(cluster_.Lead(run, 0), sent);
  EXPECT_TRUE(LastDecision(run, 0).included());
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_EQ(cluster_.RunStatus(run).payload_bytes_across_groups(), bytes);
}

// Group 0 loses its stream with the decision, and returns within its lease after later rounds.
TEST_F(MachineContributionTest, LostDecisionIsRepeatedAfterLaterRounds) {
  for (const bool restarts : {false, true}) {
    SCOPED_TRACE(restarts);
    const std::string run = Begin(3, WithQuorum(2, /*groups=*/3));
    FakeWorker& lead = cluster_.Lead(run, 0);
    const v1::Contributed sent = cluster_.ContributionOf(lead);
    Train(run, 0);
    lead.alive = false;
    cluster_.Cut(lead);
    for (uint32_t version = 1; version <= 3; ++version) {
      for (const uint32_t group : {1, 2}) Train(run, group);
      cluster_.Run(absl::Seconds(2));
      ASSERT_EQ(cluster_.RunStatus(run).version(), version);
    }
    ASSERT_EQ(cluster_.Commit(run, 1)->participants_size(), 3);
    ASSERT_EQ(cluster_.Commit(run, 3)->participants_size(), 2);
    if (restarts) cluster_.RestartCoordinator();
    lead.alive = true;
    lead.contributed = sent;
    cluster_.Reconnect(lead);
    EXPECT_TRUE(LastDecision(run, 0).included());
    EXPECT_EQ(LastDecision(run, 0).round(), 1U);
    EXPECT_EQ(LastDecision(run, 0).version(), 3U);
    EXPECT_TRUE(LastDecision(run, 0).catch_up()) << "the others train already";
    EXPECT_EQ(cluster_.Counter("refused_closed_round"), 0U);
    cluster_.StopRun(run);
  }
}

// A group that is formed again learns which contribution of its earlier generations is included.
TEST_F(MachineContributionTest, StartNamesTheIncludedContribution) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  EXPECT_FALSE(cluster_.Lead(run, 0).start->has_included());
  for (const uint32_t round : {1, 2}) {
    for (const uint32_t group : {0, 1}) Train(run, group);
    ASSERT_EQ(cluster_.RunStatus(run).version(), round);
    const uint32_t generation = cluster_.Lead(run, 0).place().generation();
    // This contribution ends with the generation.
    Train(run, 0);
    cluster_.RestartCoordinator();
    cluster_.Fail(cluster_.Lead(run, 0));
    const v1::Start& start = *cluster_.Lead(run, 0).start;
    ASSERT_GT(start.place().generation(), generation);
    EXPECT_EQ(start.included().group(), 0U);
    EXPECT_EQ(start.included().round(), round);
    EXPECT_EQ(start.included().generation(), generation);
  }
  // Aggregators store it with the version.
  const v1::Apply& newest = cluster_.aggregators()[0].shards[run].newest;
  ASSERT_EQ(newest.included_size(), 2);
  EXPECT_EQ(newest.included(1).group(), 1U);
  EXPECT_EQ(newest.included(1).round(), newest.round());
}

struct InvalidContribution {
  const char* label;
  v1::Refusal refusal;
  const char* counter;
  void (*change)(v1::Contributed&);
};
class RefusedContributionTest : public MachineRoundTest,
                                public ::testing::WithParamInterface<InvalidContribution> {};

TEST_P(RefusedContributionTest, IsRefused) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::Contributed contributed = cluster_.ContributionOf(lead);
  GetParam().change(contributed);
  Contribute(lead, contributed);
  EXPECT_EQ(cluster_.Counter(GetParam().counter), 1u);
  EXPECT_FALSE(LastDecision(run, 0).included());
  EXPECT_EQ(LastDecision(run, 0).refusal(), GetParam().refusal);
  EXPECT_EQ(LastDecision(run, 0).version(), 0u);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_CONTRIBUTION_REFUSED, "round"));
  Train(run, 1);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u) << "group 0 is not in the round";
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedContributionTest,
    ::testing::Values(InvalidContribution{"OtherBase", v1::REFUSAL_WRONG_BASE, "refused_wrong_base",
                                          [](v1::Contributed& c) { c.set_base_version(3); }},
                      InvalidContribution{"FutureRoundFromTheNewestVersion", v1::REFUSAL_WRONG_BASE,
                                          "refused_wrong_base",
                                          [](v1::Contributed& c) { c.set_round(3); }},
                      InvalidContribution{"FutureRound", v1::REFUSAL_WRONG_BASE,
                                          "refused_wrong_base",
                                          [](v1::Contributed& c) {
                                            c.set_round(7);
                                            c.set_base_version(6);
                                          }}),
    [](const auto& info) { return info.param.label; });

struct ImpossibleContribution {
  const char* label;
  const char* reason;
  void (*change)(v1::Contributed&);
};
class ImpossibleContributionTest : public MachineRoundTest,
                                   public ::testing::WithParamInterface<ImpossibleContribution> {};

// The generation cannot contribute to the round again with other numbers.
TEST_P(ImpossibleContributionTest, EndsItsGeneration) {
  const std::string run = Begin(2, WithQuorum(1));
  FakeWorker& lead = cluster_.Lead(run, 0);
  const uint32_t generation = lead.place().generation();
  const v1::Contributed possible = cluster_.ContributionOf(lead);
  v1::Contributed contributed = possible;
  GetParam().change(contributed);
  Contribute(lead, contributed);
  lead.contributed.reset();
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1U);
  EXPECT_EQ(cluster_.Counter("groups_failed"), 1U);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_GROUP_ENDED, GetParam().reason));
  const v1::StatusReply status = cluster_.Status();
  for (const v1::MemberStatus& worker : status.workers()) {
    const bool claimed = worker.name() == lead.name;
    EXPECT_EQ(worker.standing().failures(), claimed ? 1U : 0U);
    EXPECT_THAT(worker.standing().reason(), HasSubstr(claimed ? GetParam().reason : ""));
  }

  cluster_.Send(lead, possible);
  Train(run, 1);
  cluster_.Run(absl::Seconds(2));
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1U);
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_RUNNING);
  ASSERT_EQ(cluster_.Commit(run, 1)->participants_size(), 1) << "the other group goes on";
  EXPECT_EQ(cluster_.Commit(run, 1)->participants(0).group(), 1U);
  cluster_.Run(absl::Seconds(10));
  EXPECT_GT(cluster_.Lead(run, 0).place().generation(), generation);
}

INSTANTIATE_TEST_SUITE_P(
    All, ImpossibleContributionTest,
    ::testing::Values(
        ImpossibleContribution{"NoSamples", "it has no samples",
                               [](v1::Contributed& c) { c.set_samples(0); }},
        ImpossibleContribution{"StepAfterTheLast", "it claims step 101, and the round has steps up",
                               [](v1::Contributed& c) { c.set_step(101); }},
        ImpossibleContribution{"StepAfterTheBoundary",
                               "it claims step 6, and the round has steps up to 5",
                               [](v1::Contributed& c) { c.set_step(6); }},
        ImpossibleContribution{"MoreSamplesThanSteps",
                               "it claims 4611686018427387904 samples, and the round has at most",
                               [](v1::Contributed& c) { c.set_samples(1ULL << 62); }},
        ImpossibleContribution{
            "RateIsNotANumber", "it claims a learning rate of nan",
            [](v1::Contributed& c) { c.set_rate(std::numeric_limits<float>::quiet_NaN()); }},
        ImpossibleContribution{"NoStep", "it has no steps",
                               [](v1::Contributed& c) { c.set_step(0); }}),
    [](const auto& info) { return info.param.label; });

// It arrived before the version was committed on which it is based.
TEST_F(MachineContributionTest, EarlyContributionsAreChecked) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::Contributed next = cluster_.ContributionOf(lead);
  next.set_round(2);
  next.set_base_version(1);
  next.set_step(11);
  cluster_.behaviour.apply = false;
  for (const uint32_t group : {0, 1}) Train(run, group);
  lead.contributed.reset();
  cluster_.Send(lead, next);
  cluster_.behaviour.apply = true;
  for (FakeAggregator& aggregator : cluster_.aggregators()) cluster_.Reconnect(aggregator);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1U);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_GROUP_ENDED, "it claims step 11, and the round has steps"));
}

// Another coordinator has committed version 1, of which this one's store has only the closed round.
TEST_F(MachineContributionTest, ContributionOnTheClosingVersionWaits) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::Contributed next = cluster_.ContributionOf(lead);
  next.set_round(2);
  next.set_base_version(1);
  next.set_step(10);
  cluster_.behaviour.apply = false;
  for (const uint32_t group : {0, 1}) Train(run, group);
  lead.contributed.reset();
  cluster_.Send(lead, next);
  cluster_.behaviour.apply = true;
  for (FakeAggregator& aggregator : cluster_.aggregators()) cluster_.Reconnect(aggregator);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1U);
  EXPECT_EQ(Decisions(run, 0), 0) << "it has adopted the version";
  EXPECT_EQ(cluster_.Counter("refused_wrong_base"), 0U);
  EXPECT_EQ(StateOf(run, 0), v1::GROUP_STATE_AT_BOUNDARY);
  Train(run, 1);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 2U);
  EXPECT_EQ(cluster_.Commit(run, 2)->participants_size(), 2);
  EXPECT_TRUE(LastDecision(run, 0).included());
}

TEST_F(MachineContributionTest, ContributionDuringCommitWaits) {
  v1::RunSpec spec = MakeSpec(2, 1, 5, 100);
  spec.mutable_averaging()->set_quorum(1);
  spec.mutable_averaging()->set_min_grace_ms(1000);
  const std::string run = Begin(2, spec);
  cluster_.behaviour.apply = false;
  Train(run, 0);
  cluster_.Run(absl::Seconds(2));
  ASSERT_TRUE(cluster_.Commit(run, 1).has_value());
  EXPECT_FALSE(cluster_.Commit(run, 1)->committed());
  Train(run, 1);
  EXPECT_EQ(Decisions(run, 1), 0);
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_AT_BOUNDARY);
  cluster_.behaviour.apply = true;
  for (FakeAggregator& aggregator : cluster_.aggregators()) cluster_.Reconnect(aggregator);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_TRUE(LastDecision(run, 0).included());
  EXPECT_FALSE(LastDecision(run, 1).included());
  EXPECT_EQ(LastDecision(run, 1).version(), 1u);
}

}  // namespace
}  // namespace cadre::testing
