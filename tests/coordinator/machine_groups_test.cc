// Groups: forming, starting together, fencing, going on smaller, growing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

class MachineGroupsTest : public ::testing::Test {
 protected:
  void AddWorkers(int n) {
    for (int i = 0; i < n; ++i) cluster_.AddWorker(absl::StrCat("w", cluster_.workers().size()));
  }
  v1::MemberMessage Failed(const FakeWorker& worker) {
    v1::MemberMessage message;
    *message.mutable_group_failed()->mutable_place() = worker.place();
    message.mutable_group_failed()->set_reason("a peer is lost");
    return message;
  }
  FakeWorker& RankOf(const std::string& run, uint32_t group, uint32_t rank) {
    for (FakeWorker& worker : cluster_.workers()) {
      if (worker.assignment.has_value() && worker.place().run() == run &&
          worker.place().group() == group && worker.place().rank() == rank) {
        return worker;
      }
    }
    ADD_FAILURE() << "no such rank";
    return cluster_.workers().front();
  }

  FakeCluster cluster_;
};

TEST_F(MachineGroupsTest, AssignmentTellsEverything) {
  cluster_.AddAggregator("agg-0");
  cluster_.AddAggregator("agg-1");
  AddWorkers(2);
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  const v1::Assignment& assignment = *RankOf(run, 0, 1).assignment;
  EXPECT_EQ(assignment.place().generation(), 1u);
  EXPECT_FALSE(assignment.lineage().empty());
  EXPECT_EQ(assignment.spec().batch_per_group(), 32u);
  EXPECT_EQ(assignment.plan().mesh(0).size(), 2u);
  ASSERT_EQ(assignment.peers_size(), 2);
  EXPECT_EQ(assignment.peers(0), "w0:1");
  EXPECT_EQ(assignment.digest(), 2001u) << "the two shards' digests add up";
  ASSERT_EQ(assignment.shards_size(), 2);
  EXPECT_EQ(assignment.shards(1).address(), "agg-1:1");
  const v1::Start& start = *RankOf(run, 0, 1).start;
  EXPECT_EQ(start.next_step(), 5u);
  EXPECT_EQ(start.total_steps(), 20u);
  EXPECT_EQ(start.groups(), 1u);
}

// Rank 0 tells of the plan as its group obeys it: this is what people see.
TEST_F(MachineGroupsTest, StatusShowsReportedPlan) {
  cluster_.AddAggregator("agg-0");
  AddWorkers(2);
  cluster_.behaviour.train = false;
  cluster_.behaviour.on_prepared = [&](v1::Prepared& prepared) {
    if (prepared.place().rank() != 0) return;
    v1::Plan& plan = *prepared.mutable_plan();
    plan = RankOf(prepared.place().run(), 0, 0).assignment->plan();
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
  EXPECT_EQ(group.collectives(), v1::Cluster::AUTO) << "what the spec leaves out is told";
  EXPECT_EQ(group.overlap(), v1::Cluster::ON);
  cluster_.RestartCoordinator();
  cluster_.Run(absl::Seconds(1));
  EXPECT_EQ(cluster_.Group(run, 0).plan().SerializeAsString(), group.plan().SerializeAsString());
}

TEST_F(MachineGroupsTest, OtherPlanFailsGroup) {
  cluster_.AddAggregator("agg-0");
  AddWorkers(2);
  int wrong = 1;
  cluster_.behaviour.on_prepared = [&](v1::Prepared& prepared) {
    if (prepared.place().rank() != 0 || wrong-- <= 0) return;
    prepared.mutable_plan()->add_mesh()->set_name("star");
  };
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 20));
  EXPECT_EQ(cluster_.Counter("groups_failed"), 1u);
  EXPECT_THAT(
      cluster_.Group(run, 0).reason(),
      ::testing::AllOf(HasSubstr("does not follow the group's plan"), HasSubstr("its mesh")));
  cluster_.Run(absl::Seconds(1));
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_TRAINING) << "the next generation does";
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 2u);
}

