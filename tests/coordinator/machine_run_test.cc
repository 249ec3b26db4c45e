// Life of runs: from submission to the end, in every way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "coordinator/keys.h"
#include "tests/coordinator/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(MachineRunTest, TwoGroupsFinish) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  cluster.AddAggregator("agg-1");
  for (int i = 0; i < 4; ++i) cluster.AddWorker(absl::StrCat("w", i));
  const std::string run = cluster.Submit(MakeSpec(2, 2, 5, 20));
  EXPECT_EQ(run, "run-1-test");
  ASSERT_TRUE(cluster.RunUntilEnded(run));
  const v1::RunStatus status = cluster.RunStatus(run);
  EXPECT_EQ(status.state(), v1::RUN_STATE_DONE) << status.reason();
  EXPECT_EQ(status.version(), 4u);
  EXPECT_EQ(status.rounds_committed(), 4u);
  EXPECT_EQ(status.step(), 20u);
  EXPECT_EQ(status.total_steps(), 20u);
  EXPECT_EQ(status.samples(), 2u * 20 * 32);
  EXPECT_EQ(status.test().version(), 4u);
  EXPECT_EQ(status.test().samples(), kTestSamples);
  EXPECT_DOUBLE_EQ(status.test().accuracy(), 0.5);
  EXPECT_DOUBLE_EQ(status.test().loss(), 0.5);
  // 4 rounds, 2 groups: 1000 bytes up and 100 down each.
  EXPECT_EQ(status.payload_bytes_across_groups(), 4u * 2 * 1100);
  EXPECT_EQ(status.bytes_across_groups(), 4u * 2 * 1120);
  EXPECT_EQ(status.bytes_across_groups_synchronous(), 2u * 1000 * 4 * 20);
  EXPECT_FALSE(status.digest().empty());
  for (uint32_t round = 0; round <= 4; ++round) {
    ASSERT_TRUE(cluster.Commit(run, round).has_value()) << round;
    EXPECT_TRUE(cluster.Commit(run, round)->committed());
  }
  EXPECT_EQ(cluster.Commit(run, 4)->participants_size(), 2);
  for (const FakeWorker& worker : cluster.workers()) EXPECT_FALSE(worker.assignment.has_value());
  EXPECT_EQ(cluster.Counter("rounds_committed"), 4u);
  EXPECT_EQ(cluster.Counter("groups_formed"), 2u);
  EXPECT_EQ(cluster.Counter("groups_failed"), 0u);
  EXPECT_EQ(cluster.Counter("refused_stale_generation"), 0u);
  EXPECT_EQ(cluster.aggregators()[0].received.back().body_case(),
            v1::CoordinatorMessage::kCloseRun);
}

TEST(MachineRunTest, EqualHistoryEqualActions) {
  std::map<std::string, std::string> stores[2];
  for (auto& store : stores) {
    FakeCluster cluster;
    cluster.AddAggregator("agg-0");
    for (int i = 0; i < 4; ++i) cluster.AddWorker(absl::StrCat("w", i));
    const std::string run = cluster.Submit(MakeSpec(2, 2, 5, 20));
    ASSERT_TRUE(cluster.RunUntilEnded(run));
    store = cluster.store();
  }
  EXPECT_EQ(stores[0], stores[1]);
}

TEST(MachineRunTest, QueuedUntilMembersJoin) {
  FakeCluster cluster;
  const std::string run = cluster.Submit(MakeSpec(1, 2, 5, 10));
  EXPECT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_QUEUED);
  EXPECT_THAT(cluster.RunStatus(run).reason(), HasSubstr("waiting for aggregators: 0 of 1"));
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  cluster.Run(absl::Seconds(30));
  EXPECT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_QUEUED);
  EXPECT_THAT(cluster.RunStatus(run).reason(), HasSubstr("waiting for workers: 1 of 2"));
  cluster.AddWorker("w1");
  ASSERT_TRUE(cluster.RunUntilEnded(run));
  EXPECT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_DONE);
}

