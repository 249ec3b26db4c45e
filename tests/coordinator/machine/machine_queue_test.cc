// The order in which runs are served, and the aggregators that they get, in the coordinator's state
// machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/runs.h"
#include "model/shard_space.h"
#include "tests/base/expect.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kParameters = 1000;

class QueueTest : public MachineTest {
 protected:
  QueueTest()
      : MachineTest([](Machine::Options& options) {
          options.parameter_count = [](const v1::RunSpec&) { return kParameters; };
        }) {}
  // A run of one group of so many ranks.
  std::string Submit(uint32_t ranks, int32_t priority = 0) {
    v1::RunSpec spec = MakeSpec(1, ranks, 5, 1000);
    spec.mutable_cluster()->set_min_ranks_per_group(ranks);
    spec.set_priority(priority);
    return cluster_.Submit(spec);
  }
  std::vector<std::string> ShardsOf(const std::string& run) {
    std::vector<std::string> names;
    const v1::StatusReply status = cluster_.Status();
    for (const v1::AggregatorStatus& aggregator : status.aggregators()) {
      for (const v1::ShardState& shard : aggregator.shards()) {
        if (shard.run() == run) names.push_back(aggregator.member().name());
      }
    }
    return names;
  }
  FakeAggregator& agg(size_t i) { return cluster_.aggregators()[i]; }
};

// Programs plan their own ranks.
TEST_F(QueueTest, OnlyRunsOfWorkersNeedAPlan) {
  Machine::Options options;
  options.plan = [](const v1::RunSpec&, int) -> absl::StatusOr<v1::Plan> {
    return absl::InvalidArgumentError("layer 'fc1' is too large");
  };
  EXPECT_THAT(CheckSpec(options, MakeSpec(1, 2, 5, 20)),
              IsError(kInvalidArgument, "no plan for groups of 2: layer 'fc1' is too large"));
  EXPECT_THAT(CheckSpec(options, OpaqueSpec(1)), IsOk());
}

// Other events are handled in between, but no later run takes the workers.
TEST_F(QueueTest, ManyGroupsAreFormedInParts) {
  constexpr int kGroups = 2 * Runs::kMaxFormations + 3;
  AddMembers(1, kGroups);
  cluster_.behaviour.prepare = false;
  const auto formed = [this](const std::string& run) {
    int count = 0;
    for (uint32_t group = 0; group < cluster_.RunStatus(run).groups(); ++group) {
      count += cluster_.Group(run, group).generation() != 0 ? 1 : 0;
    }
    return count;
  };
  const std::string many = cluster_.Submit(MakeSpec(kGroups, 1, 5, 1000));
  EXPECT_EQ(formed(many), Runs::kMaxFormations);
  const std::string later = Submit(1);
  EXPECT_EQ(formed(many), 2 * Runs::kMaxFormations);
  EXPECT_EQ(formed(later), 0);
  cluster_.Run(absl::ZeroDuration());
  EXPECT_EQ(formed(many), kGroups);
  EXPECT_EQ(formed(later), 0);
}