TEST(MachinePlanTest, ReportedPlanIsChecked) {
  FakeCluster cluster([](Machine::Options& options) {
    options.check_plan = [](const v1::RunSpec& spec, const v1::Plan& plan) {
      EXPECT_EQ(spec.batch_per_group(), 32u);
      return plan.has_link() ? absl::InvalidArgumentError("a link of straw") : absl::OkStatus();
    };
  });
  cluster.AddAggregator("agg-0");
  cluster.AddWorker("w0");
  int wrong = 1;
  cluster.behaviour.train = false;
  cluster.behaviour.on_prepared = [&](v1::Prepared& prepared) {
    *prepared.mutable_plan() = cluster.workers().front().assignment->plan();
    if (wrong-- > 0) prepared.mutable_plan()->mutable_link();
  };
  const std::string run = cluster.Submit(MakeSpec(1, 1, 5, 20));
  EXPECT_THAT(cluster.Group(run, 0).reason(), HasSubstr("a link of straw"));
}

TEST_F(MachineGroupsTest, ProgressHasStepAndExposedTime) {
  cluster_.AddAggregator("agg-0");
  AddWorkers(1);
  cluster_.behaviour.train = false;
  v1::RunSpec spec = MakeSpec(1, 1, 5, 20);
  spec.mutable_cluster()->set_collectives(v1::Cluster::PAPER);
  spec.mutable_cluster()->set_overlap(v1::Cluster::OFF);
  const std::string run = cluster_.Submit(spec);
  v1::MemberMessage message;
  v1::Progress& progress = *message.mutable_progress();
  *progress.mutable_place() = RankOf(run, 0, 0).place();
  progress.set_step(2);
  progress.set_step_seconds(0.5F);
  progress.set_exposed_seconds(0.125F);
  cluster_.Do(MessageReceived{RankOf(run, 0, 0).connection, message});
  const v1::GroupStatus group = cluster_.Group(run, 0);
  EXPECT_EQ(group.step_seconds(), 0.5);
  EXPECT_EQ(group.exposed_seconds(), 0.125);
  EXPECT_EQ(group.collectives(), v1::Cluster::PAPER);
  EXPECT_EQ(group.overlap(), v1::Cluster::OFF);
}

TEST_F(MachineGroupsTest, FirstGroupsStartTogether) {
  cluster_.AddAggregator("agg-0");
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(2, 1, 5, 20));
  AddWorkers(1);
  cluster_.Run(absl::Seconds(2));
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_PREPARING)
      << "it waits for the other one";
  AddWorkers(1);
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(cluster_.Group(run, 1).state(), v1::GROUP_STATE_TRAINING);
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(cluster_.Commit(run, 1)->participants_size(), 2);
}

TEST_F(MachineGroupsTest, ButNotForEver) {
  cluster_.AddAggregator("agg-0");
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(2, 1, 5, 20));
  AddWorkers(1);
  cluster_.Run(absl::Seconds(5));
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(cluster_.Group(run, 1).state(), v1::GROUP_STATE_WAITING);
  AddWorkers(1);
  EXPECT_EQ(cluster_.Group(run, 1).state(), v1::GROUP_STATE_TRAINING) << "no second barrier";
}

TEST_F(MachineGroupsTest, FirstGroupWaitsForAllRanks) {
  AddWorkers(2);
  const std::string run = cluster_.Submit(MakeSpec(1, 3, 0, 20));
  cluster_.Run(absl::Minutes(5));
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_QUEUED);
}

TEST_F(MachineGroupsTest, SpareReplacesKilledWorker) {
  cluster_.AddAggregator("agg-0");
  AddWorkers(5);
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(2, 2, 5, 1000));
  const uint32_t other = cluster_.Group(run, 1).generation();
  FakeWorker& survivor = RankOf(run, 0, 0);
  FakeWorker& victim = RankOf(run, 0, 1);
  const v1::MemberMessage failed = Failed(survivor);
  cluster_.Kill(victim);
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_TRAINING)
      << "a broken stream is no lost lease";
  cluster_.SendFrom(survivor.connection, failed);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 3u);
  EXPECT_EQ(cluster_.Group(run, 0).members_size(), 2);
  EXPECT_EQ(cluster_.Group(run, 1).generation(), other) << "the other group goes on";
  EXPECT_EQ(cluster_.Counter("groups_failed"), 1u);
  EXPECT_THAT(cluster_.Group(run, 0).reason(), HasSubstr("a peer is lost"));
  // The aggregators were told where the fence is.
  EXPECT_EQ(cluster_.aggregators()[0].shards.at(run).generations.at(0), 3u);
}

