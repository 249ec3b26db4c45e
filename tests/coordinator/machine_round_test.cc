// Rounds: contributions that fit and that do not, decisions, digests, evaluation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

class MachineRoundTest : public ::testing::Test {
 protected:
  // A cluster whose groups have one worker each and train only when told to.
  std::string Begin(uint32_t groups, const v1::RunSpec& spec) {
    cluster_.AddAggregator("agg-0");
    cluster_.AddAggregator("agg-1");
    for (uint32_t i = 0; i < groups; ++i) cluster_.AddWorker(absl::StrCat("w", i));
    cluster_.behaviour.train = false;
    const std::string run = cluster_.Submit(spec);
    for (uint32_t g = 0; g < groups; ++g)
      EXPECT_EQ(cluster_.Group(run, g).state(), v1::GROUP_STATE_TRAINING);
    return run;
  }
  // Lets one group train to its boundary and contribute.
  void Train(const std::string& run, uint32_t group) {
    FakeWorker& lead = cluster_.Lead(run, group);
    v1::MemberMessage message = Contribution(lead);
    lead.contributed = message.contributed();
    cluster_.SendFrom(lead.connection, message);
  }
  v1::MemberMessage Contribution(const FakeWorker& lead) {
    v1::MemberMessage message;
    v1::Contributed& contributed = *message.mutable_contributed();
    *contributed.mutable_place() = lead.place();
    contributed.set_round(lead.version + 1);
    contributed.set_base_version(lead.version);
    contributed.set_step(*lead.next_step);
    contributed.set_samples(32);
    contributed.set_payload_bytes(1000);
    contributed.set_message_bytes(1010);
    return message;
  }
  // The newest decision that the lead of the group has heard.
  v1::Decision LastDecision(const std::string& run, uint32_t group) {
    const FakeWorker& lead = cluster_.Lead(run, group);
    for (auto it = lead.received.rbegin(); it != lead.received.rend(); ++it) {
      if (it->has_decision()) return it->decision();
    }
    ADD_FAILURE() << "no decision";
    return v1::Decision();
  }
  int Decisions(const std::string& run, uint32_t group) {
    int n = 0;
    for (const auto& message : cluster_.Lead(run, group).received) n += message.has_decision();
    return n;
  }

  FakeCluster cluster_;
};

TEST_F(MachineRoundTest, WaitsForAllLiveGroups) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  Train(run, 0);
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_AT_BOUNDARY);
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

TEST_F(MachineRoundTest, QuorumWaitsForGraceWindow) {
  v1::RunSpec spec = MakeSpec(2, 1, 5, 100);
  spec.mutable_averaging()->set_quorum(1);
  spec.mutable_averaging()->set_min_grace_ms(3000);
  const std::string run = Begin(2, spec);
  const v1::MemberMessage late = Contribution(cluster_.Lead(run, 1));
  Train(run, 0);
  cluster_.Run(absl::Milliseconds(2900));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u);
  cluster_.Run(absl::Milliseconds(200));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_EQ(cluster_.Commit(run, 1)->participants_size(), 1);
  FakeWorker& lead = cluster_.Lead(run, 1);
  lead.contributed = late.contributed();
  cluster_.SendFrom(lead.connection, late);
  const v1::Decision decision = LastDecision(run, 1);
  EXPECT_FALSE(decision.included());
  EXPECT_EQ(decision.refusal(), v1::REFUSAL_CLOSED_ROUND);
  EXPECT_TRUE(decision.adopt());
  EXPECT_EQ(decision.version(), 1u);
  EXPECT_EQ(decision.next_step(), 10u);
  EXPECT_EQ(cluster_.Counter("refused_closed_round"), 1u);
  // Both are in the next round.
  Train(run, 0);
  Train(run, 1);
  EXPECT_EQ(cluster_.Commit(run, 2)->participants_size(), 2);
}

