// The coordinator dies and comes back at every point at which its store changes.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "coordinator/keys.h"
#include "tests/coordinator/fake_cluster.h"

namespace cadre::testing {
namespace {

struct Outcome {
  v1::RunStatus status;
  int transactions = 0;
};

// Two groups of two, two shards, four rounds, an evaluation in the middle; crashes after the given
// transaction (0: never).
Outcome RunToTheEnd(int crash_after, bool averages) {
  FakeCluster cluster;
  if (crash_after > 0) cluster.CrashAfterTransaction(crash_after);
  cluster.AddAggregator("agg-0");
  cluster.AddAggregator("agg-1");
  for (int i = 0; i < 4; ++i) cluster.AddWorker(absl::StrCat("w", i));
  // A submission whose answer is lost with the coordinator has happened all the same.
  cluster.Submit(averages ? MakeSpec(2, 2, 5, 20) : MakeSpec(1, 4, 0, 50));
  const std::string run = "run-1-test";
  EXPECT_TRUE(cluster.RunUntilEnded(run)) << "crash after transaction " << crash_after;
  EXPECT_EQ(cluster.Counter("refused_wrong_digest"), 0u);
  EXPECT_EQ(cluster.Counter("refused_wrong_base"), 0u);
  return {cluster.RunStatus(run), cluster.transactions()};
}

void ExpectEveryCrashIsSurvived(bool averages) {
  const Outcome whole = RunToTheEnd(0, averages);
  ASSERT_EQ(whole.status.state(), v1::RUN_STATE_DONE);
  ASSERT_GT(whole.transactions, 15);
  for (int n = 1; n <= whole.transactions; ++n) {
    SCOPED_TRACE(absl::StrCat("crash after transaction ", n, " of ", whole.transactions));
    const Outcome crashed = RunToTheEnd(n, averages);
    EXPECT_EQ(crashed.status.state(), v1::RUN_STATE_DONE) << crashed.status.reason();
    EXPECT_EQ(crashed.status.version(), whole.status.version());
    EXPECT_EQ(crashed.status.step(), whole.status.step());
    EXPECT_EQ(crashed.status.test().samples(), kTestSamples);
    EXPECT_EQ(crashed.status.test().version(), whole.status.version());
    EXPECT_EQ(crashed.status.rounds_committed(), whole.status.rounds_committed());
    if (averages) {
      EXPECT_EQ(crashed.status.samples(), whole.status.samples());
    }
  }
}

TEST(MachineCrashTest, CrashAfterEachTransactionAveraging) { ExpectEveryCrashIsSurvived(true); }

TEST(MachineCrashTest, CrashAfterEachTransactionNeverAveraging) {
  ExpectEveryCrashIsSurvived(false);
}

TEST(MachineCrashTest, RestartKeepsGeneration) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  for (int i = 0; i < 4; ++i) cluster.AddWorker(absl::StrCat("w", i));
  cluster.behaviour.train = false;
  const std::string run = cluster.Submit(MakeSpec(2, 2, 5, 20));
  const uint32_t generation = cluster.Group(run, 1).generation();
  cluster.RestartCoordinator();
  cluster.Run(absl::Minutes(1));
  EXPECT_EQ(cluster.Group(run, 1).generation(), generation);
  EXPECT_EQ(cluster.Group(run, 1).state(), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(cluster.machine().Status(cluster.now()).coordinator().starts(), 2u);
  cluster.behaviour.train = true;
  ASSERT_TRUE(cluster.RunUntilEnded(run));
  EXPECT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster.Counter("groups_formed"), 2u);
}

TEST(MachineCrashTest, MissingMemberFencesGroup) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  for (int i = 0; i < 3; ++i) cluster.AddWorker(absl::StrCat("w", i));
  cluster.behaviour.train = false;
  const std::string run = cluster.Submit(MakeSpec(1, 2, 5, 20));
  ASSERT_EQ(cluster.Group(run, 0).generation(), 1u);
  cluster.workers()[1].alive = false;  // it dies while the coordinator is away
  cluster.RestartCoordinator();
  cluster.Run(absl::Seconds(9));
  EXPECT_EQ(cluster.Group(run, 0).generation(), 1u) << "the lease was granted anew";
  cluster.Run(absl::Seconds(2));
  EXPECT_EQ(cluster.Group(run, 0).generation(), 2u);
  EXPECT_EQ(cluster.Group(run, 0).state(), v1::GROUP_STATE_TRAINING);
}