TEST_F(MachineGroupsTest, GroupFailureCountsOnce) {
  AddWorkers(3);
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 3, 0, 1000));
  std::vector<std::pair<ConnectionId, v1::MemberMessage>> said;
  for (const FakeWorker& worker : cluster_.workers()) {
    said.emplace_back(worker.connection, Failed(worker));
  }
  for (const auto& [connection, message] : said) cluster_.Do(MessageReceived{connection, message});
  EXPECT_EQ(cluster_.Counter("groups_failed"), 1u);
  EXPECT_EQ(cluster_.Counter("refused_stale_generation"), 0u);
}

TEST_F(MachineGroupsTest, ALostLeaseFencesTheGroup) {
  AddWorkers(2);
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 0, 1000));
  cluster_.Kill(RankOf(run, 0, 1));
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.Counter("leases_lost") == 1; }));
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_WAITING);
  EXPECT_THAT(cluster_.Group(run, 0).reason(), HasSubstr("whole lease"));
  EXPECT_FALSE(cluster_.workers()[0].assignment.has_value()) << "it was released";
}

TEST_F(MachineGroupsTest, SmallerGroupAfterRejoinWait) {
  cluster_.AddAggregator("agg-0");
  AddWorkers(3);
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 3, 5, 1000));
  FakeWorker& survivor = RankOf(run, 0, 0);
  const v1::MemberMessage failed = Failed(survivor);
  cluster_.Kill(RankOf(run, 0, 1));
  cluster_.SendFrom(survivor.connection, failed);
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_WAITING);
  cluster_.Run(absl::Milliseconds(4900));
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_WAITING);
  cluster_.Run(absl::Milliseconds(200));
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_TRAINING);
  EXPECT_EQ(cluster_.Group(run, 0).members_size(), 2);
}

TEST_F(MachineGroupsTest, NeverSmallerThanMinRanks) {
  AddWorkers(3);
  cluster_.behaviour.train = false;
  v1::RunSpec spec = MakeSpec(1, 3, 0, 1000);
  spec.mutable_cluster()->set_min_ranks_per_group(3);
  const std::string run = cluster_.Submit(spec);
  cluster_.Kill(RankOf(run, 0, 1));
  cluster_.Run(absl::Minutes(1));
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_WAITING);
  cluster_.AddWorker("new");
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_TRAINING);
}

TEST_F(MachineGroupsTest, WaitingGroupsReserveWorkers) {
  AddWorkers(2);
  cluster_.behaviour.train = false;
  v1::RunSpec spec = MakeSpec(1, 2, 0, 1000);
  spec.mutable_cluster()->set_min_ranks_per_group(2);
  const std::string first = cluster_.Submit(spec);
  const std::string second = cluster_.Submit(MakeSpec(1, 1, 0, 1000));
  cluster_.Kill(RankOf(first, 0, 1));
  cluster_.Run(absl::Minutes(1));
  EXPECT_EQ(cluster_.RunStatus(second).state(), v1::RUN_STATE_QUEUED);
  cluster_.AddWorker("new");
  EXPECT_EQ(cluster_.Group(first, 0).state(), v1::GROUP_STATE_TRAINING);
  cluster_.AddWorker("more");
  EXPECT_EQ(cluster_.RunStatus(second).state(), v1::RUN_STATE_RUNNING);
}

