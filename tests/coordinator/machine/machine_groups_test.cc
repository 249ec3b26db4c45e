// Groups in the coordinator's state machine (Machine): forming, starting together, fencing (ending
// a generation), continuing with fewer ranks, growing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kCpu[] = "cpu:4";
constexpr char kGpu[] = "cuda:NVIDIA H200";
// Default of rejoin_wait_ms in run.proto: how long a slot waits for a full group, and how long the
// first prepared group waits for the others.
constexpr absl::Duration kRejoinWait = absl::Seconds(5);

class MachineGroupsTest : public MachineTest {
 protected:
  // Submits a run and its members, whose groups start. It averages every `every_steps` steps; 0:
  // the run never averages.
  std::string Begin(uint32_t groups, uint32_t ranks, uint32_t every_steps, int spares = 0) {
    const int workers = groups * ranks;
    AddMembers(every_steps > 0 ? 1 : 0, workers + spares);
    return cluster_.Submit(MakeSpec(groups, ranks, every_steps, 1000));
  }
  void AddDevice(const std::string& name, const char* device,
                 std::vector<v1::RunSpec::Precision> precisions = {}) {
    cluster_.AddWorker(name, "host", device, std::move(precisions));
  }

  struct Device {
    const char* kind;
    std::vector<v1::RunSpec::Precision> precisions;
  };
  // A group of two loses a rank. It grows with a `suitable` worker; `other` must not end it.
  void ExpectGrowsOnlyWith(const Device& suitable, const Device& other, const v1::RunSpec& spec) {
    cluster_.AddAggregator("agg-0");
    for (const char* name : {"s0", "s1"}) AddDevice(name, suitable.kind, suitable.precisions);
    const std::string run = cluster_.Submit(spec);
    cluster_.Kill(cluster_.Rank(run, 0, 1));
    cluster_.Run(absl::Minutes(1));
    ASSERT_EQ(cluster_.Group(run, 0).members_size(), 1);
    AddDevice("other", other.kind, other.precisions);
    Train(run);
    ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
    EXPECT_EQ(cluster_.Counter("groups_grown"), 0u);
    AddDevice("s2", suitable.kind, suitable.precisions);
    Train(run);
    ASSERT_EQ(cluster_.RunStatus(run).version(), 2u);
    EXPECT_EQ(cluster_.Counter("groups_grown"), 1u);
    EXPECT_EQ(cluster_.Rank(run, 0, 1).name, "s2");
  }
};

TEST_F(MachineGroupsTest, FirstGroupWaitsForAllRanks) {
  cluster_.AddWorkers(2);
  const std::string run = cluster_.Submit(MakeSpec(1, 3, 0, 20));
  cluster_.Run(absl::Minutes(5));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_QUEUED);
}

TEST_F(MachineGroupsTest, AssignmentIsComplete) {
  const std::string run = SubmitTo(2, 2, MakeSpec(1, 2, 5, 20));
  const v1::Assignment& assignment = *cluster_.Rank(run, 0, 1).assignment;
  EXPECT_EQ(assignment.place().generation(), 1u);
  EXPECT_FALSE(assignment.lineage().empty()) << "the id of the model's history";
  EXPECT_EQ(assignment.spec().batch_per_group(), 32u);
  EXPECT_EQ(assignment.plan().mesh(0).size(), 2u);
  ASSERT_EQ(assignment.peers_size(), 2);
  EXPECT_EQ(assignment.peers(0), "w0:1");
  ASSERT_EQ(assignment.shards_size(), 2);
  EXPECT_EQ(assignment.shards(1).address(), "agg-1:1");
  const v1::Start& start = *cluster_.Rank(run, 0, 1).start;
  EXPECT_EQ(start.digest(), 1000u + 1001u) << "the sum of the digests of both shards";
  EXPECT_EQ(start.next_step(), 5u);
  EXPECT_EQ(start.total_steps(), 20u);
  EXPECT_EQ(start.division().groups(), 1u);
  EXPECT_FALSE(start.catch_up());
}