TEST_F(QueueTest, RunThatCannotBeServedReservesNothing) {
  AddMembers(1, 2);
  const std::string large = Submit(8);
  const std::string small = Submit(1);
  EXPECT_EQ(RunStateOf(small), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(RunStateOf(large), v1::RUN_STATE_QUEUED);
  EXPECT_EQ(ReasonOf(large),
            "waiting for workers: a group needs 8, and only 2 can be used; other runs are served "
            "meanwhile");
  cluster_.AddWorkers(6);
  EXPECT_EQ(RunStateOf(large), v1::RUN_STATE_QUEUED);
  EXPECT_EQ(ReasonOf(large), "waiting for workers: 7 of 8 for a group are idle");
  cluster_.StopRun(small);
  EXPECT_EQ(RunStateOf(large), v1::RUN_STATE_RUNNING);
}

// Otherwise a stream of small runs would keep it waiting forever.
TEST_F(QueueTest, RunThatCanBeServedKeepsIdleWorkers) {
  AddMembers(1, 3);
  const std::string busy = Submit(1);
  const std::string large = Submit(3);
  const std::string small = Submit(1);
  cluster_.Run(absl::Minutes(5));
  EXPECT_EQ(RunStateOf(small), v1::RUN_STATE_QUEUED);
  EXPECT_EQ(ReasonOf(large), "waiting for workers: 2 of 3 for a group are idle");
  EXPECT_EQ(ReasonOf(small),
            "waiting for workers: 0 of 1 for a group are idle and not reserved for " + large);
  cluster_.StopRun(busy);
  EXPECT_EQ(RunStateOf(large), v1::RUN_STATE_RUNNING);
  cluster_.StopRun(large);
  EXPECT_EQ(RunStateOf(small), v1::RUN_STATE_RUNNING);
}

TEST_F(QueueTest, StoppedRunReservesNothing) {
  AddMembers(1, 3);
  Submit(1);
  const std::string first = Submit(3);
  const std::string second = Submit(3);
  EXPECT_EQ(ReasonOf(second),
            "waiting for workers: 0 of 3 for a group are idle and not reserved for " + first);
  cluster_.StopRun(first);
  EXPECT_EQ(ReasonOf(second), "waiting for workers: 2 of 3 for a group are idle");
}

// The first run would wait for the worker of the second one, which waits for the idle ones.
TEST_F(QueueTest, WorkersOfBlockedRunsAreNotWaitedFor) {
  AddMembers(1, 2);
  v1::RunSpec spec = MakeSpec(2, 1, 5, 1000);
  spec.mutable_averaging()->set_min_groups(2);
  const std::string pair = cluster_.Submit(spec);
  EXPECT_EQ(RunStateOf(pair), v1::RUN_STATE_RUNNING);
  const std::string large = Submit(3, 1);
  cluster_.Kill(cluster_.Lead(pair, 1));
  cluster_.Run(absl::Minutes(5));
  EXPECT_EQ(ReasonOf(pair), "waiting for groups: 1 of at least 2 are live");
  EXPECT_THAT(ReasonOf(large),
              HasSubstr("none can be used (1 more in " + pair + ", which lacks workers itself)"));
  cluster_.AddWorkers(2);
  cluster_.Run(absl::Minutes(5));
  EXPECT_EQ(StateOf(pair, 1), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(ReasonOf(large), "waiting for workers: 1 of 3 for a group are idle");
  cluster_.StopRun(pair);
  EXPECT_EQ(RunStateOf(large), v1::RUN_STATE_RUNNING);
}

// Each of two runs has one of the two groups that it needs, and no worker is idle.
TEST_F(QueueTest, LaterOfTwoBlockedRunsGivesUpItsWorkers) {
  AddMembers(1, 4);
  v1::RunSpec spec = MakeSpec(2, 1, 5, 100);
  spec.mutable_averaging()->set_min_groups(2);
  const std::string first = cluster_.Submit(spec);
  const std::string second = cluster_.Submit(spec);
  cluster_.behaviour.train = false;
  for (const std::string& run : {first, second}) cluster_.Kill(cluster_.Lead(run, 1));
  ASSERT_TRUE(cluster_.RunUntil([&] {
    return StateOf(first, 1) == v1::GROUP_STATE_WAITING &&
           StateOf(second, 1) == v1::GROUP_STATE_WAITING;
  }));
  cluster_.Run(kMaxBlocked - absl::Seconds(5));
  EXPECT_NE(StateOf(second, 0), v1::GROUP_STATE_WAITING);
  cluster_.Run(absl::Seconds(10));
  EXPECT_EQ(StateOf(first, 1), v1::GROUP_STATE_TRAINING);
  EXPECT_THAT(cluster_.Group(second, 0).reason(),
              HasSubstr("run " + first + ", which is before this one, can continue"));
  EXPECT_EQ(cluster_.Counter("runs_gave_up_workers"), 1u);
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(first));
  ASSERT_TRUE(cluster_.RunUntilEnded(second)) << "with the workers of the first run";
}

TEST_F(QueueTest, HungWorkersAreNotWaitedFor) {
  AddMembers(1, 2);
  const std::string pair = Submit(2);
  FakeWorker& hung = cluster_.Rank(pair, 0, 0);
  FakeWorker& blocked = cluster_.Rank(pair, 0, 1);
  for (FakeWorker* worker : {&hung, &blocked}) worker->activity = v1::ACTIVITY_TRAINING;
  hung.hung = blocked.hung = true;
  ASSERT_TRUE(cluster_.RunUntil([&] { return !blocked.assignment.has_value(); }));
  blocked.hung = false;
  cluster_.Run(absl::Minutes(2));
  const std::string small = Submit(1);
  EXPECT_EQ(RunStateOf(small), v1::RUN_STATE_RUNNING);
  EXPECT_THAT(ReasonOf(pair), HasSubstr("a group needs 2, and only 1 can be used, 1 is excluded"));
}

TEST_F(QueueTest, ReasonNamesTheExpectedStart) {
  AddMembers(1, 2);
  v1::RunSpec spec = MakeSpec(1, 1, 5, 50);
  const std::string busy = cluster_.Submit(spec);
  const std::string large = Submit(2);
  EXPECT_EQ(ReasonOf(large), "waiting for workers: 1 of 2 for a group are idle");
  // Five of 50 steps take ten seconds.
  cluster_.Run(absl::Seconds(10));
  Train(busy);
  EXPECT_THAT(ReasonOf(large), HasSubstr("; expected to start in 1m30s, when " + busy + " ends"));
}

TEST_F(QueueTest, PriorityOrdersTheQueue) {
  AddMembers(1, 1);
  const std::string busy = Submit(1, 5);
  const std::string low = Submit(1, -1);
  const std::string first = Submit(1);
  const std::string second = Submit(1);
  const std::string high = Submit(1, 3);
  EXPECT_EQ(cluster_.RunStatus(high).priority(), 3);
  EXPECT_THAT(ReasonOf(second), HasSubstr("waiting for workers: 0 of 1 for a group are idle"));
  std::string running = busy;
  for (const std::string& next : {high, first, second, low}) {
    EXPECT_EQ(RunStateOf(next), v1::RUN_STATE_QUEUED) << next;
    if (next == second) cluster_.RestartCoordinator();
    cluster_.StopRun(running);
    cluster_.Run(absl::Seconds(5));
    EXPECT_EQ(RunStateOf(next), v1::RUN_STATE_RUNNING) << next;
    running = next;
  }
}

TEST_F(QueueTest, HigherPriorityGetsTheReservation) {
  AddMembers(1, 2);
  const std::string busy = Submit(1);
  const std::string large = Submit(2);
  const std::string urgent = Submit(1, 1);
  EXPECT_EQ(RunStateOf(urgent), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(RunStateOf(large), v1::RUN_STATE_QUEUED);
}

// ---- Aggregators

TEST_F(QueueTest, SmallDiskIsLeftOutWithAWarning) {
  AddMembers(2, 2);
  agg(0).counters["disk_free_bytes"] = 80;
  agg(1).counters["disk_free_bytes"] = 1 << 30;
  cluster_.Run(absl::Seconds(5));
  const std::string run = Submit(1);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING);
  EXPECT_THAT(ShardsOf(run), ElementsAre("agg-1"));
  EXPECT_THAT(cluster_.RunStatus(run).warnings(),
              ElementsAre(HasSubstr("aggregator agg-0 has 80 bytes free")));
}

// The disk has filled since the last heartbeat.
TEST_F(QueueTest, RefusalForLackOfSpaceChoosesOthers) {
  AddMembers(2, 1);
  cluster_.behaviour.open_error = absl::StrCat(kTooLittleSpace, ": shard 0 needs 9 bytes");
  cluster_.behaviour.open_error_of = "agg-0";
  const std::string run = Submit(1);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << ReasonOf(run);
  EXPECT_THAT(ShardsOf(run), ElementsAre("agg-1"));
  EXPECT_THAT(cluster_.RunStatus(run).warnings(),
              ElementsAre(HasSubstr("agg-0 has refused a shard of this run: the disk has ")));
}

// The heartbeats have the same space before the disk was full for a moment and after.
TEST_F(QueueTest, RefusalForLackOfSpaceCountsForAMinute) {
  AddMembers(1, 1);
  agg(0).counters["disk_free_bytes"] = 1 << 30;
  cluster_.Run(absl::Seconds(5));
  cluster_.behaviour.open_error = absl::StrCat(kTooLittleSpace, ": shard 0 needs 9 bytes");
  const std::string run = Submit(1);
  EXPECT_EQ(ReasonOf(run),
            "waiting for aggregators: 1 needed, 1 connected, of which 1 without space for a shard");
  cluster_.behaviour.open_error.clear();
  cluster_.Run(absl::Seconds(50));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_QUEUED);
  cluster_.Run(absl::Seconds(20));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << ReasonOf(run);
}