TEST_F(MachineGroupsTest, AGroupIsOfOneKindOfDevice) {
  cluster_.behaviour.train = false;
  const std::string mixed = cluster_.Submit(MakeSpec(1, 2, 0, 1000));
  cluster_.AddWorker("c0", "host", "cpu:4");
  cluster_.AddWorker("g0", "host", "cuda:NVIDIA H200");
  EXPECT_EQ(cluster_.RunStatus(mixed).state(), v1::RUN_STATE_QUEUED)
      << "two workers, but of two kinds";
  EXPECT_EQ(
      cluster_.RunStatus(mixed).reason(),
      "waiting for 2 workers with one kind of device; idle: 1 with CPUs, 1 with CUDA devices");
  cluster_.AddWorker("g1", "other", "cuda:NVIDIA H100");
  ASSERT_EQ(cluster_.RunStatus(mixed).state(), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(RankOf(mixed, 0, 0).name, "g0");
  EXPECT_EQ(RankOf(mixed, 0, 1).name, "g1");
}

TEST_F(MachineGroupsTest, RunGetsRequestedDevices) {
  cluster_.behaviour.train = false;
  for (int i = 0; i < 3; ++i) cluster_.AddWorker(absl::StrCat("c", i), "host", "cpu:4");
  v1::RunSpec spec = MakeSpec(1, 2, 0, 1000);
  spec.mutable_cluster()->set_device(v1::Cluster::CUDA);
  const std::string gpus = cluster_.Submit(spec);
  EXPECT_EQ(cluster_.RunStatus(gpus).state(), v1::RUN_STATE_QUEUED);
  EXPECT_EQ(cluster_.RunStatus(gpus).reason(),
            "waiting for 2 workers with CUDA devices; idle: 0 with CUDA devices, 3 with CPUs");
  // What it does not want it does not keep from others.
  spec.mutable_cluster()->set_device(v1::Cluster::CPU);
  const std::string cpus = cluster_.Submit(spec);
  EXPECT_EQ(cluster_.RunStatus(cpus).state(), v1::RUN_STATE_RUNNING);
  // Precisions of GPUs ask for them by themselves.
  v1::RunSpec bf16 = MakeSpec(1, 1, 0, 1000);
  bf16.set_precision(v1::RunSpec::BF16);
  const std::string precise = cluster_.Submit(bf16);
  EXPECT_EQ(cluster_.RunStatus(precise).state(), v1::RUN_STATE_QUEUED)
      << "a CPU is idle, but not meant";
  cluster_.AddWorker("g0", "host", "cuda:NVIDIA H200");
  cluster_.AddWorker("g1", "host", "cuda:NVIDIA H200");
  EXPECT_EQ(cluster_.RunStatus(gpus).state(), v1::RUN_STATE_RUNNING);
  EXPECT_EQ(cluster_.RunStatus(precise).state(), v1::RUN_STATE_QUEUED)
      << "the earlier run goes first";
  cluster_.AddWorker("g2", "host", "cuda:NVIDIA H200");
  EXPECT_EQ(cluster_.RunStatus(precise).state(), v1::RUN_STATE_RUNNING);
}

TEST_F(MachineGroupsTest, GrowsOnlyByEqualDevices) {
  cluster_.AddAggregator("agg-0");
  cluster_.behaviour.train = false;
  cluster_.AddWorker("g0", "host", "cuda:NVIDIA H200");
  cluster_.AddWorker("g1", "host", "cuda:NVIDIA H200");
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 1000));
  cluster_.Kill(RankOf(run, 0, 1));
  cluster_.Run(absl::Minutes(1));
  ASSERT_EQ(cluster_.Group(run, 0).members_size(), 1);
  cluster_.AddWorker("c0", "host", "cpu:4");
  cluster_.ContributeOnce(RankOf(run, 0, 0));
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_EQ(cluster_.Counter("groups_grown"), 0u);
  cluster_.AddWorker("g2", "host", "cuda:NVIDIA H200");
  cluster_.ContributeOnce(RankOf(run, 0, 0));
  ASSERT_EQ(cluster_.RunStatus(run).version(), 2u);
  EXPECT_EQ(cluster_.Counter("groups_grown"), 1u);
  EXPECT_EQ(RankOf(run, 0, 1).name, "g2");
}