TEST_F(MachineGroupsTest, MembersShowTheFallbacksOfTheirLastHeartbeat) {
  const std::string run = Begin(1, 2, 0);
  v1::Heartbeat heartbeat;
  for (int i = 0; i < 100; ++i) {
    v1::Fallback& fallback = *heartbeat.add_fallbacks();
    fallback.set_kind(v1::Fallback::ATTENTION);
    fallback.set_reason("no plan");
  }
  cluster_.Send(cluster_.Rank(run, 0, 1), heartbeat);
  const v1::GroupStatus group = cluster_.Group(run, 0);
  EXPECT_EQ(group.members(0).fallbacks_size(), 0);
  ASSERT_EQ(group.members(1).fallbacks_size(), 16) << "limited";
  EXPECT_EQ(group.members(1).fallbacks(0).reason(), "no plan");
  cluster_.Send(cluster_.Rank(run, 0, 1), v1::Heartbeat());
  EXPECT_EQ(cluster_.Group(run, 0).members(1).fallbacks_size(), 0);
}

TEST_F(MachineGroupsTest, GroupStartsFromTheNewestVersion) {
  const std::string run = SubmitTo(1, 2, MakeSpec(2, 1, 5, 100));
  cluster_.behaviour.prepare = false;
  FakeWorker& lead = cluster_.Lead(run, 1);
  cluster_.Fail(lead);
  for (int round = 1; round <= 3; ++round) Train(run, 0);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 3u);
  cluster_.behaviour.prepare = true;
  cluster_.Run(absl::Seconds(1));
  ASSERT_TRUE(lead.start.has_value());
  EXPECT_EQ(lead.start->version(), 3u);
  EXPECT_EQ(lead.start->step(), 15u);
  EXPECT_EQ(lead.start->digest(), cluster_.Commit(run, 3)->digest());
  EXPECT_EQ(lead.start->next_step(), 20u);
  EXPECT_TRUE(lead.start->catch_up());
}

TEST_F(MachineGroupsTest, GroupDoesNotStartDuringACommit) {
  const std::string run = SubmitTo(1, 2, MakeSpec(2, 1, 5, 100));
  cluster_.behaviour.apply = false;
  FakeWorker& lead = cluster_.Lead(run, 1);
  cluster_.behaviour.prepare = false;
  cluster_.Fail(lead);
  Train(run, 0);
  cluster_.behaviour.prepare = true;
  cluster_.Run(absl::Seconds(5));
  ASSERT_TRUE(lead.prepared.has_value());
  EXPECT_FALSE(lead.start.has_value());
  cluster_.behaviour.apply = true;
  cluster_.Reconnect(cluster_.aggregators().front());
  ASSERT_TRUE(lead.start.has_value());
  EXPECT_EQ(lead.start->version(), 1u);
}

TEST_F(MachineGroupsTest, GroupDoesNotStartWithoutAShard) {
  const std::string run = SubmitTo(1, 2, MakeSpec(2, 1, 5, 100));
  FakeAggregator& aggregator = cluster_.aggregators().front();
  FakeWorker& lead = cluster_.Lead(run, 1);
  cluster_.behaviour.prepare = false;
  cluster_.Fail(lead);
  cluster_.Kill(aggregator);
  cluster_.behaviour.prepare = true;
  cluster_.Run(absl::Seconds(5));
  EXPECT_FALSE(lead.start.has_value());
  aggregator.alive = true;
  cluster_.Restart(aggregator);
  EXPECT_TRUE(lead.start.has_value());
}

// Rank 0 reports the plan that its group executes, with buckets and link; the status shows it.
TEST_F(MachineGroupsTest, StatusShowsReportedPlan) {
  AddMembers(1, 2);
  cluster_.behaviour.on_prepared = [&](v1::Prepared& prepared) {
    if (prepared.place().rank() != 0) return;
    v1::Plan& plan = *prepared.mutable_plan();
    plan = cluster_.Lead(prepared.place().run(), 0).assignment->plan();
    plan.add_buckets()->set_algorithm(v1::Plan::HALVING_DOUBLING);
    plan.mutable_link()->set_alpha(2e-5);
    plan.mutable_link()->set_beta(1e-9);
    plan.mutable_link()->set_kind(v1::LinkProfile::SHARED_MEMORY);
  };
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  const v1::GroupStatus group = cluster_.Group(run, 0);
  EXPECT_EQ(group.state(), v1::GROUP_STATE_TRAINING);
  ASSERT_EQ(group.plan().buckets_size(), 1);
  EXPECT_EQ(group.plan().buckets(0).algorithm(), v1::Plan::HALVING_DOUBLING);
  EXPECT_EQ(group.plan().link().kind(), v1::LinkProfile::SHARED_MEMORY);
  EXPECT_EQ(group.collectives(), v1::Cluster::AUTO) << "defaults of the spec are shown";
  EXPECT_EQ(group.overlap(), v1::Cluster::ON);
  cluster_.RestartCoordinator();
  cluster_.Run(absl::Seconds(1));
  EXPECT_EQ(cluster_.Group(run, 0).plan().SerializeAsString(), group.plan().SerializeAsString());
}

