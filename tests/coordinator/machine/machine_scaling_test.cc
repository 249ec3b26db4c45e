// Changes of the number of groups of a run and of ranks of a group, and draining of workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/store/keys.h"
#include "model/validate.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::RunSpec EpochsSpec(uint32_t groups, uint32_t every_steps, uint32_t epochs) {
  v1::RunSpec spec = MakeSpec(groups, 1, every_steps, 0);
  spec.mutable_stop()->set_epochs(epochs);
  return spec;
}

// Every group that trains contributes once.
void TrainAll(FakeCluster& cluster) {
  for (FakeWorker& worker : cluster.workers()) {
    const bool trains = worker.start.has_value() && worker.lead() && worker.next_step > 0U;
    if (trains && !worker.contributed.has_value()) cluster.ContributeOnce(worker);
  }
}

class MachineScalingTest : public MachineTest {
 protected:
  absl::Status Scale(const std::string& run, uint32_t groups) {
    cluster_.Scale(run, groups);
    return cluster_.last_status;
  }
  size_t GroupRecords(const std::string& run) {
    const std::string prefix = GroupsPrefix(run);
    return std::count_if(cluster_.store().begin(), cluster_.store().end(),
                         [&](const auto& record) { return record.first.rfind(prefix, 0) == 0; });
  }
};

TEST_F(MachineScalingTest, GroupsAreAddedAndRemovedAtTheNextVersion) {
  const std::string run = SubmitTo(1, 2, EpochsSpec(2, 5, 6));
  ASSERT_EQ(Scale(run, 4), absl::OkStatus());
  EXPECT_EQ(cluster_.RunStatus(run).groups(), 2U);
  EXPECT_EQ(cluster_.RunStatus(run).scaling_to(), 4U);
  TrainAll(cluster_);
  v1::RunStatus status = cluster_.RunStatus(run);
  EXPECT_EQ(status.version(), 1U);
  EXPECT_EQ(status.groups(), 4U);
  EXPECT_EQ(status.groups_alive(), 2U) << "new groups wait for workers";
  EXPECT_EQ(status.scaling_to(), 0U);
  EXPECT_EQ(StateOf(run, 3), v1::GROUP_STATE_WAITING);
  // Epochs 0 to 6 have 3840 samples, of which 5 steps of 2 x 32 are used; then 128 per step.
  EXPECT_EQ(status.total_steps(), 33U);

  cluster_.AddWorkers(2);
  ASSERT_EQ(cluster_.RunStatus(run).groups_alive(), 4U);
  const v1::Start& start = *cluster_.Lead(run, 3).start;
  EXPECT_EQ(start.division().groups(), 4U);
  EXPECT_EQ(start.division().step(), 5U);
  EXPECT_EQ(start.division().position(), 320U);
  EXPECT_EQ(start.total_steps(), 33U);
  TrainAll(cluster_);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 2U);

  ASSERT_EQ(Scale(run, 1), absl::OkStatus());
  EXPECT_EQ(GroupRecords(run), 4U);
  TrainAll(cluster_);
  status = cluster_.RunStatus(run);
  EXPECT_EQ(status.version(), 3U);
  EXPECT_EQ(status.groups(), 1U);
  EXPECT_EQ(GroupRecords(run), 1U);
  int idle = 0;
  for (const FakeWorker& worker : cluster_.workers()) {
    if (worker.assignment.has_value()) continue;
    ++idle;
    EXPECT_THAT(worker.received.back().release().reason(), HasSubstr("scaled to 1 groups"));
  }
  EXPECT_EQ(idle, 3);
  const v1::CoordinatorMessage& last = cluster_.Lead(run, 0).received.back();
  ASSERT_TRUE(last.has_decision());
  EXPECT_EQ(last.decision().division().groups(), 1U);
  EXPECT_EQ(last.decision().division().position(), 320U + 2 * 5 * 128);
  // A removed group's number may be used again, with the generations that the aggregators accept.
  ASSERT_EQ(Scale(run, 2), absl::OkStatus());
  TrainAll(cluster_);
  EXPECT_EQ(cluster_.RunStatus(run).groups_alive(), 2U);
  TrainAll(cluster_);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 5U);
  EXPECT_EQ(cluster_.Commit(run, 5)->participants_size(), 2);
}

TEST_F(MachineScalingTest, LaterRequestReplacesEarlierOne) {
  const std::string run = SubmitTo(1, 4, EpochsSpec(2, 5, 6));
  ASSERT_EQ(Scale(run, 4), absl::OkStatus());
  ASSERT_EQ(Scale(run, 3), absl::OkStatus());
  EXPECT_EQ(cluster_.RunStatus(run).scaling_to(), 3U);
  ASSERT_EQ(Scale(run, 2), absl::OkStatus());
  EXPECT_EQ(cluster_.RunStatus(run).scaling_to(), 0U);
  TrainAll(cluster_);
  EXPECT_EQ(cluster_.RunStatus(run).groups(), 2U);
}