TEST_F(MachineGroupsTest, OtherDeviceKindsReserveNothing) {
  cluster_.AddAggregator("agg-0");
  cluster_.behaviour.train = false;
  cluster_.AddWorker("c0", "host", "cpu:4");
  cluster_.AddWorker("c1", "host", "cpu:4");
  v1::RunSpec spec = MakeSpec(1, 2, 0, 1000);
  spec.mutable_cluster()->set_min_ranks_per_group(2);
  spec.mutable_cluster()->set_device(v1::Cluster::CPU);
  const std::string cpus = cluster_.Submit(spec);
  ASSERT_EQ(cluster_.RunStatus(cpus).state(), v1::RUN_STATE_RUNNING);
  cluster_.AddWorker("g0", "host", "cuda:NVIDIA H200");
  cluster_.AddWorker("g1", "host", "cuda:NVIDIA H200");
  v1::RunSpec averaging = MakeSpec(1, 2, 5, 1000);
  averaging.mutable_cluster()->set_device(v1::Cluster::CUDA);
  const std::string gpus = cluster_.Submit(averaging);
  cluster_.Kill(RankOf(gpus, 0, 1));
  cluster_.Kill(RankOf(cpus, 0, 1));
  cluster_.Run(absl::Minutes(1));
  ASSERT_EQ(cluster_.Group(cpus, 0).state(), v1::GROUP_STATE_WAITING);
  ASSERT_EQ(cluster_.Group(gpus, 0).members_size(), 1);
  cluster_.AddWorker("g2", "host", "cuda:NVIDIA H200");
  cluster_.ContributeOnce(RankOf(gpus, 0, 0));
  EXPECT_EQ(cluster_.Counter("groups_grown"), 1u);
  EXPECT_EQ(cluster_.Group(gpus, 0).members_size(), 2);
}

TEST_F(MachineGroupsTest, AShortGroupGrowsAtACommit) {
  cluster_.AddAggregator("agg-0");
  AddWorkers(2);
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 1000));
  FakeWorker& survivor = RankOf(run, 0, 0);
  const v1::MemberMessage failed = Failed(survivor);
  cluster_.Kill(RankOf(run, 0, 1));
  cluster_.SendFrom(survivor.connection, failed);
  cluster_.Run(absl::Seconds(6));
  ASSERT_EQ(cluster_.Group(run, 0).members_size(), 1);
  const uint32_t small = cluster_.Group(run, 0).generation();
  cluster_.AddWorker("new");
  EXPECT_EQ(cluster_.Group(run, 0).generation(), small) << "not in the middle of a round";
  FakeWorker& lead = RankOf(run, 0, 0);
  v1::MemberMessage message;
  v1::Contributed& contributed = *message.mutable_contributed();
  *contributed.mutable_place() = lead.place();
  contributed.set_round(1);
  contributed.set_step(5);
  contributed.set_samples(160);
  lead.contributed = contributed;
  cluster_.SendFrom(lead.connection, message);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1u);
  EXPECT_EQ(cluster_.Counter("groups_grown"), 1u);
  EXPECT_EQ(cluster_.Group(run, 0).members_size(), 2);
  EXPECT_EQ(cluster_.Commit(run, 1)->participants(0).generation(), small);
  EXPECT_EQ(cluster_.Counter("groups_failed"), 1u) << "growing is no failure";
}

TEST_F(MachineGroupsTest, BrokenStreamReformsPreparingGroup) {
  AddWorkers(2);
  cluster_.behaviour.prepare = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 0, 1000));
  AddWorkers(1);
  cluster_.Kill(RankOf(run, 0, 1));
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 2u);
  EXPECT_EQ(cluster_.Counter("groups_failed"), 0u);
}

TEST_F(MachineGroupsTest, ReconnectedWorkerContinues) {
  cluster_.AddAggregator("agg-0");
  AddWorkers(2);
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 1000));
  FakeWorker& worker = RankOf(run, 0, 1);
  cluster_.Cut(worker);
  worker.received.clear();
  cluster_.Connect(worker);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 1u);
  EXPECT_TRUE(worker.assignment.has_value());
  ASSERT_EQ(worker.received.size(), 3u);
  EXPECT_TRUE(worker.received[1].has_start());
  EXPECT_TRUE(worker.received[2].has_shard_addresses());
}

TEST_F(MachineGroupsTest, ReconnectAfterFenceIsReleased) {
  AddWorkers(2);
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 0, 1000));
  FakeWorker& away = RankOf(run, 0, 1);
  cluster_.Cut(away);
  FakeWorker& lead = RankOf(run, 0, 0);
  cluster_.SendFrom(lead.connection, Failed(lead));
  away.received.clear();
  cluster_.Connect(away);
  ASSERT_GE(away.received.size(), 2u);
  EXPECT_TRUE(away.received[1].has_release());
  EXPECT_EQ(cluster_.Counter("refused_stale_generation"), 1u);
  EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_TRAINING)
      << "both are idle, so it formed anew";
}