TEST_F(MachineRoundTest, RetransmissionsAreIdempotent) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  const v1::MemberMessage said = Contribution(cluster_.Lead(run, 0));
  Train(run, 0);
  cluster_.SendFrom(cluster_.Lead(run, 0).connection, said);
  EXPECT_EQ(Decisions(run, 0), 0);
  Train(run, 1);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_EQ(Decisions(run, 0), 1);
  // After the commit: the decision is said again, the bytes are not counted again.
  const uint64_t bytes = cluster_.RunStatus(run).payload_bytes_across_groups();
  cluster_.SendFrom(cluster_.Lead(run, 0).connection, said);
  EXPECT_EQ(Decisions(run, 0), 2);
  EXPECT_TRUE(LastDecision(run, 0).included());
  EXPECT_EQ(LastDecision(run, 0).digest(), cluster_.Commit(run, 1)->digest());
  EXPECT_EQ(cluster_.RunStatus(run).payload_bytes_across_groups(), bytes);
  EXPECT_EQ(cluster_.Counter("refused_closed_round"), 0u);
  // And after a restart of the coordinator.
  cluster_.RestartCoordinator();
  cluster_.SendFrom(cluster_.Lead(run, 0).connection, said);
  EXPECT_TRUE(LastDecision(run, 0).included());
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_EQ(cluster_.RunStatus(run).payload_bytes_across_groups(), bytes);
}

TEST_F(MachineRoundTest, WrongBaseIsRefused) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::MemberMessage message = Contribution(lead);
  message.mutable_contributed()->set_base_version(3);
  lead.contributed = message.contributed();
  cluster_.SendFrom(lead.connection, message);
  EXPECT_EQ(cluster_.Counter("refused_wrong_base"), 1u);
  EXPECT_FALSE(LastDecision(run, 0).included());
  EXPECT_EQ(LastDecision(run, 0).refusal(), v1::REFUSAL_WRONG_BASE);
  EXPECT_EQ(LastDecision(run, 0).version(), 0u);
  message = Contribution(lead);
  message.mutable_contributed()->set_round(7);
  message.mutable_contributed()->set_base_version(6);
  lead.contributed = message.contributed();
  cluster_.SendFrom(lead.connection, message);
  EXPECT_EQ(cluster_.Counter("refused_wrong_base"), 2u) << "a round of the future";
  Train(run, 1);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u) << "group 0 is not in the round";
}

TEST_F(MachineRoundTest, NoSamplesIsMalformed) {
  const std::string run = Begin(1, MakeSpec(1, 1, 5, 100));
  FakeWorker& lead = cluster_.Lead(run, 0);
  for (const int wrong : {0, 1, 2}) {
    v1::MemberMessage message = Contribution(lead);
    message.mutable_contributed()->set_round(message.contributed().round() + wrong);
    if (wrong == 0) message.mutable_contributed()->set_samples(0);
    if (wrong == 1) message.mutable_contributed()->set_step(101);
    if (wrong == 2) message.mutable_contributed()->set_step(0);
    lead.contributed = message.contributed();
    cluster_.SendFrom(lead.connection, message);
    EXPECT_EQ(LastDecision(run, 0).refusal(), v1::REFUSAL_MALFORMED) << wrong;
  }
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 3u);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 0u);
}

TEST_F(MachineRoundTest, ContributedBeforeStart) {
  cluster_.AddAggregator("agg-0");
  cluster_.behaviour.prepare = false;
  cluster_.AddWorker("w0");
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 100));
  FakeWorker& worker = cluster_.workers()[0];
  v1::MemberMessage message;
  *message.mutable_contributed()->mutable_place() = worker.place();
  message.mutable_contributed()->set_round(1);
  cluster_.SendFrom(worker.connection, message);
  EXPECT_EQ(cluster_.Counter("refused_out_of_order"), 1u);
}

