// Crashes of the coordinator after every transaction, and what it restores.
#include <gtest/gtest.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/store/keys.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

struct Outcome {
  v1::RunStatus status;
  int transactions = 0;
};

// Runs two groups of two ranks over two shards and four rounds, with an evaluation in the middle.
// The coordinator crashes after the given transaction (0: never).
Outcome RunToTheEnd(int crash_after, bool averages) {
  FakeCluster cluster;
  if (crash_after > 0) cluster.CrashAfterTransaction(crash_after);
  cluster.AddAggregator("agg-0");
  cluster.AddAggregator("agg-1");
  cluster.AddWorkers(4);
  // If the coordinator crashes before it answers, the run was submitted nevertheless.
  cluster.Submit(averages ? MakeSpec(2, 2, 5, 20) : MakeSpec(1, 4, 0, 50));
  const std::string run = "run-1-test";
  EXPECT_TRUE(cluster.RunUntilEnded(run)) << "crash after transaction " << crash_after;
  EXPECT_EQ(cluster.Counter("refused_wrong_digest"), 0u);
  EXPECT_EQ(cluster.Counter("refused_wrong_base"), 0u);
  return {cluster.RunStatus(run), cluster.transactions()};
}

void ExpectEveryCrashSurvived(bool averages) {
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
    EXPECT_EQ(crashed.status.evaluation_seconds(), whole.status.evaluation_seconds());
    EXPECT_EQ(crashed.status.rounds_committed(), whole.status.rounds_committed());
    if (averages) {
      EXPECT_EQ(crashed.status.samples(), whole.status.samples());
    }
  }
}

TEST(MachineCrashTest, CrashAfterEachTransactionAveraging) { ExpectEveryCrashSurvived(true); }

TEST(MachineCrashTest, CrashAfterEachTransactionNeverAveraging) { ExpectEveryCrashSurvived(false); }

using MachineRestoreTest = MachineTest;

TEST_F(MachineRestoreTest, RestartKeepsGeneration) {
  const std::string run = SubmitTo(1, 4, MakeSpec(2, 2, 5, 20));
  const uint32_t generation = cluster_.Group(run, 1).generation();
  cluster_.RestartCoordinator();
  cluster_.Run(absl::Minutes(1));
  EXPECT_EQ(cluster_.Group(run, 1).generation(), generation);
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(cluster_.Status().coordinator().starts(), 2u);
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster_.Counter("groups_formed"), 2u);
  // The status of an ended run survives a restart as well.
  const std::string before = cluster_.RunStatus(run).ShortDebugString();
  cluster_.RestartCoordinator();
  EXPECT_EQ(cluster_.RunStatus(run).ShortDebugString(), before);
}

TEST_F(MachineRestoreTest, MissingMemberFencesGroup) {
  const std::string run = SubmitTo(1, 3, MakeSpec(1, 2, 5, 20));
  ASSERT_EQ(cluster_.Group(run, 0).generation(), 1u);
  cluster_.workers()[1].alive = false;  // This worker ends while the coordinator is down.
  cluster_.RestartCoordinator();
  cluster_.Run(absl::Seconds(9));
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 1u) << "the restart grants a new lease";
  cluster_.Run(absl::Seconds(2));
  EXPECT_GE(cluster_.Group(run, 0).generation(), 2 + kGenerationGap);
  EXPECT_EQ(StateOf(run), v1::GROUP_STATE_TRAINING);
}

// The decision is sent when the last shard has applied the round, even to groups that have not sent
// Contributed again yet.
TEST_F(MachineRestoreTest, CommitAfterRestartIsEvaluated) {
  AddMembers(1, 2);
  cluster_.behaviour.train = true;
  cluster_.behaviour.apply = false;
  const std::string run = cluster_.Submit(MakeSpec(2, 1, 10, 100));  // An epoch has 10 steps.
  ASSERT_TRUE(cluster_.Commit(run, 1).has_value());
  // The aggregator reconnects first.
  for (FakeWorker& worker : cluster_.workers()) worker.alive = false;
  cluster_.behaviour.apply = true;
  cluster_.behaviour.train = false;
  cluster_.RestartCoordinator();
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  for (FakeWorker& worker : cluster_.workers()) cluster_.Connect(worker);
  EXPECT_EQ(cluster_.RunStatus(run).test().version(), 1u);
  EXPECT_EQ(cluster_.RunStatus(run).test().samples(), kTestSamples);
  EXPECT_EQ(cluster_.Counter("groups_failed"), 0u);
}

TEST_F(MachineRestoreTest, RestoredStartHasPreviousDigest) {
  v1::RunSpec spec = MakeSpec(2, 1, 5, 100);
  spec.mutable_averaging()->set_quorum(1);
  const std::string run = SubmitTo(1, 2, spec);
  // Group 1 is re-formed and loads version 0 while group 0 alone commits version 1.
  cluster_.behaviour.load = false;
  FakeWorker& slow = cluster_.Lead(run, 1);
  cluster_.Fail(slow);
  Train(run, 0);
  cluster_.Run(absl::Seconds(30));
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);

  cluster_.RestartCoordinator();
  const auto start = std::find_if(slow.received.rbegin(), slow.received.rend(),
                                  [](const auto& message) { return message.has_start(); });
  ASSERT_NE(start, slow.received.rend());
  EXPECT_EQ(start->start().version(), 0u);
  EXPECT_EQ(start->start().digest(), cluster_.Commit(run, 0)->digest());
}