// The first report of rank 0 differs from the assigned plan, or is not legal for the run.
class MachineReportedPlanTest : public MachineTest, public ::testing::WithParamInterface<bool> {
 protected:
  MachineReportedPlanTest()
      : MachineTest([](Machine::Options& options) {
          options.check_plan = [](const v1::RunSpec& spec, const v1::Plan& plan) {
            EXPECT_EQ(spec.batch_per_group(), 32u);
            return plan.has_link() ? absl::InvalidArgumentError("invalid link") : absl::OkStatus();
          };
        }) {}
};

TEST_P(MachineReportedPlanTest, FailsGroup) {
  AddMembers(1, 1);
  cluster_.AddWorker("w1", "other host");
  int wrong = 1;
  cluster_.behaviour.on_prepared = [&](v1::Prepared& prepared) {
    if (prepared.place().rank() != 0 || wrong-- <= 0) return;
    v1::Plan& plan = *prepared.mutable_plan();
    plan = cluster_.Lead(prepared.place().run(), 0).assignment->plan();
    GetParam() ? plan.add_mesh()->set_name("star") : plan.mutable_link()->set_beta(1);
  };
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  EXPECT_EQ(cluster_.Counter("groups_failed"), 1u);
  EXPECT_THAT(cluster_.Group(run, 0).reason(),
              AllOf(HasSubstr("does not follow the group's plan"),
                    HasSubstr(GetParam() ? "its mesh" : "invalid link")));
  cluster_.Run(absl::Seconds(1));
  EXPECT_EQ(StateOf(run), v1::GROUP_STATE_TRAINING) << "the next generation reports no other plan";
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 2u);
}

INSTANTIATE_TEST_SUITE_P(All, MachineReportedPlanTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "OtherMesh" : "IllegalLink"; });

class MachinePreparedTest : public MachineTest {
 protected:
  MachinePreparedTest()
      : MachineTest([this](Machine::Options& options) {
          options.check_plan = [this](const v1::RunSpec&, const v1::Plan&) {
            ++checks_;
            return absl::OkStatus();
          };
        }) {}

  int checks_ = 0;
};

// Legality of a plan takes time on the loop.
TEST_F(MachinePreparedTest, RepeatedMessageIsNotChecked) {
  AddMembers(1, 1);
  v1::Prepared first;
  cluster_.behaviour.on_prepared = [&](v1::Prepared& prepared) {
    *prepared.mutable_plan() = cluster_.Lead(prepared.place().run(), 0).assignment->plan();
    first = prepared;
  };
  const std::string run = cluster_.Submit(MakeSpec(2, 1, 5, 20));
  EXPECT_EQ(StateOf(run, 0), v1::GROUP_STATE_PREPARING) << "group 1 has no worker";
  EXPECT_EQ(checks_, 1);
  for (int i = 0; i < 10; ++i) cluster_.Send(cluster_.Lead(run, 0), first);
  EXPECT_EQ(checks_, 1);
}

TEST_F(MachineGroupsTest, FirstGroupsStartTogether) {
  cluster_.AddAggregator("agg-0");
  const std::string run = cluster_.Submit(MakeSpec(2, 1, 5, 20));
  cluster_.AddWorkers(1);
  cluster_.Run(absl::Seconds(2));
  EXPECT_EQ(StateOf(run, 0), v1::GROUP_STATE_PREPARING) << "group 1 is not prepared";
  cluster_.AddWorkers(1);
  EXPECT_EQ(StateOf(run, 0), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_TRAINING);
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(cluster_.Commit(run, 1)->participants_size(), 2);
}

TEST_F(MachineGroupsTest, StartBarrierIsBounded) {
  cluster_.AddAggregator("agg-0");
  const std::string run = cluster_.Submit(MakeSpec(2, 1, 5, 20));
  cluster_.AddWorkers(1);
  cluster_.Run(kRejoinWait);
  EXPECT_EQ(StateOf(run, 0), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_WAITING);
  cluster_.AddWorkers(1);
  EXPECT_EQ(StateOf(run, 1), v1::GROUP_STATE_TRAINING) << "a late group starts alone";
}