TEST_F(MachineRoundTest, LostGroupLeavesRound) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  Train(run, 0);
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::MemberMessage failed;
  *failed.mutable_group_failed()->mutable_place() = lead.place();
  cluster_.behaviour.prepare = false;
  cluster_.SendFrom(lead.connection, failed);
  Train(run, 1);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  ASSERT_EQ(cluster_.Commit(run, 1)->participants_size(), 1);
  EXPECT_EQ(cluster_.Commit(run, 1)->participants(0).group(), 1u);
}

TEST_F(MachineRoundTest, ContributionDuringCommitWaits) {
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
  EXPECT_EQ(cluster_.Group(run, 1).state(), v1::GROUP_STATE_AT_BOUNDARY);
  cluster_.behaviour.apply = true;
  for (FakeAggregator& aggregator : cluster_.aggregators()) {
    cluster_.Cut(aggregator);
    cluster_.Connect(aggregator);
  }
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_TRUE(LastDecision(run, 0).included());
  EXPECT_FALSE(LastDecision(run, 1).included());
  EXPECT_EQ(LastDecision(run, 1).version(), 1u);
}

TEST_F(MachineRoundTest, AWrongDigestFencesTheGroup) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  Train(run, 0);
  cluster_.behaviour.digest_error = 1;
  Train(run, 1);
  EXPECT_EQ(cluster_.Counter("refused_wrong_digest"), 2u);
  EXPECT_EQ(cluster_.Counter("groups_failed"), 2u);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u) << "what was committed stays";
  cluster_.behaviour.digest_error = 0;
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_DONE);
}

TEST_F(MachineRoundTest, LateAdoptedUsesItsVersion) {
  const std::string run = Begin(1, MakeSpec(1, 1, 5, 100));
  FakeWorker& lead = cluster_.Lead(run, 0);
  Train(run, 0);
  v1::MemberMessage adopted;
  *adopted.mutable_adopted() = *lead.adopted;
  Train(run, 0);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 2u);
  cluster_.SendFrom(lead.connection, adopted);
  EXPECT_EQ(cluster_.Counter("refused_wrong_digest"), 0u);
  adopted.mutable_adopted()->set_digest(5);
  cluster_.SendFrom(lead.connection, adopted);
  EXPECT_EQ(cluster_.Counter("refused_wrong_digest"), 1u);
}

TEST_F(MachineRoundTest, AdoptingGroupsShareTestSplit) {
  // 10 steps an epoch.
  const std::string run = Begin(2, MakeSpec(2, 1, 10, 100));
  Train(run, 0);
  cluster_.behaviour.evaluate = false;
  Train(run, 1);
  EXPECT_EQ(LastDecision(run, 0).evaluate_begin(), 0u);
  EXPECT_EQ(LastDecision(run, 0).evaluate_end(), 50u);
  EXPECT_EQ(LastDecision(run, 1).evaluate_begin(), 50u);
  EXPECT_EQ(LastDecision(run, 1).evaluate_end(), 100u);
  EXPECT_FALSE(cluster_.RunStatus(run).has_test());
  // Only one of the two hands its part back before the next evaluation: the result says so.
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::MemberMessage message;
  v1::Evaluated& evaluated = *message.mutable_evaluated();
  *evaluated.mutable_place() = lead.place();
  evaluated.set_version(1);
  evaluated.set_end(50);
  evaluated.set_labels(50);
  evaluated.set_correct(10);
  cluster_.SendFrom(lead.connection, message);
  cluster_.SendFrom(lead.connection, message);
  Train(run, 0);
  Train(run, 1);
  const v1::EvaluationResult test = cluster_.RunStatus(run).test();
  EXPECT_EQ(test.version(), 1u);
  EXPECT_EQ(test.samples(), 50u);
  EXPECT_DOUBLE_EQ(test.accuracy(), 0.2);
}

