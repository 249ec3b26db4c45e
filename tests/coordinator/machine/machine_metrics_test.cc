// What groups report of their training in the coordinator's state machine: losses, tokens, metrics,
// discrepancy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "coordinator/run/identical_batches.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

class MachineMetricsTest : public MachineTest {
 protected:
  // Two programs that have the first version.
  std::string BeginPrograms() {
    v1::RunSpec spec = OpaqueSpec(2);
    spec.mutable_stop()->set_steps(1000);
    cluster_.AddAggregator("agg-0");
    cluster_.AddRank("a", "test", 1, 0);
    cluster_.AddRank("b", "test", 1, 0);
    const std::string run = cluster_.Submit(spec);
    for (uint32_t group = 0; group < 2; ++group) {
      FakeWorker& lead = cluster_.Lead(run, group);
      v1::Contributed first;
      *first.mutable_place() = lead.place();
      first.set_round(1);
      first.set_samples(1);
      Send(lead, first);
    }
    EXPECT_FALSE(cluster_.aggregators()[0].shards[run].newest.has_outer())
        << "the first values are stored as they are";
    return run;
  }
  void Send(FakeWorker& lead, const v1::Contributed& contributed) {
    lead.contributed = contributed;
    cluster_.Send(lead, contributed);
  }
  // A contribution of 5 steps, with a loss, tokens and a metric.
  v1::Contributed Contribution(const std::string& run, uint32_t group, float loss,
                               uint64_t tokens = 0, double metric = 0) {
    v1::Contributed contributed = cluster_.ContributionOf(cluster_.Lead(run, group));
    contributed.set_loss(loss);
    if (tokens == 0) return contributed;
    contributed.mutable_metrics()->set_tokens(tokens);
    (*contributed.mutable_metrics()->mutable_mean())["gradient_norm"] = metric;
    return contributed;
  }
  // Both groups contribute.
  void Round(const std::string& run, const v1::Contributed& first, const v1::Contributed& second) {
    Send(cluster_.Lead(run, 0), first);
    Send(cluster_.Lead(run, 1), second);
  }
  bool HasEvent(v1::EventKind kind, const std::string& text) {
    const v1::EventsReply events = cluster_.Events();
    for (const v1::ClusterEvent& event : events.events()) {
      if (event.kind() == kind && event.text().find(text) != std::string::npos) return true;
    }
    return false;
  }
};

