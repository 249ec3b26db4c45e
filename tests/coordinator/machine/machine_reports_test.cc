// What members and users learn of runs, workers and checkpoints: reports that no decision depends
// on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

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