TEST(MachineRunTest, WaitsForAllAggregators) {
  FakeCluster cluster;
  v1::RunSpec spec = MakeSpec(1, 1, 5, 10);
  spec.mutable_cluster()->set_aggregators(2);
  cluster.AddAggregator("agg-1");
  cluster.AddWorker("w0");
  const std::string run = cluster.Submit(spec);
  cluster.Run(absl::Seconds(10));
  EXPECT_THAT(cluster.RunStatus(run).reason(), HasSubstr("waiting for aggregators: 1 of 2"));
  cluster.AddAggregator("agg-0");
  cluster.AddAggregator("agg-2");
  ASSERT_TRUE(cluster.RunUntilEnded(run));
  EXPECT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_DONE);
}

TEST(MachineRunTest, NeverAveragingRunEvaluates) {
  FakeCluster cluster;
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  // 640 samples, batch 32: 20 steps an epoch.
  const std::string run = cluster.Submit(MakeSpec(1, 2, 0, 50));
  ASSERT_TRUE(cluster.RunUntilEnded(run));
  const v1::RunStatus status = cluster.RunStatus(run);
  EXPECT_EQ(status.state(), v1::RUN_STATE_DONE) << status.reason();
  EXPECT_EQ(status.step(), 50u);
  EXPECT_EQ(status.version(), 0u);
  EXPECT_EQ(status.rounds_committed(), 0u);
  EXPECT_EQ(status.samples(), 50u * 32);
  EXPECT_EQ(status.digest(), "000000000000004d");
  EXPECT_EQ(status.test().step(), 50u);
  EXPECT_EQ(status.bytes_across_groups(), 0u);
  EXPECT_EQ(status.bytes_across_groups_synchronous(), 0u);
  int evaluations = 0;
  for (const v1::CoordinatorMessage& message : cluster.workers()[0].received) {
    if (message.has_decision() && message.decision().evaluate_end() > 0) ++evaluations;
  }
  EXPECT_EQ(evaluations, 3) << "at steps 20, 40 and 50";
}

TEST(MachineRunTest, NeverAveragingRunRestarts) {
  FakeCluster cluster;
  cluster.behaviour.train = false;
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  const std::string run = cluster.Submit(MakeSpec(1, 1, 0, 50));
  cluster.behaviour.idle_groups = {0};
  cluster.behaviour.train = true;
  // One boundary is reached, then the worker is killed.
  cluster.behaviour.idle_groups.clear();
  cluster.behaviour.evaluate = false;
  cluster.Run(absl::Seconds(1));
  ASSERT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_FINISHING);
  cluster.behaviour.evaluate = true;
  cluster.behaviour.train = false;
  cluster.Kill(cluster.Lead(run, 0));
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Group(run, 0).generation() == 2; }));
  EXPECT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(cluster.RunStatus(run).step(), 0u);
  EXPECT_EQ(cluster.Lead(run, 0).assignment->step(), 0u);
  cluster.behaviour.train = true;
  ASSERT_TRUE(cluster.RunUntilEnded(run));
  EXPECT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_DONE);
}

TEST(MachineRunTest, EpochsNeedSampleCount) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  v1::RunSpec spec = MakeSpec(2, 1, 4, 0);
  spec.mutable_stop()->set_epochs(3);
  cluster.behaviour.prepare = false;
  const std::string run = cluster.Submit(spec);
  EXPECT_EQ(cluster.RunStatus(run).total_steps(), 0u);
  EXPECT_EQ(cluster.RunStatus(run).reason(), "workers are preparing");
  cluster.behaviour.prepare = true;
  ASSERT_TRUE(cluster.RunUntilEnded(run));
  const v1::RunStatus status = cluster.RunStatus(run);
  EXPECT_EQ(status.total_steps(), 30u);  // 640 samples, 64 a step
  EXPECT_EQ(status.step(), 30u);
  EXPECT_EQ(status.version(), 8u);
  EXPECT_DOUBLE_EQ(status.epoch(), 3.0);
  EXPECT_DOUBLE_EQ(status.total_epochs(), 3.0);
}