TEST_F(QueueTest, MoreSpaceThanBeforeEndsARefusal) {
  AddMembers(1, 1);
  agg(0).counters["disk_free_bytes"] = 1 << 30;
  cluster_.Run(absl::Seconds(5));
  cluster_.behaviour.open_error = absl::StrCat(kTooLittleSpace, ": shard 0 needs 9 bytes");
  const std::string run = Submit(1);
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_QUEUED);
  cluster_.behaviour.open_error.clear();
  agg(0).counters["disk_free_bytes"] = (1 << 30) + 1;
  cluster_.Run(absl::Seconds(5));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << ReasonOf(run);
}

// What the first aggregator reserves is for this run.
TEST_F(QueueTest, OwnReservationIsFreeSpace) {
  AddMembers(2, 1);
  v1::RunSpec spec = MakeSpec(1, 1, 5, 1000);
  spec.mutable_cluster()->set_aggregators(2);
  const int64_t needed = SpaceOfLargestShard(spec, kParameters, 2);
  for (size_t i = 0; i < 2; ++i) agg(i).counters["disk_free_bytes"] = needed;
  cluster_.Run(absl::Seconds(5));
  cluster_.behaviour.open_error = absl::StrCat(kTooLittleSpace, ": shard 1 needs 9 bytes");
  cluster_.behaviour.open_error_of = "agg-1";
  const std::string run = cluster_.Submit(spec);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_QUEUED);
  cluster_.behaviour.open_error.clear();
  agg(0).counters["disk_reserved_bytes"] = needed;
  agg(1).counters["disk_free_bytes"] = needed + 1;
  cluster_.Run(absl::Seconds(5));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << ReasonOf(run);
}