// The decision goes out when the last shard has applied, whoever has said what again by then.
TEST(MachineCrashTest, CommitAfterRestartIsEvaluated) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  for (int i = 0; i < 2; ++i) cluster.AddWorker(absl::StrCat("w", i));
  cluster.behaviour.apply = false;
  const std::string run = cluster.Submit(MakeSpec(2, 1, 10, 100));  // 10 steps an epoch
  ASSERT_TRUE(cluster.Commit(run, 1).has_value());
  // Only the aggregator comes back at first.
  for (FakeWorker& worker : cluster.workers()) worker.alive = false;
  cluster.behaviour.apply = true;
  cluster.behaviour.train = false;
  cluster.RestartCoordinator();
  ASSERT_EQ(cluster.RunStatus(run).version(), 1u);
  for (FakeWorker& worker : cluster.workers()) cluster.Connect(worker);
  EXPECT_EQ(cluster.RunStatus(run).test().version(), 1u);
  EXPECT_EQ(cluster.RunStatus(run).test().samples(), kTestSamples);
  EXPECT_EQ(cluster.Counter("groups_failed"), 0u);
}

TEST(MachineCrashTest, RestoredAssignmentHasPreviousDigest) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  for (int i = 0; i < 2; ++i) cluster.AddWorker(absl::StrCat("w", i));
  cluster.behaviour.train = false;
  const std::string run = cluster.Submit(MakeSpec(2, 1, 5, 100));
  // Group 1 begins anew from version 0, and group 0 alone makes version 1 meanwhile.
  cluster.behaviour.prepare = false;
  FakeWorker& slow = cluster.Lead(run, 1);
  v1::MemberMessage failed;
  *failed.mutable_group_failed()->mutable_place() = slow.place();
  cluster.SendFrom(slow.connection, failed);
  FakeWorker& lead = cluster.Lead(run, 0);
  v1::MemberMessage message;
  v1::Contributed& contributed = *message.mutable_contributed();
  *contributed.mutable_place() = lead.place();
  contributed.set_round(1);
  contributed.set_step(5);
  contributed.set_samples(160);
  cluster.SendFrom(lead.connection, message);
  ASSERT_EQ(cluster.RunStatus(run).version(), 1u);

  cluster.RestartCoordinator();
  ASSERT_TRUE(slow.received.back().has_assignment());
  EXPECT_EQ(slow.received.back().assignment().version(), 0u);
  EXPECT_EQ(slow.received.back().assignment().digest(), cluster.Commit(run, 0)->digest());
}

TEST(MachineCrashTest, NumbersAreNeverReused) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  cluster.behaviour.train = false;
  for (uint32_t i = 1; i <= 5; ++i) {
    const std::string run = cluster.Submit(MakeSpec(1, 1, 5, 20));
    EXPECT_EQ(run, absl::StrCat("run-", i, "-test"));
    EXPECT_EQ(cluster.Group(run, 0).generation(), i);
    cluster.StopRun(run);
    cluster.RestartCoordinator();
  }
}

TEST(MachineCrashTest, EndedRunsStayKnown) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  const std::string run = cluster.Submit(MakeSpec(1, 1, 5, 20));
  ASSERT_TRUE(cluster.RunUntilEnded(run));
  const std::string before = cluster.RunStatus(run).ShortDebugString();
  cluster.RestartCoordinator();
  EXPECT_EQ(cluster.RunStatus(run).ShortDebugString(), before);
}

TEST(MachineCrashTest, CorruptRecordIsDataLoss) {
  Machine::Options options;
  options.plan = [](const v1::RunSpec&, int) -> absl::StatusOr<v1::Plan> { return v1::Plan(); };
  Machine machine(options);
  const auto actions = machine.Restore({{std::string(kRunPrefix) + "run-1", "\xff\xff\xff"}},
                                       absl::FromUnixSeconds(1));
  EXPECT_EQ(actions.status().code(), absl::StatusCode::kDataLoss) << actions.status();
}

}  // namespace
}  // namespace cadre::testing