TEST_F(MachineGroupsTest, SpareReplacesKilledWorker) {
  const std::string run = Begin(2, 2, 5, /*spares=*/1);
  const uint32_t other = cluster_.Group(run, 1).generation();
  cluster_.Kill(cluster_.Rank(run, 0, 1));
  EXPECT_EQ(StateOf(run, 0), v1::GROUP_STATE_TRAINING) << "the killed member still has its lease";
  cluster_.Fail(cluster_.Lead(run, 0));  // The other rank reports the loss.
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 3u);
  EXPECT_EQ(cluster_.Group(run, 0).members_size(), 2);
  EXPECT_EQ(cluster_.Group(run, 1).generation(), other) << "the other group continues";
  EXPECT_EQ(cluster_.Counter("groups_failed"), 1u);
  EXPECT_THAT(cluster_.Group(run, 0).reason(), HasSubstr("a peer is lost"));
  EXPECT_EQ(cluster_.aggregators()[0].shards.at(run).generations.at(0), 3u)
      << "the aggregators refuse the old generation";
}

TEST_F(MachineGroupsTest, GroupFailureCountsOnce) {
  const std::string run = Begin(1, 3, 0);
  const std::deque<FakeWorker> before = cluster_.workers();
  for (const FakeWorker& worker : before) cluster_.Fail(worker);
  EXPECT_EQ(cluster_.Counter("groups_failed"), 1u);
  EXPECT_EQ(cluster_.Counter("refused_stale_generation"), 0u);
}

TEST_F(MachineGroupsTest, LostLeaseFencesGroup) {
  const std::string run = Begin(1, 2, 0);
  cluster_.Kill(cluster_.Rank(run, 0, 1));
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.Counter("leases_lost") == 1; }));
  EXPECT_EQ(StateOf(run), v1::GROUP_STATE_WAITING);
  EXPECT_THAT(cluster_.Group(run, 0).reason(), HasSubstr("sent no message within its lease"));
  EXPECT_FALSE(cluster_.workers()[0].assignment.has_value()) << "the other rank is released";
}