TEST_F(QueueTest, RunWaitsForSpace) {
  AddMembers(1, 1);
  agg(0).counters = {{"disk_free_bytes", 30'000}, {"disk_reserved_bytes", 20'000}};
  cluster_.Run(absl::Seconds(5));
  const std::string run = Submit(1);
  EXPECT_THAT(ReasonOf(run), StartsWith("waiting for aggregators with free space: aggregator agg-0 "
                                        "has 10000 bytes free, and a shard needs "));
  const std::string other = cluster_.Submit(MakeSpec(1, 1, 0, 10));
  EXPECT_EQ(RunStateOf(other), v1::RUN_STATE_RUNNING) << "it reserves nothing";
  cluster_.StopRun(other);
  agg(0).counters["disk_reserved_bytes"] = 0;
  cluster_.Run(absl::Seconds(5));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << ReasonOf(run);
}

TEST_F(QueueTest, RunsAreDividedAmongAggregators) {
  AddMembers(3, 3);
  v1::RunSpec spec = MakeSpec(1, 1, 5, 1000);
  spec.mutable_cluster()->set_aggregators(1);
  EXPECT_THAT(ShardsOf(cluster_.Submit(spec)), ElementsAre("agg-0"));
  EXPECT_THAT(ShardsOf(cluster_.Submit(spec)), ElementsAre("agg-1"));
  EXPECT_THAT(ShardsOf(cluster_.Submit(spec)), ElementsAre("agg-2"));
}

TEST_F(QueueTest, NameOfAnAggregatorComesBeforeTheIdOfAnother) {
  cluster_.AddAggregator("a2");
  cluster_.AddAggregator("agg-1");
  ASSERT_EQ(cluster_.Status().aggregators(1).member().member_id(), "a2");
  EXPECT_THAT(cluster_.Cordon("a2"), ElementsAre("a1"));
  EXPECT_TRUE(cluster_.Status().aggregators(0).member().cordoned());
  EXPECT_FALSE(cluster_.Status().aggregators(1).member().cordoned());
}

TEST_F(QueueTest, CordonedAggregatorGetsNoNewRuns) {
  AddMembers(2, 3);
  const std::string before = Submit(1);
  EXPECT_THAT(ShardsOf(before), ElementsAre("agg-0", "agg-1"));
  EXPECT_THAT(cluster_.Cordon("agg-0"), ElementsAre("a1"));
  EXPECT_EQ(cluster_.last_status, absl::OkStatus());
  EXPECT_TRUE(cluster_.Status().aggregators(0).member().cordoned());
  EXPECT_FALSE(cluster_.Status().aggregators(1).member().cordoned());
  // It outlives restarts, and the lease of the aggregator.
  cluster_.Kill(agg(0));
  cluster_.Run(absl::Minutes(1));
  cluster_.RestartCoordinator();
  cluster_.Restart(agg(0));
  cluster_.Run(absl::Seconds(5));
  EXPECT_EQ(RunStateOf(before), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(ReasonOf(before), "") << "its shards stay";
  const std::string run = Submit(1);
  EXPECT_THAT(ShardsOf(run), ElementsAre("agg-1"));
  v1::RunSpec spec = MakeSpec(1, 1, 5, 1000);
  spec.mutable_cluster()->set_aggregators(2);
  const std::string waits = cluster_.Submit(spec);
  EXPECT_EQ(ReasonOf(waits), "waiting for aggregators: 2 needed, 2 connected, of which 1 cordoned");
  cluster_.Cordon("agg-0", /*undo=*/true);
  EXPECT_EQ(RunStateOf(waits), v1::RUN_STATE_RUNNING);
}

}  // namespace
}  // namespace cadre::testing