TEST_F(MachineMetricsTest, TokensAndMetricsOfProgramsSurviveARestart) {
  const std::string run = BeginPrograms();
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1U);
  EXPECT_FALSE(cluster_.RunStatus(run).has_metrics());
  cluster_.Run(absl::Seconds(10));
  Round(run, Contribution(run, 0, 2, 6000, 1), Contribution(run, 1, 4, 4000, 3));
  Round(run, Contribution(run, 0, 1, 6000, 2), Contribution(run, 1, 1, 4000, 4));
  ASSERT_EQ(cluster_.RunStatus(run).version(), 3U);
  cluster_.RestartCoordinator();
  const v1::RunStatus status = cluster_.RunStatus(run);
  EXPECT_EQ(status.metrics().tokens(), 20'000U) << "of the run";
  EXPECT_EQ(status.metrics().mean().at("gradient_norm"), 3) << "of the newest round";
  EXPECT_DOUBLE_EQ(status.perplexity(), std::exp(1.0));
  EXPECT_FALSE(status.has_test_perplexity());
  EXPECT_NEAR(status.tokens_per_second(),
              status.samples_per_second() * 20'000 / static_cast<double>(status.samples()), 1e-6);
  EXPECT_GT(status.tokens_per_second(), 0);
  const v1::HistoryReply history = cluster_.History(run);
  ASSERT_EQ(history.entries_size(), 3);
  EXPECT_FALSE(history.entries(0).commit().has_metrics());
  EXPECT_EQ(history.entries(1).commit().metrics().tokens(), 10'000U);
  EXPECT_EQ(history.entries(1).commit().metrics().mean().at("gradient_norm"), 2);
  EXPECT_EQ(history.entries(2).commit().metrics().tokens(), 20'000U);
}

TEST_F(MachineMetricsTest, RunsWithoutTokensHaveNoPerplexity) {
  const std::string run = BeginPrograms();
  cluster_.Run(absl::Seconds(10));
  Round(run, Contribution(run, 0, 2), Contribution(run, 1, 4));
  EXPECT_EQ(cluster_.RunStatus(run).loss(), 3);
  EXPECT_FALSE(cluster_.RunStatus(run).has_perplexity());
  EXPECT_EQ(cluster_.RunStatus(run).tokens_per_second(), 0);
}

TEST_F(MachineMetricsTest, TokensOfANetworkAreThoseOfItsSamples) {
  v1::RunSpec spec = MakeSpec(1, 1, 5, 10);
  spec.mutable_model()->clear_input();
  spec.mutable_model()->mutable_tokens()->set_length(64);
  const std::string run = SubmitTo(1, 1, spec);
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::Progress progress;
  *progress.mutable_place() = lead.place();
  progress.set_step(2);
  progress.set_samples_per_second(10);
  progress.set_loss(0.5);
  cluster_.Send(lead, progress);
  EXPECT_EQ(cluster_.RunStatus(run).tokens_per_second(), 640) << "before the first version";
  EXPECT_DOUBLE_EQ(cluster_.RunStatus(run).perplexity(), std::exp(0.5));
  Train(run);
  Train(run);
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  const v1::RunStatus status = cluster_.RunStatus(run);
  EXPECT_EQ(status.metrics().tokens(), uint64_t{10} * 32 * 64);
  EXPECT_DOUBLE_EQ(status.test_perplexity(), std::exp(status.test().loss()));
}

TEST_F(MachineMetricsTest, TokensPerSecondOfAProgramBeforeItsFirstRound) {
  const std::string run = BeginPrograms();
  FakeWorker& lead = cluster_.Lead(run, 1);
  v1::Progress progress;
  *progress.mutable_place() = lead.place();
  progress.set_step(4);
  progress.set_samples_per_second(2 * 32);
  progress.mutable_metrics()->set_tokens(4000);
  cluster_.Send(lead, progress);
  EXPECT_EQ(cluster_.RunStatus(run).tokens_per_second(), 2000);
  EXPECT_EQ(cluster_.Group(run, 1).metrics().tokens(), 4000U);
}

TEST_F(MachineMetricsTest, ALossTooLargeForAPerplexityHasNone) {
  const std::string run = BeginPrograms();
  Round(run, Contribution(run, 0, 1e4F, 10, 1), Contribution(run, 1, 1e4F, 10, 1));
  EXPECT_TRUE(cluster_.RunStatus(run).has_loss());
  EXPECT_FALSE(cluster_.RunStatus(run).has_perplexity());
}

TEST_F(MachineMetricsTest, InvalidReportsAreRefusedByName) {
  const std::string run = BeginPrograms();
  v1::Contributed contributed = Contribution(run, 0, 1, 10, std::nan(""));
  Send(cluster_.Lead(run, 0), contributed);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1U);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_MESSAGE_REFUSED, "metric 'gradient_norm' is nan"));
  FakeWorker& other = cluster_.Lead(run, 1);
  v1::Progress progress;
  *progress.mutable_place() = other.place();
  (*progress.mutable_metrics()->mutable_mean())["A"] = 1;
  cluster_.Send(other, progress);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 2U);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_MESSAGE_REFUSED, "metric 'A'"));
  EXPECT_FALSE(cluster_.RunStatus(run).has_metrics());
}

TEST_F(MachineMetricsTest, ALossThatIsNotFiniteIsRefused) {
  const std::string run = BeginPrograms();
  Send(cluster_.Lead(run, 0), Contribution(run, 0, std::numeric_limits<float>::infinity()));
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1U);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_MESSAGE_REFUSED, "a training loss that is not finite"));
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1U) << "no round has it";
}