TEST_F(MachineGroupsTest, ReconnectWithoutRankFencesGroup) {
  AddWorkers(2);
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 0, 1000));
  FakeWorker& worker = RankOf(run, 0, 1);
  cluster_.Cut(worker);
  worker.assignment.reset();
  worker.start.reset();
  cluster_.Connect(worker);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 2u);
  EXPECT_EQ(cluster_.Counter("groups_failed"), 1u);
}

TEST_F(MachineGroupsTest, StaleGenerationIsRefused) {
  AddWorkers(1);
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 1, 0, 1000));
  FakeWorker& worker = RankOf(run, 0, 0);
  v1::RankSlot old = worker.place();
  cluster_.SendFrom(worker.connection, Failed(worker));
  ASSERT_EQ(cluster_.Group(run, 0).generation(), 2u);
  v1::MemberMessage message;
  *message.mutable_progress()->mutable_place() = old;
  cluster_.SendFrom(worker.connection, message);
  *message.mutable_contributed()->mutable_place() = old;
  cluster_.SendFrom(worker.connection, message);
  *message.mutable_prepared()->mutable_place() = old;
  cluster_.SendFrom(worker.connection, message);
  EXPECT_EQ(cluster_.Counter("refused_stale_generation"), 3u);
  EXPECT_EQ(worker.received.back().release().place().generation(), 1u);
  EXPECT_EQ(cluster_.Group(run, 0).generation(), 2u) << "the new generation is untouched";
  EXPECT_TRUE(cluster_.IsOpen(worker.connection));
}

TEST_F(MachineGroupsTest, UnknownRunIsRefused) {
  AddWorkers(1);
  v1::MemberMessage message;
  message.mutable_progress()->mutable_place()->set_run("run-77");
  cluster_.SendFrom(cluster_.workers()[0].connection, message);
  EXPECT_EQ(cluster_.Counter("refused_unknown_run"), 1u);
}

TEST_F(MachineGroupsTest, OnlyRankZeroReports) {
  AddWorkers(2);
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 0, 1000));
  FakeWorker& other = RankOf(run, 0, 1);
  v1::MemberMessage message;
  *message.mutable_contributed()->mutable_place() = other.place();
  const ConnectionId connection = other.connection;
  cluster_.SendFrom(connection, message);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1u);
  EXPECT_FALSE(cluster_.IsOpen(connection));
}

TEST_F(MachineGroupsTest, ReformsAfterRepeatedFailure) {
  cluster_.AddAggregator("agg-0");
  AddWorkers(2);
  cluster_.behaviour.train = false;
  const std::string run = cluster_.Submit(MakeSpec(1, 2, 5, 1000));
  for (int i = 0; i < 2; ++i) {
    FakeWorker& victim = RankOf(run, 0, 1);
    FakeWorker& survivor = RankOf(run, 0, 0);
    const v1::MemberMessage failed = Failed(survivor);
    cluster_.Kill(victim);
    cluster_.SendFrom(survivor.connection, failed);
    cluster_.Restart(victim);
    EXPECT_EQ(cluster_.Group(run, 0).state(), v1::GROUP_STATE_TRAINING) << i;
    EXPECT_EQ(cluster_.Group(run, 0).members_size(), 2) << i;
  }
}

TEST_F(MachineGroupsTest, AGroupTakesAPlanThatExists) {
  FakeCluster cluster([](Machine::Options& options) {
    options.plan = [](const v1::RunSpec&, int ranks) -> absl::StatusOr<v1::Plan> {
      if (ranks == 3) return absl::InvalidArgumentError("3 does not fit");
      v1::Plan plan;
      plan.add_mesh()->set_size(static_cast<uint32_t>(ranks));
      return plan;
    };
  });
  cluster.behaviour.train = false;
  for (int i = 0; i < 4; ++i) cluster.AddWorker(absl::StrCat("w", i));
  const std::string run = cluster.Submit(MakeSpec(1, 4, 0, 1000));
  cluster.Kill(cluster.workers()[3]);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Group(run, 0).generation() == 2; }));
  EXPECT_EQ(cluster.Group(run, 0).members_size(), 2);
}

}  // namespace
}  // namespace cadre::testing