TEST_F(MachineGroupsTest, SmallerGroupAfterRejoinWait) {
  const std::string run = Begin(1, 3, 5);
  cluster_.Kill(cluster_.Rank(run, 0, 1));
  cluster_.Fail(cluster_.Lead(run, 0));
  EXPECT_EQ(StateOf(run), v1::GROUP_STATE_WAITING);
  cluster_.Run(kRejoinWait - absl::Milliseconds(100));
  EXPECT_EQ(StateOf(run), v1::GROUP_STATE_WAITING);
  cluster_.Run(absl::Milliseconds(200));
  EXPECT_EQ(StateOf(run), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(cluster_.Group(run, 0).members_size(), 2);
}

TEST_F(MachineGroupsTest, WaitingGroupsReserveWorkers) {
  cluster_.AddWorkers(2);
  v1::RunSpec spec = MakeSpec(1, 2, 0, 1000);
  spec.mutable_cluster()->set_min_ranks_per_group(2);
  const std::string first = cluster_.Submit(spec);
  const std::string second = cluster_.Submit(MakeSpec(1, 1, 0, 1000));
  cluster_.Kill(cluster_.Rank(first, 0, 1));
  cluster_.Run(absl::Seconds(55));
  EXPECT_EQ(StateOf(first), v1::GROUP_STATE_WAITING) << "one rank is fewer than min_ranks";
  EXPECT_EQ(RunStateOf(second), v1::RUN_STATE_QUEUED) << "the lost worker may return";
  cluster_.AddWorker("new");
  EXPECT_EQ(StateOf(first), v1::GROUP_STATE_TRAINING);
  cluster_.AddWorker("more");
  EXPECT_EQ(RunStateOf(second), v1::RUN_STATE_RUNNING);
}

TEST_F(MachineGroupsTest, GroupHasOneKindOfDevice) {
  const std::string mixed = cluster_.Submit(MakeSpec(1, 2, 0, 1000));
  AddDevice("c0", kCpu);
  AddDevice("g0", kGpu);
  EXPECT_EQ(RunStateOf(mixed), v1::RUN_STATE_QUEUED);
  EXPECT_EQ(
      ReasonOf(mixed),
      "waiting for workers with one kind of device: a group needs 2, and only 1 can be used; other "
      "runs are served meanwhile");
  cluster_.AddWorker("g1", "other", "cuda:NVIDIA H100");
  ASSERT_EQ(RunStateOf(mixed), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(cluster_.Rank(mixed, 0, 0).name, "g0");
  EXPECT_EQ(cluster_.Rank(mixed, 0, 1).name, "g1");
}

TEST_F(MachineGroupsTest, RunGetsRequestedDevices) {
  for (const char* name : {"c0", "c1", "c2"}) AddDevice(name, kCpu);
  v1::RunSpec spec = MakeSpec(1, 2, 0, 1000);
  spec.mutable_cluster()->set_device(v1::Cluster::CUDA);
  const std::string gpus = cluster_.Submit(spec);
  EXPECT_EQ(RunStateOf(gpus), v1::RUN_STATE_QUEUED);
  EXPECT_EQ(
      ReasonOf(gpus),
      "waiting for workers with CUDA devices: a group needs 2, and none can be used; other runs "
      "are served meanwhile");
  // A run reserves only workers with the kind of device that it requests.
  spec.mutable_cluster()->set_device(v1::Cluster::CPU);
  const std::string cpus = cluster_.Submit(spec);
  EXPECT_EQ(RunStateOf(cpus), v1::RUN_STATE_RUNNING);
  // A precision that only GPUs support implies CUDA.
  v1::RunSpec tf32 = MakeSpec(1, 1, 0, 1000);
  tf32.set_precision(v1::RunSpec::TF32);
  const std::string precise = cluster_.Submit(tf32);
  EXPECT_EQ(RunStateOf(precise), v1::RUN_STATE_QUEUED) << "the idle worker has a CPU";
  AddDevice("g0", kGpu);
  EXPECT_EQ(RunStateOf(precise), v1::RUN_STATE_RUNNING) << "the earlier run needs two";
  AddDevice("g1", kGpu);
  EXPECT_EQ(RunStateOf(gpus), v1::RUN_STATE_QUEUED);
  AddDevice("g2", kGpu);
  EXPECT_EQ(RunStateOf(gpus), v1::RUN_STATE_RUNNING);
}

TEST_F(MachineGroupsTest, WorkersSupportThePrecision) {
  AddDevice("c0", kCpu);
  v1::RunSpec spec = MakeSpec(1, 1, 0, 1000);
  spec.set_precision(v1::RunSpec::BF16);
  const std::string run = cluster_.Submit(spec);
  cluster_.Run(absl::Minutes(1));
  EXPECT_EQ(
      cluster_.RunStatus(run).reason(),
      "waiting for workers that support BF16: a group needs 1, and none can be used; other runs "
      "are served meanwhile");
  AddDevice("c1", kCpu, {v1::RunSpec::BF16});
  EXPECT_EQ(cluster_.Rank(run, 0, 0).name, "c1");
}

TEST_F(MachineGroupsTest, GrowsOnlyWithWorkersThatSupportThePrecision) {
  v1::RunSpec spec = MakeSpec(1, 2, 5, 1000);
  spec.set_precision(v1::RunSpec::BF16);
  ExpectGrowsOnlyWith({kCpu, {v1::RunSpec::BF16}}, {kCpu, {}}, spec);
}

TEST_F(MachineGroupsTest, GrowsOnlyWithDevicesOfSameKind) {
  ExpectGrowsOnlyWith({kGpu, {}}, {kCpu, {}}, MakeSpec(1, 2, 5, 1000));
}

TEST_F(MachineGroupsTest, WaitingRunReservesOnlyItsDeviceKind) {
  cluster_.AddAggregator("agg-0");
  AddDevice("c0", kCpu);
  AddDevice("c1", kCpu);
  v1::RunSpec spec = MakeSpec(1, 2, 0, 1000);
  spec.mutable_cluster()->set_min_ranks_per_group(2);
  spec.mutable_cluster()->set_device(v1::Cluster::CPU);
  const std::string cpus = cluster_.Submit(spec);
  ASSERT_EQ(RunStateOf(cpus), v1::RUN_STATE_RUNNING);
  AddDevice("g0", kGpu);
  AddDevice("g1", kGpu);
  v1::RunSpec averaging = MakeSpec(1, 2, 5, 1000);
  averaging.mutable_cluster()->set_device(v1::Cluster::CUDA);
  const std::string gpus = cluster_.Submit(averaging);
  cluster_.Kill(cluster_.Rank(gpus, 0, 1));
  cluster_.Kill(cluster_.Rank(cpus, 0, 1));
  cluster_.Run(absl::Minutes(1));
  ASSERT_EQ(StateOf(cpus), v1::GROUP_STATE_WAITING);
  ASSERT_EQ(cluster_.Group(gpus, 0).members_size(), 1);
  AddDevice("g2", kGpu);
  Train(gpus);
  EXPECT_EQ(cluster_.Counter("groups_grown"), 1u);
  EXPECT_EQ(cluster_.Group(gpus, 0).members_size(), 2);
}

TEST_F(MachineGroupsTest, ShrunkenGroupGrowsAtCommit) {
  const std::string run = Begin(1, 2, 5);
  cluster_.Kill(cluster_.Rank(run, 0, 1));
  cluster_.Fail(cluster_.Lead(run, 0));
  cluster_.Run(absl::Seconds(6));
  ASSERT_EQ(cluster_.Group(run, 0).members_size(), 1);
  const uint32_t before = cluster_.Group(run, 0).generation();
  cluster_.AddWorker("new");
  EXPECT_EQ(cluster_.Group(run, 0).generation(), before) << "a group never grows inside a round";
  Train(run);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_EQ(cluster_.Counter("groups_grown"), 1u);
  EXPECT_EQ(cluster_.Group(run, 0).members_size(), 2);
  EXPECT_EQ(cluster_.Commit(run, 1)->participants(0).generation(), before);
  EXPECT_EQ(cluster_.Counter("groups_failed"), 1u) << "growing is not a failure";
}

TEST_F(MachineGroupsTest, PreparingGroupIsFormedAgainAfterBrokenStream) {
  cluster_.behaviour.prepare = false;
  const std::string run = Begin(1, 2, 0, /*spares=*/1);
  cluster_.Kill(cluster_.Rank(run, 0, 1));
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 2u);
  EXPECT_EQ(cluster_.Counter("groups_failed"), 0u);
}

TEST_F(MachineGroupsTest, ReconnectedWorkerContinues) {
  const std::string run = Begin(1, 2, 5);
  FakeWorker& worker = cluster_.Rank(run, 0, 1);
  worker.received.clear();
  cluster_.Reconnect(worker);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 1u);
  EXPECT_TRUE(worker.assignment.has_value());
  ASSERT_EQ(worker.received.size(), 3u);
  EXPECT_TRUE(worker.received[1].has_start());
  EXPECT_TRUE(worker.received[2].has_shard_addresses());
}