TEST(MachineRunTest, EndsWhenTheTargetIsReached) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  v1::RunSpec spec = MakeSpec(2, 1, 5, 1000);
  spec.mutable_stop()->set_test_accuracy(0.5F);
  const std::string run = cluster.Submit(spec);
  ASSERT_TRUE(cluster.RunUntilEnded(run));
  const v1::RunStatus status = cluster.RunStatus(run);
  EXPECT_EQ(status.state(), v1::RUN_STATE_DONE);
  EXPECT_LT(status.step(), 1000u);
  EXPECT_GE(status.test().accuracy(), 0.5);
  EXPECT_EQ(status.test().samples(), kTestSamples);
  for (const FakeWorker& worker : cluster.workers()) EXPECT_FALSE(worker.assignment.has_value());
}

TEST(MachineRunTest, StopReleasesMembers) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  cluster.behaviour.train = false;
  const std::string run = cluster.Submit(MakeSpec(1, 1, 5, 1000));
  ASSERT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_RUNNING);
  cluster.StopRun(run);
  EXPECT_TRUE(cluster.last_status.ok());
  EXPECT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_STOPPED);
  EXPECT_EQ(cluster.RunStatus(run).reason(), "enough");
  EXPECT_FALSE(cluster.workers()[0].assignment.has_value());
  EXPECT_EQ(cluster.aggregators()[0].received.back().body_case(),
            v1::CoordinatorMessage::kCloseRun);
  cluster.StopRun(run);
  EXPECT_TRUE(cluster.last_status.ok()) << "stopping twice is no error";
  cluster.StopRun("run-9");
  EXPECT_EQ(cluster.last_status.code(), absl::StatusCode::kNotFound);
}

TEST(MachineRunTest, SubmissionsThatCannotBe) {
  FakeCluster cluster([](Machine::Options& options) {
    options.max_live_runs = 2;
    options.validate = [](const v1::RunSpec& spec) {
      return spec.name() == "bad" ? absl::InvalidArgumentError("name: no") : absl::OkStatus();
    };
  });
  v1::RunSpec bad = MakeSpec(1, 1, 5, 10);
  bad.set_name("bad");
  EXPECT_EQ(cluster.Submit(bad), "");
  EXPECT_EQ(cluster.last_status.code(), absl::StatusCode::kInvalidArgument);
  cluster.Submit(MakeSpec(2, 1, 0, 10));
  EXPECT_EQ(cluster.last_status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(cluster.last_status.message()), HasSubstr("averaging.every_steps"));
  EXPECT_EQ(cluster.Submit(MakeSpec(1, 1, 5, 10)), "run-1-test");
  EXPECT_EQ(cluster.Submit(MakeSpec(1, 1, 5, 10)), "run-2-test");
  cluster.Submit(MakeSpec(1, 1, 5, 10));
  EXPECT_EQ(cluster.last_status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(MachineRunTest, RunsAreServedInOrder) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  const std::string first = cluster.Submit(MakeSpec(1, 2, 5, 10));
  const std::string second = cluster.Submit(MakeSpec(1, 1, 5, 10));
  cluster.behaviour.train = false;
  cluster.AddWorker("w0");
  cluster.Run(absl::Seconds(20));
  EXPECT_EQ(cluster.RunStatus(second).state(), v1::RUN_STATE_QUEUED)
      << "the worker is kept for the first";
  cluster.AddWorker("w1");
  EXPECT_EQ(cluster.RunStatus(first).state(), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(cluster.RunStatus(second).state(), v1::RUN_STATE_QUEUED);
  cluster.behaviour.train = true;
  ASSERT_TRUE(cluster.RunUntilEnded(second));
  EXPECT_EQ(cluster.RunStatus(first).state(), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster.RunStatus(second).state(), v1::RUN_STATE_DONE);
}

TEST(MachineRunTest, AggregatorWaitReservesNoWorkers) {
  FakeCluster cluster;
  const std::string waits = cluster.Submit(MakeSpec(1, 1, 5, 10));
  const std::string runs = cluster.Submit(MakeSpec(1, 1, 0, 10));
  cluster.AddWorker("w0");
  ASSERT_TRUE(cluster.RunUntilEnded(runs));
  EXPECT_EQ(cluster.RunStatus(waits).state(), v1::RUN_STATE_QUEUED);
}

TEST(MachineRunTest, PermanentFailureEndsRun) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  cluster.behaviour.prepare = false;
  const std::string run = cluster.Submit(MakeSpec(1, 2, 5, 10));
  FakeWorker& worker = cluster.workers()[1];
  v1::MemberMessage message;
  *message.mutable_group_failed()->mutable_place() = worker.place();
  message.mutable_group_failed()->set_permanent(true);
  message.mutable_group_failed()->set_reason("/data/train.gz: no such file");
  cluster.SendFrom(worker.connection, message);
  EXPECT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_FAILED);
  EXPECT_THAT(cluster.RunStatus(run).reason(), HasSubstr("/data/train.gz"));
  EXPECT_FALSE(cluster.workers()[0].assignment.has_value());
}