// There is no plan for three ranks.
TEST_F(MachineScalingTest, GroupGrowsOnlyToASizeThatHasAPlan) {
  FakeCluster cluster([](Machine::Options& options) {
    options.plan = [](const v1::RunSpec&, int ranks) -> absl::StatusOr<v1::Plan> {
      if (ranks == 3) return absl::InvalidArgumentError("three ranks cannot train it");
      return v1::Plan();
    };
  });
  cluster.behaviour.train = false;
  cluster.AddAggregator("agg-0");
  cluster.AddWorkers(4);
  const std::string run = cluster.Submit(MakeSpec(1, 4, 5, 1000));
  cluster.Kill(cluster.Rank(run, 0, 3));
  cluster.Kill(cluster.Rank(run, 0, 2));
  cluster.Run(absl::Minutes(1));
  ASSERT_EQ(cluster.Group(run, 0).members_size(), 2);
  cluster.AddWorker("third");
  cluster.ContributeOnce(cluster.Lead(run, 0));
  ASSERT_EQ(cluster.RunStatus(run).version(), 1U);
  EXPECT_EQ(cluster.Counter("groups_grown"), 0U);
  cluster.AddWorker("fourth");
  cluster.ContributeOnce(cluster.Lead(run, 0));
  ASSERT_EQ(cluster.RunStatus(run).version(), 2U);
  EXPECT_EQ(cluster.Counter("groups_grown"), 1U);
  EXPECT_EQ(cluster.Group(run, 0).members_size(), 4);
}

// The commit record, and with it what the aggregators store, is decided.
TEST_F(MachineScalingTest, RequestDuringCommitTakesEffectAfterIt) {
  const std::string run = SubmitTo(1, 4, EpochsSpec(2, 5, 6));
  ASSERT_EQ(Scale(run, 3), absl::OkStatus());
  cluster_.behaviour.apply = false;
  TrainAll(cluster_);
  ASSERT_EQ(Scale(run, 1), absl::OkStatus());
  const v1::CoordinatorMessage& last = cluster_.aggregators()[0].received.back();
  ASSERT_TRUE(last.has_apply());
  EXPECT_EQ(last.apply().division().groups(), 3U);
  cluster_.behaviour.apply = true;
  cluster_.RestartCoordinator();
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1U);
  EXPECT_EQ(cluster_.RunStatus(run).groups(), 3U);
  EXPECT_EQ(cluster_.RunStatus(run).scaling_to(), 1U);
  TrainAll(cluster_);
  EXPECT_EQ(cluster_.RunStatus(run).groups(), 1U);
}