TEST_F(MachineRoundTest, MoreCorrectThanLabels) {
  const std::string run = Begin(1, MakeSpec(1, 1, 20, 100));
  cluster_.behaviour.evaluate = false;
  Train(run, 0);
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::MemberMessage message;
  v1::Evaluated& evaluated = *message.mutable_evaluated();
  *evaluated.mutable_place() = lead.place();
  evaluated.set_version(1);
  evaluated.set_end(100);
  evaluated.set_labels(100);
  evaluated.set_correct(101);
  cluster_.SendFrom(lead.connection, message);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1u);
  EXPECT_FALSE(cluster_.RunStatus(run).has_test());
}

TEST_F(MachineRoundTest, FewerLabelsThanSamples) {
  const std::string run = Begin(1, MakeSpec(1, 1, 20, 100));
  cluster_.behaviour.evaluate = false;
  Train(run, 0);
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::MemberMessage message;
  v1::Evaluated& evaluated = *message.mutable_evaluated();
  *evaluated.mutable_place() = lead.place();
  evaluated.set_version(1);
  evaluated.set_end(100);
  evaluated.set_labels(99);
  evaluated.set_correct(99);
  cluster_.SendFrom(lead.connection, message);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1u);
  EXPECT_FALSE(cluster_.RunStatus(run).has_test());
}

TEST_F(MachineRoundTest, LostPartIsReassignedAtEnd) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 5));
  Train(run, 0);
  cluster_.behaviour.evaluate = false;
  Train(run, 1);
  ASSERT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_FINISHING);
  EXPECT_EQ(LastDecision(run, 0).next_step(), 0u);
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_IDLE);
  cluster_.behaviour.evaluate = true;
  // Group 0 hands its part back, group 1 dies with its own.
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::MemberMessage message;
  v1::Evaluated& evaluated = *message.mutable_evaluated();
  *evaluated.mutable_place() = lead.place();
  evaluated.set_version(1);
  evaluated.set_end(50);
  evaluated.set_labels(50);
  evaluated.set_correct(50);
  cluster_.SendFrom(lead.connection, message);
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_FINISHING);
  cluster_.Kill(cluster_.Lead(run, 1));
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  const v1::RunStatus status = cluster_.RunStatus(run);
  EXPECT_EQ(status.state(), v1::RUN_STATE_DONE);
  EXPECT_EQ(status.test().samples(), kTestSamples);
  EXPECT_DOUBLE_EQ(status.test().accuracy(), 0.75);
}

TEST_F(MachineRoundTest, LostPartMessageIsResent) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 5));
  Train(run, 0);
  cluster_.behaviour.evaluate = false;
  Train(run, 1);
  ASSERT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_FINISHING);
  // Group 1 dies; group 0 has done its part and is given the other, but never hears of it.
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::MemberMessage message;
  v1::Evaluated& evaluated = *message.mutable_evaluated();
  *evaluated.mutable_place() = lead.place();
  evaluated.set_version(1);
  evaluated.set_end(50);
  evaluated.set_labels(50);
  cluster_.SendFrom(lead.connection, message);
  cluster_.Kill(cluster_.Lead(run, 1));
  cluster_.Run(absl::Seconds(20));
  ASSERT_EQ(LastDecision(run, 0).evaluate_begin(), 50u);
  cluster_.behaviour.evaluate = true;
  cluster_.Cut(lead);
  cluster_.Connect(lead);
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster_.RunStatus(run).test().samples(), kTestSamples);
}

TEST_F(MachineRoundTest, GroupIsFormedToEvaluate) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 5));
  Train(run, 0);
  cluster_.behaviour.evaluate = false;
  Train(run, 1);
  ASSERT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_FINISHING);
  for (FakeWorker& worker : cluster_.workers()) cluster_.Kill(worker);
  cluster_.Run(absl::Seconds(20));
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_WAITING);
  cluster_.behaviour.evaluate = true;
  cluster_.AddWorker("new");
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster_.RunStatus(run).test().samples(), kTestSamples);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u) << "nothing was trained on";
}