class MachineIdenticalBatchesTest : public MachineMetricsTest {
 protected:
  int Warnings(const std::string& run) {
    int warnings = 0;
    const v1::RunStatus status = cluster_.RunStatus(run);
    for (const std::string& text : status.warnings()) {
      if (text.find("groups 0 and 1 have trained on identical batches") == 0) ++warnings;
    }
    return warnings;
  }
};

TEST_F(MachineIdenticalBatchesTest, EqualContributionsOfProgramsAreAWarning) {
  cluster_.behaviour.displacement = 0.5;
  const std::string run = BeginPrograms();
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1U);
  EXPECT_EQ(Warnings(run), 0) << "the first values are not trained";
  Round(run, Contribution(run, 0, 1), Contribution(run, 1, 2));
  EXPECT_EQ(Warnings(run), 1);
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_RUN_WARNING, "group.sample_position"));
  cluster_.RestartCoordinator();
  Round(run, Contribution(run, 0, 1), Contribution(run, 1, 2));
  ASSERT_EQ(cluster_.RunStatus(run).version(), 3U);
  EXPECT_EQ(Warnings(run), 1) << "once";
}

TEST_F(MachineIdenticalBatchesTest, ContributionsThatDifferAreNone) {
  cluster_.behaviour.displacement = 0.5;
  cluster_.behaviour.variance_between_groups = 1e-30;
  const std::string run = BeginPrograms();
  Round(run, Contribution(run, 0, 1), Contribution(run, 1, 2));
  EXPECT_EQ(Warnings(run), 0);
}

TEST_F(MachineIdenticalBatchesTest, ARunThatDoesNotMoveHasNone) {
  const std::string run = BeginPrograms();
  for (int i = 0; i < 6; ++i) Round(run, Contribution(run, 0, 1), Contribution(run, 1, 1));
  EXPECT_EQ(Warnings(run), 0) << "a learning rate of 0, and equal batches need not matter";
}

TEST_F(MachineIdenticalBatchesTest, EqualLossesInSeveralRoundsAreAWarning) {
  cluster_.behaviour.displacement = 0.5;
  cluster_.behaviour.variance_between_groups = 1e-30;
  const std::string run = BeginPrograms();
  for (int i = 1; i <= IdenticalBatches::kEqualRounds; ++i) {
    EXPECT_EQ(Warnings(run), 0);
    const float loss = 1.0F / static_cast<float>(i);
    Round(run, Contribution(run, 0, loss), Contribution(run, 1, loss));
  }
  EXPECT_EQ(Warnings(run), 1);
}

TEST_F(MachineIdenticalBatchesTest, NetworksOfCadreHaveNone) {
  cluster_.behaviour.displacement = 0.5;
  const std::string run = SubmitTo(1, 2, MakeSpec(2, 1, 5, 100));
  for (uint32_t group = 0; group < 2; ++group) Train(run, group);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1U);
  EXPECT_EQ(Warnings(run), 0);
}

TEST_F(MachineMetricsTest, DiscrepancySumsShards) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 1000));
  EXPECT_FALSE(cluster_.RunStatus(run).has_discrepancy());
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

TEST_F(MachineMetricsTest, UnknownDiscrepancyIsSkipped) {
  const std::string run = Begin(2, MakeSpec(2, 1, 5, 100));
  cluster_.behaviour.displacement = 4;
  for (const double variance : {std::numeric_limits<double>::quiet_NaN(), 3.0}) {
    cluster_.behaviour.variance_between_groups = variance;
    Train(run, 0);
    Train(run, 1);
    EXPECT_FALSE(cluster_.RunStatus(run).has_discrepancy());
    cluster_.behaviour.displacement = 0;
  }
  EXPECT_EQ(cluster_.RunStatus(run).version(), 2u);
}

TEST_F(MachineMetricsTest, OneGroupHasNoDiscrepancy) {
  const std::string run = Begin(1, MakeSpec(1, 1, 5, 100));
  cluster_.behaviour.variance_between_groups = 1;
  cluster_.behaviour.displacement = 4;
  Train(run);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_FALSE(cluster_.RunStatus(run).has_discrepancy());
}

}  // namespace
}  // namespace cadre::testing
