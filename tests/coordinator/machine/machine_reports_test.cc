// What members and users learn of runs, workers and checkpoints: reports that no decision depends
// on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "coordinator/cluster/cluster.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MachineReportsTest : public MachineTest {
 protected:
  int64_t CountEvents(v1::EventKind kind) {
    const v1::EventsReply events = cluster_.Events();
    return std::count_if(events.events().begin(), events.events().end(),
                         [kind](const v1::ClusterEvent& event) { return event.kind() == kind; });
  }
};

TEST_F(MachineReportsTest, RunEndedSaysThatTheRunIsDone) {
  cluster_.AddAggregator("agg-0");
  v1::RunSpec spec = OpaqueSpec(1);
  spec.mutable_model()->mutable_opaque()->set_test_samples(kTestSamples);
  spec.mutable_checkpoint()->set_from("/model.safetensors");
  const std::string run = cluster_.Submit(spec);
  const FakeWorker& rank = cluster_.AddRank("program", run, 1, 0);
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  const auto ended = std::find_if(rank.received.begin(), rank.received.end(),
                                  [](const auto& message) { return message.has_run_ended(); });
  ASSERT_NE(ended, rank.received.end());
  EXPECT_TRUE(ended->run_ended().done());
  EXPECT_EQ(ended->run_ended().run(), run);
  EXPECT_EQ(ended->run_ended().version(), cluster_.RunStatus(run).version());
  EXPECT_EQ(ended->run_ended().step(), cluster_.RunStatus(run).step());
}

TEST_F(MachineReportsTest, WorkerThatConnectsAgainHasNotJoined) {
  AddMembers(1, 1);
  const int64_t joined = CountEvents(v1::EVENT_KIND_MEMBER_JOINED);
  EXPECT_EQ(joined, 2);
  cluster_.Reconnect(cluster_.workers().front());
  EXPECT_EQ(CountEvents(v1::EVENT_KIND_MEMBER_JOINED), joined);
}

TEST_F(MachineReportsTest, LaterCheckpointReplacesTheEarlierOne) {
  v1::RunSpec spec = MakeSpec(1, 1, 5, 100);
  spec.mutable_checkpoint()->set_directory("/checkpoints");
  const std::string run = SubmitTo(1, 1, spec);
  for (const uint32_t step : {5U, 10U}) {
    v1::Checkpointed report;
    *report.mutable_place() = cluster_.Lead(run, 0).place();
    report.set_step(step);
    cluster_.Send(cluster_.Lead(run, 0), report);
    EXPECT_EQ(cluster_.RunStatus(run).checkpoint().saved_step(), step);
  }
}

TEST_F(MachineReportsTest, ResidualOfCodedVersionsIsTheSumOfTheShards) {
  v1::RunSpec spec = MakeSpec(1, 1, 5, 100);
  spec.mutable_averaging()->mutable_down()->set_codec(v1::CODEC_INT8);
  const std::string run = SubmitTo(2, 1, spec);
  EXPECT_EQ(cluster_.RunStatus(run).residual_ratio(), 0);
  for (const double residual : {8.0, 18.0}) {
    cluster_.behaviour.residual.emplace();
    cluster_.behaviour.residual->set_change_squared(200);
    cluster_.behaviour.residual->set_residual_squared(residual);
    Train(run);
    EXPECT_FLOAT_EQ(cluster_.RunStatus(run).residual_ratio(), std::sqrt(residual / 200));
  }
}

TEST_F(MachineReportsTest, AgeOfTheLastMessage) {
  AddMembers(1, 1);
  cluster_.Cut(cluster_.workers().front());
  const v1::StatusReply status = cluster_.machine().Status(cluster_.now() + absl::Seconds(3));
  EXPECT_EQ(status.workers(0).heartbeat_age_seconds(), 3);
  EXPECT_FALSE(status.workers(0).connected());
  EXPECT_EQ(status.aggregators(0).member().heartbeat_age_seconds(), 3);
  EXPECT_TRUE(status.aggregators(0).member().connected());
}

TEST_F(MachineReportsTest, StepTimesThatAreNoTimesAreIgnored) {
  cluster_.behaviour.train = false;
  const std::string run = SubmitTo(1, 1, MakeSpec(1, 1, 5, 100));
  const auto report = [&](double step, double wait) {
    v1::Heartbeat heartbeat;
    heartbeat.set_step_seconds(static_cast<float>(step));
    heartbeat.set_wait_seconds(static_cast<float>(wait));
    cluster_.Send(cluster_.workers().front(), heartbeat);
    const v1::GroupMember& member = cluster_.Group(run, 0).members(0);
    return std::pair(member.step_seconds(), member.wait_seconds());
  };
  const double infinity = std::numeric_limits<double>::infinity();
  const double none = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(report(2, 0), std::pair(2.0, 0.0));
  EXPECT_EQ(report(4, 0.5), std::pair(4.0, 0.5));
  for (const auto& [step, wait] :
       {std::pair(0.0, 1.0), std::pair(-1.0, 1.0), std::pair(none, 1.0), std::pair(infinity, 1.0),
        std::pair(1.0, -1.0), std::pair(1.0, none), std::pair(1.0, infinity)}) {
    EXPECT_EQ(report(step, wait), std::pair(4.0, 0.5)) << step << " " << wait;
  }
  EXPECT_EQ(report(1, 3), std::pair(1.0, 1.0)) << "a step does not wait longer than it takes";
}

TEST_F(MachineReportsTest, DelayedOrdersAreNamed) {
  Member aggregator;
  aggregator.record.set_name("agg-0");
  v1::DelayedOrder delayed;
  delayed.set_seconds(61.5F);
  const auto text = [&](const std::string& order) {
    delayed.set_order(order);
    return Cluster::DelayText(aggregator, delayed);
  };
  const std::string slow = ", and has not finished: its disk is slow or does not answer";
  EXPECT_EQ(text("open_run"), "aggregator agg-0 has taken 1m1s to open its shard" + slow);
  EXPECT_EQ(text("apply"), "aggregator agg-0 has taken 1m1s to apply the round" + slow);
  EXPECT_EQ(text("close_run"), "aggregator agg-0 has taken 1m1s to close the run" + slow);
  EXPECT_EQ(text("delete_run"),
            "aggregator agg-0 has taken 1m1s to remove the files of the run" + slow);
  EXPECT_EQ(text("publish"), "aggregator agg-0 has taken 1m1s to carry out publish" + slow);
  delayed.set_seconds(std::numeric_limits<float>::infinity());
  EXPECT_EQ(text("apply"), "aggregator agg-0 has taken 0 to apply the round" + slow);
}

TEST_F(MachineReportsTest, PreparedWithoutSamplesIsRefused) {
  cluster_.behaviour.on_prepared = [n = 0](v1::Prepared& prepared) mutable {
    if (n++ == 0) prepared.set_train_samples(0);
  };
  SubmitTo(1, 1, MakeSpec(1, 1, 5, 100));
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1U);
}

TEST_F(MachineReportsTest, EveryWorkerSupportsFp32) {
  v1::RunSpec spec = MakeSpec(1, 1, 5, 100);
  spec.set_precision(v1::RunSpec::FP32);
  EXPECT_THAT(ReasonOf(SubmitTo(1, 0, spec)), Not(HasSubstr("that support")));
  spec.set_precision(v1::RunSpec::BF16);
  cluster_.StopRun("run-1");
  EXPECT_THAT(ReasonOf(SubmitTo(0, 0, spec)), HasSubstr("that support BF16"));
}

}  // namespace
}  // namespace cadre::testing
