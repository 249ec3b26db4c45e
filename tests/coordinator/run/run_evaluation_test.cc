// When the parts of an evaluation become a result, and what the end of a run waits for.
#include "coordinator/run/run_evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>

#include "tests/coordinator/run/fake_run.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kEvaluatedRun[] = R"(
    run: "run-1" state: RUN_STATE_RUNNING version: 3 step: 30 digest: 77
    train_samples: 100 test_samples: 10
    spec { batch_per_group: 10 averaging { every_steps: 10 }
           evaluation { every_steps: 20 } cluster { groups: 2 ranks_per_group: 2 }
           stop { test_accuracy: 0.75 } }
    shards: "agg-0")";

class RunEvaluationTest : public testing::RunPartTest {
 protected:
  RunEvaluationTest() : RunPartTest(kEvaluatedRun) {
    for (uint32_t group = 0; group < 2; ++group) run_.slots.Add(Slot("run-1", group, kStart));
  }
  void Start(uint32_t group, bool own_loop = false, bool at_end = false) {
    Slot& slot = run_.slots[group];
    v1::Plan plan;
    plan.set_own_loop(own_loop);
    slot.Form(7 + group, {"w1", "w2"}, plan, kStart);
    slot.Start(3, 30, at_end ? 0 : 40, false, kStart);
    run_.slots.Update(slot);
  }
  // The group reports results of these samples.
  absl::Status Report(uint32_t group, uint64_t begin, uint64_t end, uint64_t correct,
                      uint64_t digest = 77, uint32_t version = 3) {
    v1::Evaluated evaluated;
    evaluated.mutable_place()->set_group(group);
    evaluated.set_version(version);
    evaluated.set_begin(begin);
    evaluated.set_end(end);
    evaluated.set_correct(correct);
    evaluated.set_labels(end - begin);
    evaluated.set_loss_sum(loss_sum_);
    evaluated.set_digest(digest);
    evaluated.set_seconds(2);
    return evaluation_.OnEvaluated(worker_, evaluated);
  }
  // An evaluation by both groups, of which all parts are reported.
  void Complete(uint64_t correct_of_each = 2) {
    evaluation_.Begin({0, 1});
    EXPECT_THAT(Report(0, 0, 5, correct_of_each), IsOk());
    EXPECT_THAT(Report(1, 5, 10, correct_of_each), IsOk());
    EXPECT_TRUE(evaluation_.complete());
  }

  Member& worker_ = AddMember(v1::ROLE_WORKER, "w1");
  double loss_sum_ = 5;
  GroupPlanner planner_{options_, cluster_};
  RunEvaluation evaluation_{run_, run_.stored, run_.history, cluster_, planner_};
};

TEST_F(RunEvaluationTest, PartsOfGroupsThatCanEvaluate) {
  EXPECT_FALSE(evaluation_.complete()) << "there is no evaluation";
  evaluation_.Begin({0, 1});
  EXPECT_FALSE(evaluation_.complete());
  EXPECT_EQ(record().next_evaluation(), 40U);
  EXPECT_EQ(record().evaluating().version(), 3U);
  EXPECT_EQ(record().evaluating().step(), 30U);
  ASSERT_NE(evaluation_.PartOf(run_.slots[1]), nullptr);
  EXPECT_EQ(evaluation_.PartOf(run_.slots[1])->begin(), 5U);
  Start(1, /*own_loop=*/true);
  evaluation_.Begin({0, 1});
  EXPECT_EQ(evaluation_.PartOf(run_.slots[0])->end(), 10U) << "a program does not evaluate";
  EXPECT_EQ(evaluation_.PartOf(run_.slots[1]), nullptr);
  spec().mutable_model()->mutable_opaque()->set_test_samples(10);
  evaluation_.Begin({0, 1});
  EXPECT_NE(evaluation_.PartOf(run_.slots[1]), nullptr) << "unless it has test samples";
}