TEST(MachineRunTest, DataThatDiffersEndsTheRun) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  cluster.behaviour.train = false;
  const std::string run = cluster.Submit(MakeSpec(2, 1, 5, 10));
  cluster.AddWorker("w0");
  cluster.behaviour.train_samples = 999;
  cluster.AddWorker("w1");
  EXPECT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_FAILED);
  EXPECT_THAT(cluster.RunStatus(run).reason(), HasSubstr("the data sets differ"));
}

TEST(MachineRunTest, RepeatedFailuresEndRun) {
  FakeCluster cluster([](Machine::Options& options) { options.max_group_failures = 3; });
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  cluster.behaviour.train = false;
  const std::string run = cluster.Submit(MakeSpec(1, 1, 5, 100));
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_RUNNING) << i;
    v1::MemberMessage message;
    *message.mutable_group_failed()->mutable_place() = cluster.workers()[0].place();
    message.mutable_group_failed()->set_reason("peer lost");
    cluster.SendFrom(cluster.workers()[0].connection, message);
  }
  EXPECT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_FAILED);
  EXPECT_THAT(cluster.RunStatus(run).reason(), HasSubstr("3 times without a commit"));
  EXPECT_THAT(cluster.RunStatus(run).reason(), HasSubstr("peer lost"));
}

TEST(MachineRunTest, OldRunsAreEvicted) {
  FakeCluster cluster([](Machine::Options& options) { options.max_ended_runs = 1; });
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  const std::string first = cluster.Submit(MakeSpec(1, 1, 5, 10));
  ASSERT_TRUE(cluster.RunUntilEnded(first));
  const std::string second = cluster.Submit(MakeSpec(1, 1, 5, 10));
  ASSERT_TRUE(cluster.RunUntilEnded(second));
  cluster.Run(absl::Seconds(1));
  EXPECT_FALSE(cluster.machine().RunStatus(first, cluster.now()).ok());
  EXPECT_TRUE(cluster.machine().RunStatus(second, cluster.now()).ok());
  for (const auto& [key, value] : cluster.store()) {
    EXPECT_EQ(key.find(first), std::string::npos) << key;
  }
  const std::string third = cluster.Submit(MakeSpec(1, 1, 5, 10));
  EXPECT_THAT(third, StartsWith("run-3")) << "numbers are not used again";
}

TEST(MachineRunTest, StatusTellsWhoTrainsWhat) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  cluster.AddWorker("w1");
  cluster.behaviour.train = false;
  const std::string run = cluster.Submit(MakeSpec(1, 2, 5, 100));
  v1::MemberMessage message;
  v1::Progress& progress = *message.mutable_progress();
  *progress.mutable_place() = cluster.Lead(run, 0).place();
  progress.set_step(3);
  progress.set_loss(1.5F);
  progress.set_samples_per_second(100);
  progress.set_rate(0.1F);
  cluster.SendFrom(cluster.Lead(run, 0).connection, message);
  const v1::GroupStatus group = cluster.Group(run, 0);
  EXPECT_EQ(group.state(), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(group.mesh().at("data"), 2u);
  ASSERT_EQ(group.members_size(), 2);
  EXPECT_EQ(group.members(1).name(), "w1");
  EXPECT_EQ(group.step(), 3u);
  EXPECT_EQ(cluster.RunStatus(run).groups_alive(), 1u);
  EXPECT_FLOAT_EQ(cluster.RunStatus(run).rate(), 0.1F);
  EXPECT_FLOAT_EQ(cluster.RunStatus(run).samples_per_second(), 100);
  progress.set_solo_steps(2);
  cluster.SendFrom(cluster.Lead(run, 0).connection, message);
  EXPECT_EQ(cluster.Group(run, 0).state(), v1::GROUP_STATE_SOLO);
  EXPECT_EQ(cluster.Group(run, 0).solo_steps(), 2u);
  const v1::StatusReply reply = cluster.machine().Status(cluster.now());
  ASSERT_EQ(reply.workers_size(), 2);
  EXPECT_EQ(reply.workers(0).place().run(), run);
  ASSERT_EQ(reply.aggregators_size(), 1);
  EXPECT_EQ(reply.aggregators(0).shards(0).run(), run);
  EXPECT_EQ(reply.coordinator().starts(), 1u);
}