TEST_F(MachineRestoreTest, NumbersAreNeverReused) {
  AddMembers(1, 1);
  uint32_t newest = 0;
  for (uint32_t i = 1; i <= 5; ++i) {
    const std::string run = cluster_.Submit(MakeSpec(1, 1, 5, 20));
    EXPECT_EQ(run, absl::StrCat("run-", i, "-test"));
    const uint32_t generation = cluster_.Group(run, 0).generation();
    const uint32_t gap = i == 1 ? 0 : kGenerationGap;
    EXPECT_GT(generation, newest + gap);
    EXPECT_LE(generation, newest + 1 + 2 * gap);
    newest = generation;
    cluster_.StopRun(run);
    cluster_.RestartCoordinator();
  }
}

// A coordinator that was started with a copy of the store of one that still runs.
TEST(MachineCrashTest, CopyOfTheStoreGivesOutHigherNumbers) {
  const CoordinatorOptions options;
  const auto start = [&](const v1::MetaRecord& meta) {
    auto cluster = std::make_unique<Cluster>(options);
    cluster->Begin(absl::FromUnixSeconds(1));
    cluster->Restore(meta, /*epoch=*/1);
    return cluster;
  };
  const auto running = start(v1::MetaRecord());
  EXPECT_EQ(running->NewGeneration(), 1u) << "a new store";
  const auto copy = start(running->meta());
  EXPECT_GT(copy->meta().epoch(), running->meta().epoch());
  for (int i = 0; i < 1000; ++i) running->NewGeneration();
  EXPECT_GT(copy->NewGeneration(), running->meta().generation());
  // Starts do not use up the numbers.
  v1::MetaRecord high = copy->meta();
  high.set_generation(0xf0000000U);
  EXPECT_EQ(start(high)->NewGeneration(), 0xf0000001U);
}

// The spec of a run is written once, under a key of its own.
TEST(MachineCrashTest, RunRecordHasNoSpec) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  const v1::RunSpec spec = MakeSpec(1, 1, 5, 10);
  const std::string run = cluster.Submit(spec);
  ASSERT_TRUE(cluster.RunUntilEnded(run));
  v1::RunRecord record;
  ASSERT_TRUE(record.ParseFromString(cluster.store().at(RunKey(run))));
  EXPECT_FALSE(record.has_spec());
  EXPECT_GT(record.version(), 0U);
  EXPECT_EQ(cluster.store().at(SpecKey(run)), spec.SerializeAsString());
}

// In stores of earlier builds, the record of the run contains the spec. It is read, and stored
// under its own key before the record is written without it.
TEST(MachineCrashTest, ReadsSpecOfOldStore) {
  Machine::Options options;
  options.plan = [](const v1::RunSpec&, int) -> absl::StatusOr<v1::Plan> { return v1::Plan(); };
  v1::RunRecord record;
  record.set_run("run-1-test");
  record.set_state(v1::RUN_STATE_QUEUED);
  *record.mutable_spec() = MakeSpec(1, 1, 5, 10);
  std::map<std::string, std::string> store = {{RunKey("run-1-test"), record.SerializeAsString()}};
  Machine old(options);
  const auto actions = old.Restore(store, absl::FromUnixSeconds(1), /*epoch=*/1);
  ASSERT_TRUE(actions.ok()) << actions.status();
  EXPECT_EQ(old.List(absl::FromUnixSeconds(1)).runs_size(), 1);
  for (const Action& action : *actions) {
    const auto* op = std::get_if<Store::Op>(&action);
    if (op != nullptr && op->kind == Store::Op::Kind::kPut) store[op->key] = op->value;
  }
  EXPECT_EQ(store.at(SpecKey("run-1-test")), record.spec().SerializeAsString());
  record.clear_spec();
  store[RunKey("run-1-test")] = record.SerializeAsString();
  Machine current(options);
  EXPECT_TRUE(current.Restore(store, absl::FromUnixSeconds(1), /*epoch=*/1).ok());
  store.erase(SpecKey("run-1-test"));
  Machine damaged(options);
  EXPECT_EQ(damaged.Restore(store, absl::FromUnixSeconds(1), /*epoch=*/1).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(MachineCrashTest, CorruptRecordIsDataLoss) {
  Machine::Options options;
  options.plan = [](const v1::RunSpec&, int) -> absl::StatusOr<v1::Plan> { return v1::Plan(); };
  Machine machine(options);
  const auto actions = machine.Restore({{std::string(kRunPrefix) + "run-1", "\xff\xff\xff"}},
                                       absl::FromUnixSeconds(1), /*epoch=*/1);
  EXPECT_EQ(actions.status().code(), absl::StatusCode::kDataLoss) << actions.status();
}

}  // namespace
}  // namespace cadre::testing