TEST_F(RunEvaluationTest, ResultOfAllParts) {
  record().set_evaluation_seconds(1);
  Complete();
  EXPECT_TRUE(IsStored());
  EXPECT_EQ(evaluation_.Finish(), std::nullopt) << "the accuracy is too low to end the run";
  EXPECT_EQ(record().test().samples(), 10U);
  EXPECT_DOUBLE_EQ(record().test().accuracy(), 0.4);
  EXPECT_DOUBLE_EQ(record().test().loss(), 1);
  EXPECT_EQ(record().test().step(), 30U);
  EXPECT_DOUBLE_EQ(record().evaluation_seconds(), 1 + 2) << "the groups evaluate simultaneously";
  EXPECT_FALSE(record().has_evaluating());
  EXPECT_TRUE(IsStored());
  EXPECT_EQ(run_.history.newest(), 1U);
  EXPECT_THAT(NewEvents(), ElementsAre("test accuracy 0.4000 at step 30"));
}

TEST_F(RunEvaluationTest, EvaluationThatEndsEarlyHasTheFinishedParts) {
  record().set_state(v1::RUN_STATE_FINISHING);
  evaluation_.Begin({0, 1});
  ASSERT_THAT(Report(0, 0, 5, 5), IsOk());
  EXPECT_EQ(evaluation_.Finish(), std::nullopt) << "the run is not done without the other part";
  EXPECT_EQ(record().test().samples(), 5U);
  evaluation_.Begin({0, 1});
  NewEvents();
  EXPECT_EQ(evaluation_.Finish(), std::nullopt);
  EXPECT_EQ(record().test().samples(), 5U) << "nothing was evaluated";
  EXPECT_THAT(NewEvents(), IsEmpty());
  EXPECT_FALSE(record().has_evaluating());
}

TEST_F(RunEvaluationTest, ImpossibleReportsAreRefused) {
  EXPECT_THAT(Report(0, 0, 50, 0), IsOk()) << "late reports are ignored";
  EXPECT_THAT(TakeSent(), IsEmpty());
  evaluation_.Begin({0, 1});
  EXPECT_THAT(Report(0, 0, 50, 0), IsOk());
  EXPECT_THAT(TakeSent().at(0).refused().reason(), HasSubstr("samples 0 to 50"));
  cluster_.members().Attach(worker_, ++connections_, kStart);
  loss_sum_ = std::numeric_limits<double>::infinity();
  EXPECT_THAT(Report(0, 0, 5, 0), IsOk());
  EXPECT_THAT(TakeSent().at(0).refused().reason(), HasSubstr("not finite"));
  EXPECT_FALSE(record().evaluating().parts(0).done());
}

TEST_F(RunEvaluationTest, OtherValuesThanThoseOfTheVersion) {
  evaluation_.Begin({0, 1});
  EXPECT_THAT(Report(0, 0, 5, 0, /*digest=*/78),
              IsError(kDataLoss, "a model with digest 000000000000004e as version 3"));
  EXPECT_EQ(Counter("refused_wrong_digest"), 1U);
  EXPECT_FALSE(record().evaluating().parts(0).done());
  EXPECT_THAT(Report(0, 0, 5, 0, /*digest=*/78, /*version=*/2), IsOk()) << "of an earlier version";
  EXPECT_FALSE(record().evaluating().parts(0).done());
  EXPECT_THAT(Report(0, 0, 5, 0, /*digest=*/0), IsOk()) << "it was reported before";
  EXPECT_TRUE(record().evaluating().parts(0).done());
  EXPECT_EQ(record().digest(), 77U);
}

TEST_F(RunEvaluationTest, RunWithoutAveragesHasTheDigestOfItsGroup) {
  spec().mutable_averaging()->set_every_steps(0);
  evaluation_.Begin({0});
  EXPECT_THAT(Report(0, 0, 9, 0, /*digest=*/78), IsOk());
  EXPECT_EQ(record().digest(), 77U) << "no part has these samples";
  EXPECT_THAT(Report(0, 0, 10, 0, /*digest=*/78), IsOk());
  EXPECT_EQ(record().digest(), 78U);
}