TEST_F(MachineGroupsTest, WorkerReconnectingAfterFenceIsReleased) {
  const std::string run = Begin(1, 2, 0);
  FakeWorker& away = cluster_.Rank(run, 0, 1);
  cluster_.Cut(away);
  cluster_.Fail(cluster_.Lead(run, 0));
  away.received.clear();
  cluster_.Connect(away);
  ASSERT_GE(away.received.size(), 2u);
  EXPECT_TRUE(away.received[1].has_release());
  EXPECT_EQ(cluster_.Counter("refused_stale_generation"), 1u);
  EXPECT_EQ(StateOf(run), v1::GROUP_STATE_TRAINING) << "both workers are idle and form a group";
}

TEST_F(MachineGroupsTest, ReconnectThatNamesNoRankFencesGroup) {
  const std::string run = Begin(1, 2, 0);
  FakeWorker& worker = cluster_.Rank(run, 0, 1);
  cluster_.Cut(worker);
  worker.assignment.reset();
  worker.start.reset();
  cluster_.Connect(worker);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 2u);
  EXPECT_EQ(cluster_.Counter("groups_failed"), 1u);
}

TEST_F(MachineGroupsTest, StaleGenerationIsRefused) {
  const std::string run = Begin(1, 1, 0);
  FakeWorker& worker = cluster_.Lead(run, 0);
  const v1::RankSlot old = worker.place();
  cluster_.Fail(worker);
  ASSERT_EQ(cluster_.Group(run, 0).generation(), 2u);
  v1::MemberMessage message;
  *message.mutable_progress()->mutable_place() = old;
  cluster_.Send(worker, message);
  *message.mutable_contributed()->mutable_place() = old;
  cluster_.Send(worker, message);
  *message.mutable_prepared()->mutable_place() = old;
  cluster_.Send(worker, message);
  EXPECT_EQ(cluster_.Counter("refused_stale_generation"), 3u);
  EXPECT_EQ(worker.received.back().release().place().generation(), 1u);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 2u) << "the new generation is not affected";
  EXPECT_TRUE(cluster_.IsOpen(worker.connection));
}