TEST_F(MachineRoundTest, ReformedGroupGetsLostPart) {
  const std::string run = Begin(2, MakeSpec(2, 1, 10, 100));
  Train(run, 0);
  cluster_.behaviour.evaluate = false;
  Train(run, 1);
  cluster_.behaviour.evaluate = true;
  FakeWorker& lead = cluster_.Lead(run, 1);
  v1::MemberMessage failed;
  *failed.mutable_group_failed()->mutable_place() = lead.place();
  cluster_.SendFrom(lead.connection, failed);
  ASSERT_TRUE(lead.start.has_value());
  EXPECT_EQ(lead.assignment->version(), 1u);
  EXPECT_EQ(lead.assignment->step(), 10u);
  EXPECT_EQ(lead.start->evaluate_begin(), 50u);
  EXPECT_EQ(lead.start->evaluate_end(), 100u);
  EXPECT_EQ(lead.start->next_step(), 20u);
}

// --- Discrepancy

TEST_F(MachineRoundTest, DiscrepancySumsShards) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 1000));
  EXPECT_FALSE(cluster_.RunStatus(run).has_discrepancy());
  // Each of the two shards says so.
  cluster_.behaviour.variance_between_groups = 1;
  cluster_.behaviour.displacement = 4;
  for (uint32_t round = 1; round <= 3; ++round) {
    Train(run, 0);
    EXPECT_EQ(cluster_.RunStatus(run).discrepancy().rounds(), round - 1);
    Train(run, 1);
    const v1::Discrepancy discrepancy = cluster_.RunStatus(run).discrepancy();
    EXPECT_EQ(discrepancy.rounds(), round);
    EXPECT_EQ(discrepancy.newest(), 0.25);
    EXPECT_DOUBLE_EQ(discrepancy.smoothed(), 0.25);
    EXPECT_THAT(discrepancy.recommendation(),
                HasSubstr(round < 3 ? "too early" : "the groups agree"));
  }
  EXPECT_EQ(cluster_.Commit(run, 3)->digests(1).variance_between_groups(), 1);
  EXPECT_EQ(cluster_.Commit(run, 3)->digests(1).displacement(), 4);

  // A restart forgets nothing of it.
  const std::string before = cluster_.RunStatus(run).discrepancy().SerializeAsString();
  cluster_.RestartCoordinator();
  cluster_.Run(absl::Seconds(3));
  EXPECT_EQ(cluster_.RunStatus(run).discrepancy().SerializeAsString(), before);

  cluster_.behaviour.variance_between_groups = 8;
  Train(run, 0);
  Train(run, 1);
  const v1::Discrepancy apart = cluster_.RunStatus(run).discrepancy();
  EXPECT_EQ(apart.newest(), 2);
  EXPECT_GT(apart.smoothed(), 0.25);
  EXPECT_LT(apart.smoothed(), 2);
}

TEST_F(MachineRoundTest, UnknownDiscrepancyIsSkipped) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  cluster_.behaviour.variance_between_groups = std::numeric_limits<double>::quiet_NaN();
  cluster_.behaviour.displacement = 4;
  Train(run, 0);
  Train(run, 1);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_FALSE(cluster_.RunStatus(run).has_discrepancy());
  cluster_.behaviour.variance_between_groups = 3;
  cluster_.behaviour.displacement = 0;
  Train(run, 0);
  Train(run, 1);
  EXPECT_FALSE(cluster_.RunStatus(run).has_discrepancy());
}

TEST_F(MachineRoundTest, OneGroupHasNoDiscrepancy) {
  const std::string run = Begin(1, MakeSpec(1, 1, 5, 100));
  cluster_.behaviour.variance_between_groups = 1;
  cluster_.behaviour.displacement = 4;
  Train(run, 0);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_FALSE(cluster_.RunStatus(run).has_discrepancy());
}

}  // namespace
}  // namespace cadre::testing