TEST_F(RunEvaluationTest, TargetEndsTheRun) {
  Complete(4);
  EXPECT_EQ(evaluation_.Finish(), "test accuracy 0.8 reached");
  Complete(4);
  record().set_step(31);
  EXPECT_EQ(evaluation_.Finish(), std::nullopt) << "the run has another version or step now";
  record().set_step(30);
  Complete(4);
  record().set_version(4);
  EXPECT_EQ(evaluation_.Finish(), std::nullopt);
  record().set_version(3);
  Complete(4);
  v1::CommitRecord closing;
  closing.set_round(4);
  run_.made.Begin(closing, 1);
  EXPECT_EQ(evaluation_.Finish(), std::nullopt) << "a round is being closed";
}

TEST_F(RunEvaluationTest, RunAtItsEndIsDone) {
  record().set_state(v1::RUN_STATE_FINISHING);
  Complete();
  EXPECT_EQ(evaluation_.Finish(), "");
  record().set_state(v1::RUN_STATE_FINISHING);
  Complete();
  record().set_step(31);
  EXPECT_EQ(evaluation_.Finish(), std::nullopt) << "a rollback has changed where it stands";
}

TEST_F(RunEvaluationTest, EndWaitsForLostShards) {
  record().set_state(v1::RUN_STATE_FINISHING);
  Complete();
  run_.opened.Lose(0, ShardRestore("lost"));
  EXPECT_EQ(evaluation_.Finish(), std::nullopt);
  EXPECT_TRUE(record().has_evaluating());
  evaluation_.Begin({0, 1});
  EXPECT_EQ(evaluation_.Finish(), std::nullopt);
  EXPECT_FALSE(record().has_evaluating()) << "an evaluation that is given up waits for nothing";
}

TEST_F(RunEvaluationTest, EndWaitsUntilProgramsHaveTheLastVersion) {
  Start(1, /*own_loop=*/true, /*at_end=*/true);
  run_.slots[1].version = 2;
  EXPECT_FALSE(evaluation_.AwaitsPrograms()) << "the run has not reached its end";
  record().set_state(v1::RUN_STATE_FINISHING);
  EXPECT_TRUE(evaluation_.AwaitsPrograms());
  evaluation_.Begin({0, 1});
  ASSERT_THAT(Report(0, 0, 10, 2), IsOk()) << "the program does not evaluate";
  EXPECT_EQ(evaluation_.Finish(), std::nullopt);
  run_.slots[1].version = 3;
  EXPECT_FALSE(evaluation_.AwaitsPrograms());
  EXPECT_EQ(evaluation_.Finish(), "");
  run_.slots[1].version = 2;
  run_.slots[1].Clear("lost", kStart);
  run_.slots.Update(run_.slots[1]);
  EXPECT_FALSE(evaluation_.AwaitsPrograms());
  Start(1, /*own_loop=*/true, /*at_end=*/false);
  EXPECT_FALSE(evaluation_.AwaitsPrograms()) << "it joined after the last step";
  run_.slots[1].Clear("lost", kStart);
  Start(1, /*own_loop=*/false, /*at_end=*/true);
  run_.slots[1].version = 2;
  EXPECT_FALSE(evaluation_.AwaitsPrograms()) << "a native group needs it for its part only";
}

class LastCheckpointTest : public RunEvaluationTest {
 protected:
  LastCheckpointTest() {
    spec().mutable_checkpoint()->set_directory("/checkpoints");
    record().set_state(v1::RUN_STATE_FINISHING);
  }
  Member& AddIdle(const std::string& name) { return AddMember(v1::ROLE_WORKER, name); }
};

TEST_F(LastCheckpointTest, GroupThatTrainsWritesIt) {
  Start(0);
  EXPECT_TRUE(evaluation_.AwaitsCheckpoint());
  Complete();
  EXPECT_EQ(evaluation_.Finish(), std::nullopt);
  v1::Checkpointed report;
  report.set_step(30);
  EXPECT_TRUE(evaluation_.OnCheckpointed(worker_, report));
  EXPECT_TRUE(IsStored());
  EXPECT_FALSE(evaluation_.OnCheckpointed(worker_, report)) << "nothing is new";
  EXPECT_FALSE(evaluation_.AwaitsCheckpoint());
  EXPECT_EQ(evaluation_.Finish(), "");
}