TEST_F(MachineScalingTest, Refusals) {
  v1::RunSpec spec = EpochsSpec(3, 5, 2);
  spec.mutable_averaging()->set_quorum(2);
  spec.mutable_averaging()->set_min_groups(3);
  const std::string run = SubmitTo(1, 3, spec);
  EXPECT_EQ(Scale("run-9", 2).code(), absl::StatusCode::kNotFound);
  for (const uint32_t groups : {0U, kMaxGroups + 1}) {
    EXPECT_EQ(Scale(run, groups).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(Scale(run, 1).message(),
              HasSubstr("less than averaging.quorum of run run-1-test (2)"));
  EXPECT_THAT(Scale(run, 2).message(), HasSubstr("averaging.min_groups"));
  EXPECT_EQ(cluster_.RunStatus(run).scaling_to(), 0U);
  cluster_.StopRun(run);
  EXPECT_EQ(Scale(run, 4).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Scale(run, 4).message(), HasSubstr("makes no further version"));
  const std::string alone = cluster_.Submit(MakeSpec(1, 1, 0, 50));
  EXPECT_EQ(Scale(alone, 2).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Scale(alone, 2).message(), HasSubstr("never averages"));
}

// Scales 2 -> 4 -> 1 and trains to the end of the sixth epoch. The coordinator crashes after the
// given transaction (0: never).
struct Scaled {
  v1::RunStatus status;
  int transactions = 0;
};
Scaled RunScaled(int crash_after) {
  FakeCluster cluster;
  cluster.behaviour.train = false;
  if (crash_after > 0) cluster.CrashAfterTransaction(crash_after);
  cluster.AddAggregator("agg-0");
  cluster.AddAggregator("agg-1");
  cluster.AddWorkers(4);
  cluster.Submit(EpochsSpec(2, 5, 6));
  const std::string run = "run-1-test";
  for (int turn = 0; turn < 50 && !cluster.Ended(run); ++turn) {
    const uint32_t version = cluster.RunStatus(run).version();
    if (version == 1) cluster.Scale(run, 4);
    if (version == 3) cluster.Scale(run, 1);
    const bool all = cluster.RunUntil([&] {
      const v1::RunStatus status = cluster.RunStatus(run);
      return cluster.Ended(run) || status.groups_alive() == status.groups();
    });
    EXPECT_TRUE(all);
    TrainAll(cluster);
  }
  return {cluster.RunStatus(run), cluster.transactions()};
}

TEST(MachineScalingCrashTest, CrashAfterEachTransaction) {
  const Scaled whole = RunScaled(0);
  ASSERT_EQ(whole.status.state(), v1::RUN_STATE_DONE) << whole.status.reason();
  EXPECT_EQ(whole.status.samples(), 6 * kTrainSamples);
  // Two rounds of 5 x 64 samples, two of 5 x 128, the rest by one group of 5 x 32 per round.
  EXPECT_EQ(whole.status.version(), 16U);
  EXPECT_EQ(whole.status.step(), 80U);
  EXPECT_EQ(whole.status.total_steps(), 80U);
  EXPECT_DOUBLE_EQ(whole.status.epoch(), 6);
  ASSERT_GT(whole.transactions, 30);
  for (int n = 1; n <= whole.transactions; ++n) {
    SCOPED_TRACE(absl::StrCat("crash after transaction ", n, " of ", whole.transactions));
    const Scaled crashed = RunScaled(n);
    EXPECT_EQ(crashed.status.state(), v1::RUN_STATE_DONE) << crashed.status.reason();
    EXPECT_EQ(crashed.status.version(), whole.status.version());
    EXPECT_EQ(crashed.status.step(), whole.status.step());
    EXPECT_EQ(crashed.status.samples(), whole.status.samples());
    EXPECT_EQ(crashed.status.test().samples(), kTestSamples);
  }
}

// ---- Drain

TEST_F(MachineScalingTest, DrainCordonsAndAsksToLeave) {
  const std::string run = SubmitTo(1, 3, MakeSpec(1, 2, 5, 20));
  FakeWorker& worker = cluster_.Rank(run, 0, 1);
  EXPECT_THAT(cluster_.Cordon(worker.name, /*undo=*/false, /*drain=*/true),
              ElementsAre(worker.member_id));
  EXPECT_TRUE(worker.received.back().has_drain());
  EXPECT_FALSE(cluster_.Lead(run, 0).received.back().has_drain());
  v1::Goodbye goodbye;
  goodbye.set_reason("drained");
  const std::string left = worker.member_id;
  cluster_.Send(worker, goodbye);
  const v1::GroupStatus group = cluster_.Group(run, 0);
  ASSERT_EQ(group.members_size(), 2) << "an idle worker takes the place";
  for (const v1::GroupMember& member : group.members()) EXPECT_NE(member.member_id(), left);
}

TEST_F(MachineScalingTest, DrainReachesADisconnectedWorker) {
  AddMembers(1, 1);
  FakeWorker& worker = cluster_.workers()[0];
  const auto drained = [&] {
    cluster_.Reconnect(worker);
    return worker.received.back().has_drain();
  };
  cluster_.Cut(worker);
  EXPECT_THAT(cluster_.Cordon(worker.name, /*undo=*/false, /*drain=*/true),
              ElementsAre(worker.member_id));
  EXPECT_TRUE(drained());
  cluster_.RestartCoordinator();
  EXPECT_TRUE(drained());
  // The same process, after its lease.
  worker.alive = false;
  cluster_.Cut(worker);
  cluster_.Run(absl::Minutes(1));
  ASSERT_TRUE(cluster_.Status().workers().empty());
  worker.member_id.clear();
  EXPECT_TRUE(drained());
  cluster_.Cordon(worker.name, /*undo=*/true);
  EXPECT_FALSE(drained());
}

TEST_F(MachineScalingTest, TheLimitOfADrainCountsFromTheOrder) {
  AddMembers(1, 1);
  FakeWorker& worker = cluster_.workers()[0];
  const auto seconds = [&] { return worker.received.back().drain().seconds(); };
  cluster_.Cordon(worker.name, /*undo=*/false, /*drain=*/true, 25);
  EXPECT_NEAR(seconds(), 25, 1e-3);
  cluster_.Run(absl::Seconds(10));
  cluster_.Reconnect(worker);
  EXPECT_NEAR(seconds(), 15, 1e-3);
  cluster_.RestartCoordinator();
  cluster_.Reconnect(worker);
  EXPECT_GT(seconds(), 0);
  EXPECT_LE(seconds(), 15);
  // A limit that has passed is still one.
  cluster_.Run(absl::Seconds(20));
  cluster_.Reconnect(worker);
  EXPECT_GT(seconds(), 0);
  EXPECT_LT(seconds(), 0.1);
}

TEST_F(MachineScalingTest, RestartedWorkerIsNotDrainedAgain) {
  AddMembers(1, 1);
  FakeWorker& worker = cluster_.workers()[0];
  cluster_.Cordon(worker.name, /*undo=*/false, /*drain=*/true);
  cluster_.Kill(worker);
  cluster_.Restart(worker);
  EXPECT_FALSE(worker.received.back().has_drain());
}

}  // namespace
}  // namespace cadre::testing
