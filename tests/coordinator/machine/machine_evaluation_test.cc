// Evaluation of the versions of a run in the coordinator's state machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

class MachineEvaluationTest : public MachineTest {
 protected:
  // Two groups that contribute to the last round of the run and do not evaluate.
  std::string BeginLastRound() {
    const std::string run = Begin(2, MakeSpec(2, 1, 5, 5));
    Train(run, 0);
    cluster_.behaviour.evaluate = false;
    Train(run, 1);
    EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_FINISHING);
    return run;
  }
};

TEST_F(MachineEvaluationTest, AdoptingGroupsShareTestSplit) {
  // An epoch has 10 steps.
  const std::string run = Begin(2, MakeSpec(2, 1, 10, 100));
  Train(run, 0);
  cluster_.behaviour.evaluate = false;
  Train(run, 1);
  EXPECT_EQ(LastDecision(run, 0).evaluate_begin(), 0u);
  EXPECT_EQ(LastDecision(run, 0).evaluate_end(), 50u);
  EXPECT_EQ(LastDecision(run, 1).evaluate_begin(), 50u);
  EXPECT_EQ(LastDecision(run, 1).evaluate_end(), 100u);
  EXPECT_FALSE(cluster_.RunStatus(run).has_test());
  // Only group 0 reports its part before the next evaluation starts.
  FakeWorker& lead = cluster_.Lead(run, 0);
  const v1::Evaluated evaluated = FakeCluster::EvaluationOf(lead, 0, 50, 10);
  cluster_.Send(lead, evaluated);
  cluster_.Send(lead, evaluated);
  Train(run, 0);
  Train(run, 1);
  const v1::EvaluationResult test = cluster_.RunStatus(run).test();
  EXPECT_EQ(test.version(), 1u);
  EXPECT_EQ(test.samples(), 50u);
  EXPECT_DOUBLE_EQ(test.accuracy(), 0.2);
}

// Both wait, the one for the end of the run, the other one, which hangs, instead of evaluating.
TEST_F(MachineEvaluationTest, GroupThatHasEvaluatedItsPartMayWait) {
  const std::string run = BeginLastRound();
  FakeWorker& done = cluster_.Lead(run, 0);
  FakeWorker& hung = cluster_.Lead(run, 1);
  cluster_.Send(done, FakeCluster::EvaluationOf(done, 0, 50, 10));
  for (FakeWorker* const lead : {&done, &hung}) {
    lead->activity = v1::ACTIVITY_WAITING;
    lead->hung = true;
  }
  const uint32_t first = cluster_.Group(run, 0).generation();
  const uint32_t second = cluster_.Group(run, 1).generation();
  ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.Group(run, 1).generation() != second; },
                                absl::Hours(1)));
  EXPECT_EQ(cluster_.Group(run, 0).generation(), first);
}

// Nothing has to be evaluated at the end.
TEST_F(MachineEvaluationTest, RunWithoutTestSamplesEnds) {
  cluster_.behaviour.on_prepared = [](v1::Prepared& prepared) { prepared.set_test_samples(0); };
  AddMembers(1, 2);
  cluster_.behaviour.train = true;
  for (const uint32_t every_steps : {0, 5}) {
    const std::string run = cluster_.Submit(MakeSpec(1, 1, every_steps, 10));
    EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE) << "without waiting for another event";
    EXPECT_FALSE(cluster_.RunStatus(run).has_test());
  }
}

// The checkpoint is written after the evaluation.
TEST_F(MachineEvaluationTest, LastCheckpointEndsARunThatNeverAverages) {
  AddMembers(0, 1);
  v1::RunSpec spec = MakeSpec(1, 1, 0, 10);
  spec.mutable_checkpoint()->set_directory("/checkpoints");
  const std::string run = cluster_.Submit(spec);
  Train(run);
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_FINISHING);
  v1::Checkpointed checkpointed;
  *checkpointed.mutable_place() = cluster_.Lead(run, 0).place();
  checkpointed.set_step(10);
  cluster_.Send(cluster_.Lead(run, 0), checkpointed);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
}

TEST_F(MachineEvaluationTest, InvalidEvaluationIsRefused) {
  const std::string run = Begin(1, MakeSpec(1, 1, 20, 100));
  cluster_.behaviour.evaluate = false;
  Train(run);
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::Evaluated evaluated = FakeCluster::EvaluationOf(lead, 0, 100, 101);
  cluster_.Send(lead, evaluated);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1u) << "more correct answers than labels";
  EXPECT_FALSE(cluster_.RunStatus(run).has_test());
  // It is not sent again: the group is formed anew, with the reason.
  EXPECT_THAT(cluster_.Group(run, 0).reason(), HasSubstr("more correct answers than labels"));
  lead.evaluated.reset();
  cluster_.Connect(lead);
  cluster_.Run(absl::Minutes(1));
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1u);
}