TEST_F(LastCheckpointTest, ProgramsWriteNone) {
  Start(0, /*own_loop=*/true);
  EXPECT_FALSE(evaluation_.AwaitsCheckpoint());
}

// w1 is idle already.
TEST_F(LastCheckpointTest, IdleWorkersMayFormGroup0Again) {
  EXPECT_FALSE(evaluation_.AwaitsCheckpoint()) << "too few workers are idle";
  AddIdle("w2");
  EXPECT_FALSE(evaluation_.AwaitsCheckpoint())
      << "they would have formed it, because nothing blocks the slot";
  for (int failure = 0; failure < 11; ++failure) {
    run_.slots[0].AddFailure(v1::FAILURE_CAUSE_PEER, "lost", kStart);
  }
  ASSERT_GT(run_.slots[0].blocked_until(), kStart);
  EXPECT_TRUE(evaluation_.AwaitsCheckpoint());
  cluster_.Begin(run_.slots[0].blocked_until());
  EXPECT_FALSE(evaluation_.AwaitsCheckpoint());
}

TEST_F(LastCheckpointTest, OnlyOneGroupWritesCheckpoints) {
  v1::Checkpointed report;
  report.mutable_place()->set_group(1);
  EXPECT_FALSE(evaluation_.OnCheckpointed(worker_, report));
  EXPECT_THAT(TakeSent().at(0).refused().reason(),
              HasSubstr("group 1 of run run-1 writes no checkpoints"));
  spec().mutable_checkpoint()->clear_directory();
  report.mutable_place()->set_group(0);
  Member& other = AddIdle("w3");
  EXPECT_FALSE(evaluation_.OnCheckpointed(other, report));
  EXPECT_THAT(TakeSent().at(0).refused().reason(),
              HasSubstr("group 0 of run run-1 writes no checkpoints"));
}

TEST_F(LastCheckpointTest, FailuresAreReported) {
  Start(0);
  v1::Checkpointed report;
  report.set_step(30);
  report.set_error("the disk is full");
  EXPECT_TRUE(evaluation_.OnCheckpointed(worker_, report));
  EXPECT_THAT(NewEvents(),
              ElementsAre("no checkpoint of step 30 (worker w1 on host): the disk is full",
                          "the run is finishing"));
  EXPECT_THAT(evaluation_.EndCheckpoints(), HasSubstr("the disk is full"));
}

TEST_F(RunEvaluationTest, GroupThatIsLeftOutWritesNoCheckpoint) {
  Start(0);
  EXPECT_TRUE(evaluation_.HasWriter());
  record().add_left_out(0);
  EXPECT_FALSE(evaluation_.HasWriter());
}

TEST_F(RunEvaluationTest, PartOfAGroupThatEndsIsFree) {
  EXPECT_TRUE(IsStored());
  evaluation_.Begin({0, 1});
  EXPECT_FALSE(evaluation_.Assign(run_.slots[0])) << "it has a part";
  evaluation_.Free(run_.slots[1]);
  EXPECT_TRUE(IsStored());
  EXPECT_EQ(evaluation_.PartOf(run_.slots[1]), nullptr);
  ASSERT_THAT(Report(0, 0, 5, 1), IsOk());
  EXPECT_TRUE(evaluation_.Assign(run_.slots[0]));
  EXPECT_TRUE(IsStored());
  EXPECT_EQ(evaluation_.PartOf(run_.slots[0])->begin(), 5U);
  Start(1, /*own_loop=*/true);
  evaluation_.Free(run_.slots[0]);
  EXPECT_FALSE(evaluation_.Assign(run_.slots[1])) << "a program cannot evaluate";
  evaluation_.Rewind(50);
  EXPECT_FALSE(record().has_evaluating());
  EXPECT_EQ(record().next_evaluation(), 60U);
  evaluation_.Free(run_.slots[0]);
  EXPECT_FALSE(record().has_evaluating());
}

}  // namespace
}  // namespace cadre