TEST_F(MachineGroupsTest, UnknownRunIsRefused) {
  cluster_.AddWorkers(1);
  v1::Progress progress;
  progress.mutable_place()->set_run("run-77");
  cluster_.Send(cluster_.workers()[0], progress);
  EXPECT_EQ(cluster_.Counter("refused_unknown_run"), 1u);
}

TEST_F(MachineGroupsTest, OnlyRankZeroReports) {
  const std::string run = Begin(1, 2, 0);
  const FakeWorker other = cluster_.Rank(run, 0, 1);
  v1::Contributed contributed;
  *contributed.mutable_place() = other.place();
  cluster_.Send(other, contributed);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1u);
  EXPECT_FALSE(cluster_.IsOpen(other.connection));
}

TEST(MachinePlanTest, GroupShrinksToSizeThatHasPlan) {
  FakeCluster cluster([](Machine::Options& options) {
    options.plan = [](const v1::RunSpec&, int ranks) -> absl::StatusOr<v1::Plan> {
      if (ranks == 3) return absl::InvalidArgumentError("no plan for 3 ranks");
      v1::Plan plan;
      plan.add_mesh()->set_size(ranks);
      return plan;
    };
  });
  cluster.behaviour.train = false;
  cluster.AddWorkers(4);
  const std::string run = cluster.Submit(MakeSpec(1, 4, 0, 1000));
  cluster.Kill(cluster.workers()[3]);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Group(run, 0).generation() == 2; }));
  EXPECT_EQ(cluster.Group(run, 0).members_size(), 2);
}

// A plan that does not fit ends a run that has not trained. Later, workers with more memory may
// join.
TEST(MachinePlanTest, PlanWithoutMemoryEndsOnlyARunThatHasNotTrained) {
  bool fits = true;
  FakeCluster cluster([&](Machine::Options& options) {
    options.plan = [&](const v1::RunSpec&, int ranks) -> absl::StatusOr<v1::Plan> {
      if (!fits) return absl::ResourceExhaustedError("rank 1 needs 9 GiB for layer 'fc6'");
      v1::Plan plan;
      plan.add_mesh()->set_size(ranks);
      return plan;
    };
  });
  cluster.behaviour.train = false;
  cluster.AddWorkers(2);
  const std::string run = cluster.Submit(MakeSpec(1, 2, 0, 1000));
  ASSERT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_RUNNING);
  fits = false;
  cluster.Fail(cluster.Lead(run, 0));
  cluster.Run(absl::Minutes(1));
  EXPECT_EQ(cluster.RunStatus(run).state(), v1::RUN_STATE_RUNNING);
  fits = true;
  cluster.AddWorkers(2);
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Group(run, 0).generation() > 1; }));
  const std::string second = cluster.Submit(MakeSpec(1, 4, 0, 1000));
  fits = false;
  cluster.AddWorkers(2);
  EXPECT_EQ(cluster.RunStatus(second).state(), v1::RUN_STATE_FAILED);
  EXPECT_THAT(cluster.RunStatus(second).reason(), ::testing::HasSubstr("layer 'fc6'"));
}

// The groups were started by another coordinator, whose store was newer.
TEST_F(MachineGroupsTest, ContributionsOfGroupsStartedElsewhereDoNotEndTheRun) {
  cluster_.behaviour.prepare = false;
  AddMembers(1, 2);
  const std::string run = cluster_.Submit(MakeSpec(2, 1, 5, 100));
  for (uint32_t group = 0; group < 2; ++group) {
    const uint32_t before = cluster_.Group(run, group).generation();
    v1::Contributed contributed;
    *contributed.mutable_place() = cluster_.Lead(run, group).place();
    contributed.set_round(1);
    cluster_.Send(cluster_.Lead(run, group), contributed);
    EXPECT_GT(cluster_.Group(run, group).generation(), before);
  }
  EXPECT_NE(RunStateOf(run), v1::RUN_STATE_FAILED);
}

}  // namespace
}  // namespace cadre::testing