TEST_F(MachineEvaluationTest, EvaluationOfTooFewLabelsIsRefused) {
  const std::string run = Begin(1, MakeSpec(1, 1, 20, 100));
  cluster_.behaviour.evaluate = false;
  Train(run);
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::Evaluated evaluated = FakeCluster::EvaluationOf(lead, 0, 100, 99);
  evaluated.set_labels(99);
  cluster_.Send(lead, evaluated);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1u);
  EXPECT_FALSE(cluster_.RunStatus(run).has_test());
}

TEST_F(MachineEvaluationTest, EvaluationWithoutFiniteLossIsRefused) {
  const std::string run = Begin(1, MakeSpec(1, 1, 20, 100));
  cluster_.behaviour.evaluate = false;
  Train(run);
  FakeWorker& lead = cluster_.Lead(run, 0);
  v1::Evaluated evaluated = FakeCluster::EvaluationOf(lead, 0, 100, 100);
  evaluated.set_loss_sum(std::nan(""));
  cluster_.Send(lead, evaluated);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1u);
  EXPECT_FALSE(cluster_.RunStatus(run).has_test());
}

TEST_F(MachineEvaluationTest, LostPartIsReassignedAtEnd) {
  const std::string run = BeginLastRound();
  EXPECT_EQ(LastDecision(run, 0).next_step(), 0u);
  EXPECT_EQ(StateOf(run, 0), v1::GROUP_STATE_IDLE);
  cluster_.behaviour.evaluate = true;
  // Group 0 reports its part; group 1 is lost before it has reported its own.
  FakeWorker& lead = cluster_.Lead(run, 0);
  cluster_.Send(lead, FakeCluster::EvaluationOf(lead, 0, 50, 50));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_FINISHING);
  cluster_.Kill(cluster_.Lead(run, 1));
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  const v1::RunStatus status = cluster_.RunStatus(run);
  EXPECT_EQ(status.state(), v1::RUN_STATE_DONE);
  EXPECT_EQ(status.test().samples(), kTestSamples);
  EXPECT_DOUBLE_EQ(status.test().accuracy(), 0.75);
}

TEST_F(MachineEvaluationTest, LostPartMessageIsResent) {
  const std::string run = BeginLastRound();
  // Group 1 is lost; group 0 has reported its part and is assigned the other, but the message that
  // assigns it is lost.
  FakeWorker& lead = cluster_.Lead(run, 0);
  cluster_.Send(lead, FakeCluster::EvaluationOf(lead, 0, 50, 0));
  cluster_.Kill(cluster_.Lead(run, 1));
  cluster_.Run(absl::Seconds(20));
  ASSERT_EQ(LastDecision(run, 0).evaluate_begin(), 50u);
  cluster_.behaviour.evaluate = true;
  cluster_.Reconnect(lead);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster_.RunStatus(run).test().samples(), kTestSamples);
}

TEST_F(MachineEvaluationTest, GroupIsFormedToEvaluate) {
  const std::string run = BeginLastRound();
  for (FakeWorker& worker : cluster_.workers()) cluster_.Kill(worker);
  cluster_.Run(absl::Seconds(20));
  EXPECT_EQ(StateOf(run, 0), v1::GROUP_STATE_WAITING);
  cluster_.behaviour.evaluate = true;
  cluster_.AddWorker("new");
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster_.RunStatus(run).test().samples(), kTestSamples);
  EXPECT_EQ(cluster_.RunStatus(run).version(), 1u) << "the new group does not train";
}

TEST_F(MachineEvaluationTest, ReformedGroupGetsLostPart) {
  const std::string run = Begin(2, MakeSpec(2, 1, 10, 100));
  Train(run, 0);
  cluster_.behaviour.evaluate = false;
  Train(run, 1);
  cluster_.behaviour.evaluate = true;
  FakeWorker& lead = cluster_.Lead(run, 1);
  cluster_.Fail(lead);
  ASSERT_TRUE(lead.start.has_value());
  EXPECT_EQ(lead.start->version(), 1u);
  EXPECT_EQ(lead.start->step(), 10u);
  EXPECT_EQ(lead.start->evaluate_begin(), 50u);
  EXPECT_EQ(lead.start->evaluate_end(), 100u);
  EXPECT_EQ(lead.start->next_step(), 20u);
}

}  // namespace
}  // namespace cadre::testing
