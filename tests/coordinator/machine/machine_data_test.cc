// What the coordinator reports of the data set of a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class MachineDataTest : public MachineTest {
 protected:
  std::vector<std::string> Warnings() {
    std::vector<std::string> texts;
    const v1::EventsReply events = cluster_.Events();
    for (const v1::ClusterEvent& event : events.events()) {
      if (event.kind() == v1::EVENT_KIND_RUN_WARNING) texts.push_back(event.text());
    }
    return texts;
  }
};

TEST_F(MachineDataTest, DataThatAreLeftOutAreAWarning) {
  cluster_.behaviour.on_prepared = [](v1::Prepared& prepared) {
    prepared.set_data_left_out("of the training data: .png (3)");
  };
  const std::string run = SubmitTo(1, 4, MakeSpec(2, 2, 5, 20));
  const std::string warning = "files that are not used: of the training data: .png (3)";
  EXPECT_THAT(cluster_.RunStatus(run).warnings(), ElementsAre(warning));
  EXPECT_THAT(Warnings(), ElementsAre(warning)) << "once, though four ranks report it";
}

// Before a group has read the data, epochs cannot be converted to steps.
TEST_F(MachineDataTest, EvaluationsBeginWithTheEpochInWhichTheRunBegins) {
  v1::RunSpec spec = MakeSpec(1, 1, 5, 100);
  spec.mutable_checkpoint()->set_from_step(50);
  const std::string run = SubmitTo(1, 1, spec);
  ASSERT_EQ(StateOf(run), v1::GROUP_STATE_TRAINING);
  // An epoch has 640 / 32 = 20 steps, so step 50 is in the third one.
  EXPECT_EQ(cluster_.StoredRun(run).next_evaluation(), 3U);
}

// A worker that has left after a failure may return, as one that was lost. So the failures of one
// host do not end the run.
TEST_F(MachineDataTest, OneOfTwoHostsThatCannotReadTheDataDoesNotEndTheRun) {
  cluster_.AddAggregator("agg-0");
  FakeWorker& first = cluster_.AddWorker("w0", "host-0");
  FakeWorker& left = cluster_.AddWorker("w1", "host-1");
  const std::string run = cluster_.Submit(MakeSpec(2, 1, 5, 100));
  cluster_.Fail(left, "truncated", v1::FAILURE_CAUSE_DATA);
  cluster_.Send(left, v1::Goodbye());
  Train(run, 0);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1U);
  for (int failures = 0; failures < 3; ++failures) {
    ASSERT_TRUE(cluster_.RunUntil([&] { return first.assignment.has_value(); }));
    cluster_.Fail(first, "truncated", v1::FAILURE_CAUSE_DATA);
  }
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_RUNNING) << ReasonOf(run);
}

TEST_F(MachineDataTest, NothingIsLeftOut) {
  const std::string run = SubmitTo(1, 1, MakeSpec(1, 1, 5, 20));
  EXPECT_THAT(cluster_.RunStatus(run).warnings(), IsEmpty());
  EXPECT_THAT(Warnings(), IsEmpty());
}

}  // namespace
}  // namespace cadre::testing