TEST(MachineRunTest, CheckpointRunCountsFromItsStep) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  cluster.behaviour.train = false;
  v1::RunSpec spec = MakeSpec(1, 1, 8, 60);
  spec.mutable_checkpoint()->set_from("/ckpt/step-40");
  spec.mutable_checkpoint()->set_from_step(40);
  const std::string run = cluster.Submit(spec);
  EXPECT_EQ(cluster.RunStatus(run).step(), 40u);
  EXPECT_EQ(cluster.RunStatus(run).version(), 0u);
  FakeWorker& lead = cluster.Lead(run, 0);
  EXPECT_EQ(lead.assignment->step(), 40u);
  EXPECT_EQ(lead.next_step, 48u);
  cluster.behaviour.train = true;
  ASSERT_TRUE(cluster.RunUntilEnded(run));
  const v1::RunStatus status = cluster.RunStatus(run);
  EXPECT_EQ(status.state(), v1::RUN_STATE_DONE);
  EXPECT_EQ(status.step(), 60u);
  EXPECT_EQ(status.rounds_committed(), 3u) << "steps 48, 56 and 60";
}

TEST(MachineRunTest, LostModelRestartsAtCheckpoint) {
  FakeCluster cluster;
  cluster.AddWorker("w0");
  v1::RunSpec spec = MakeSpec(1, 1, 0, 600);
  spec.mutable_cluster()->set_aggregators(0);
  spec.mutable_checkpoint()->set_from("/ckpt/step-40");
  spec.mutable_checkpoint()->set_from_step(40);
  cluster.behaviour.train = false;
  const std::string run = cluster.Submit(spec);
  ASSERT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_RUNNING);
  FakeWorker& lead = cluster.Lead(run, 0);
  v1::MemberMessage message;
  v1::Contributed& contributed = *message.mutable_contributed();
  *contributed.mutable_place() = lead.place();
  contributed.set_round(1);
  contributed.set_step(*lead.next_step);
  contributed.set_samples(32);
  cluster.SendFrom(lead.connection, message);
  EXPECT_GT(cluster.RunStatus(run).step(), 40u);
  EXPECT_EQ(cluster.RunStatus(run).samples(), (cluster.RunStatus(run).step() - 40) * 32);
  cluster.Kill(lead);
  cluster.AddWorker("w1");
  ASSERT_TRUE(cluster.RunUntil([&] {
    const v1::GroupStatus group = cluster.Group(run, 0);
    return group.members_size() > 0 && group.generation() > 1;
  }));
  EXPECT_EQ(cluster.RunStatus(run).step(), 40u);
  EXPECT_EQ(cluster.RunStatus(run).samples(), 0u);
}

TEST(MachineRunTest, CheckpointAtLastEpochFails) {
  FakeCluster cluster;
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  v1::RunSpec spec = MakeSpec(1, 1, 5, 0);
  spec.mutable_stop()->set_epochs(1);
  spec.mutable_checkpoint()->set_from("/ckpt/step-100000");
  spec.mutable_checkpoint()->set_from_step(100000);
  const std::string run = cluster.Submit(spec);
  EXPECT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_FAILED);
  EXPECT_THAT(cluster.RunStatus(run).reason(), ::testing::HasSubstr("no steps left to train"));
}

}  // namespace
}  // namespace cadre::testing
