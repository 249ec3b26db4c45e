#include "coordinator/run/run_rules.h"

#include <gtest/gtest.h>

#include <limits>

namespace cadre {
namespace {

v1::RunRecord Record(uint32_t groups, uint32_t batch, uint32_t every, uint32_t epochs,
                     uint32_t steps, uint64_t samples) {
  v1::RunRecord run;
  run.mutable_spec()->set_batch_per_group(batch);
  run.mutable_spec()->mutable_cluster()->set_groups(groups);
  run.mutable_spec()->mutable_averaging()->set_every_steps(every);
  run.mutable_spec()->mutable_stop()->set_epochs(epochs);
  run.mutable_spec()->mutable_stop()->set_steps(steps);
  run.set_train_samples(samples);
  run.set_next_evaluation(EvaluationInterval(run.spec()));
  return run;
}

TEST(RunTest, DefaultsOfTheSpec) {
  const v1::RunSpec spec;
  EXPECT_EQ(GroupsOf(spec), 1u);
  EXPECT_EQ(RanksPerGroup(spec), 1u);
  EXPECT_EQ(MinRanksPerGroup(spec), 1u);
  EXPECT_EQ(RejoinWait(spec), absl::Seconds(5));
  EXPECT_EQ(MinGrace(spec), absl::Seconds(10));
  EXPECT_EQ(EvaluationInterval(spec), 1u);
  EXPECT_FALSE(Averages(spec));
}

TEST(RunTest, EarliestStopRuleDecides) {
  EXPECT_EQ(TotalSteps(Record(2, 32, 5, 0, 70, 640)), 70u);
  EXPECT_EQ(TotalSteps(Record(2, 32, 5, 3, 0, 640)), 30u);
  EXPECT_EQ(TotalSteps(Record(2, 32, 5, 3, 70, 640)), 30u);
  EXPECT_EQ(TotalSteps(Record(2, 32, 5, 3, 20, 640)), 20u);
  EXPECT_EQ(TotalSteps(Record(2, 32, 5, 3, 0, 650)), 31u) << "a partial last step counts as a step";
  EXPECT_EQ(TotalSteps(Record(2, 32, 5, 3, 0, 0)), 0u) << "the number of samples is unknown";
  EXPECT_EQ(TotalSteps(Record(2, 32, 5, 3, 20, 0)), 20u);
  EXPECT_EQ(TotalSteps(Record(1, 1, 1, 4'000'000'000, 0, 4'000'000'000)),
            std::numeric_limits<uint32_t>::max());
}

TEST(RunTest, EpochsCountFromCheckpoint) {
  v1::RunRecord run = Record(2, 32, 5, 3, 0, 640);
  run.mutable_spec()->mutable_checkpoint()->set_from_step(40);
  // The checkpoint was trained with half the batch: its 40 steps of 32 samples are 2 epochs of 640.
  run.mutable_spec()->mutable_checkpoint()->set_from_position(1280);
  EXPECT_EQ(TotalSteps(run), 50u);
  EXPECT_DOUBLE_EQ(EpochAt(run, 40), 2);
  EXPECT_DOUBLE_EQ(EpochAt(run, 45), 2.5);
  EXPECT_EQ(NextEvaluation(run, 40), 3u);
  run.mutable_spec()->mutable_checkpoint()->set_from_position(640 * 3);
  EXPECT_EQ(TotalSteps(run), 40u) << "all epochs are done";
}

TEST(RunTest, AveragingBoundaries) {
  const v1::RunRecord run = Record(2, 32, 7, 0, 20, 640);
  EXPECT_EQ(BoundaryAfter(run, 0), 7u);
  EXPECT_EQ(BoundaryAfter(run, 7), 14u);
  EXPECT_EQ(BoundaryAfter(run, 14), 20u);
  EXPECT_FALSE(AtEnd(run, 14));
  EXPECT_TRUE(AtEnd(run, 20));
}

// The last round exchanges the whole model.
TEST(RunTest, RoundsExchangeFragmentsInTurn) {
  v1::RunRecord run = Record(2, 32, 8, 0, 14, 640);
  EXPECT_EQ(FragmentAfter(run, 0), 0U);
  run.mutable_spec()->mutable_averaging()->mutable_fragments()->set_count(2);
  EXPECT_EQ(BoundaryAfter(run, 0), 4U);
  EXPECT_EQ(FragmentAfter(run, 0), 1U);
  run.set_version(1);
  run.set_step(4);
  EXPECT_EQ(FragmentAfter(run, 1), 2U);
  run.set_version(3);
  run.set_step(12);
  EXPECT_EQ(BoundaryAfter(run, 12), 14U);
  EXPECT_EQ(FragmentAfter(run, 3), 0U);
  EXPECT_EQ(FragmentAfter(run, 2), 1U) << "of the round that made version 3";
}

TEST(RunTest, EvaluationBoundaries) {
  v1::RunRecord run = Record(1, 32, 0, 0, 50, 650);  // 20.3 steps per epoch
  EXPECT_EQ(BoundaryAfter(run, 0), 21u);
  EXPECT_TRUE(EvaluationDue(run, 21));
  EXPECT_FALSE(EvaluationDue(run, 20));
  EXPECT_EQ(BoundaryAfter(run, 21), 41u);
  EXPECT_EQ(BoundaryAfter(run, 41), 50u);
}

TEST(RunTest, EvaluationDueAfterEpoch) {
  v1::RunRecord run = Record(2, 32, 7, 10, 0, 640);  // 10 steps per epoch
  run.mutable_spec()->mutable_evaluation()->set_every_epochs(2);
  EXPECT_FALSE(EvaluationDue(run, 0)) << "the first one is after an epoch";
  EXPECT_TRUE(EvaluationDue(run, 10));
  run.set_next_evaluation(2);
  EXPECT_FALSE(EvaluationDue(run, 14));
  EXPECT_TRUE(EvaluationDue(run, 21));
  EXPECT_EQ(NextEvaluation(run, 21), 4u);
  EXPECT_EQ(NextEvaluation(run, 20), 4u);
  EXPECT_EQ(NextEvaluation(run, 19), 2u);
  EXPECT_DOUBLE_EQ(EpochAt(run, 15), 1.5);
}

TEST(RunTest, EvaluationDueAfterSteps) {
  v1::RunRecord run = Record(2, 32, 7, 10, 0, 640);
  run.mutable_spec()->mutable_evaluation()->set_every_steps(10);
  EXPECT_EQ(EvaluationInterval(run.spec()), 10u);
  run.set_next_evaluation(10);
  EXPECT_FALSE(EvaluationDue(run, 7));
  EXPECT_TRUE(EvaluationDue(run, 14));
  EXPECT_EQ(NextEvaluation(run, 14), 20u);
  EXPECT_EQ(NextEvaluation(run, 20), 30u);
  EXPECT_EQ(BoundaryAfter(run, 14), 21u) << "of a round";
  run.mutable_spec()->mutable_averaging()->set_every_steps(0);
  EXPECT_EQ(BoundaryAfter(run, 14), 20u);
}

TEST(RunTest, TargetIsInclusive) {
  v1::RunRecord run = Record(1, 32, 5, 10, 0, 640);
  run.mutable_spec()->mutable_stop()->set_test_accuracy(0.91F);
  EXPECT_FALSE(TargetReached(run)) << "there is no evaluation";
  run.mutable_test()->set_samples(100);
  run.mutable_test()->set_accuracy(0.9099);
  EXPECT_FALSE(TargetReached(run));
  run.mutable_test()->set_accuracy(0.91);
  EXPECT_TRUE(TargetReached(run));
  EXPECT_TRUE(AtEnd(run, 1));
}

TEST(RunTest, RunOfOneStep) {
  v1::RunRecord run;
  run.mutable_spec()->mutable_averaging()->set_every_steps(1);
  run.mutable_spec()->mutable_stop()->set_steps(1);
  EXPECT_TRUE(Averages(run.spec()));
  EXPECT_FALSE(AtEnd(run, 0));
  EXPECT_TRUE(AtEnd(run, 1));
}

TEST(RunTest, SettingsOfTheSpec) {
  v1::RunSpec spec;
  EXPECT_EQ(MaxPause(spec), absl::Minutes(30));
  EXPECT_EQ(MinAggregators(spec), 1U);
  spec.mutable_cluster()->set_max_pause_ms(0);
  spec.mutable_cluster()->set_rejoin_wait_ms(0);
  spec.mutable_averaging()->set_min_grace_ms(0);
  EXPECT_EQ(MaxPause(spec), absl::ZeroDuration());
  EXPECT_EQ(RejoinWait(spec), absl::ZeroDuration());
  EXPECT_EQ(MinGrace(spec), absl::ZeroDuration());
  spec.mutable_averaging()->set_copies(2);
  EXPECT_EQ(MinAggregators(spec), 2U) << "a copy is on another aggregator";
  spec.mutable_cluster()->set_aggregators(3);
  EXPECT_EQ(MinAggregators(spec), 3U);
  spec.mutable_cluster()->set_ranks_per_group(4);
  spec.mutable_cluster()->set_min_ranks_per_group(2);
  EXPECT_EQ(MinRanksPerGroup(spec), 2U);
  spec.mutable_cluster()->set_min_ranks_per_group(5);
  EXPECT_EQ(MinRanksPerGroup(spec), 4U);
}

TEST(RunTest, RoundsThatNeedTheVersionBefore) {
  v1::RunSpec spec;
  spec.mutable_averaging()->set_every_steps(5);
  EXPECT_FALSE(NeedsVersions(spec));
  v1::RunSpec outer = spec;
  outer.mutable_averaging()->mutable_outer()->mutable_nesterov();
  EXPECT_TRUE(NeedsVersions(outer));
  v1::RunSpec coded = spec;
  coded.mutable_averaging()->mutable_up()->set_codec(v1::CODEC_INT8);
  EXPECT_TRUE(NeedsVersions(coded));
  v1::RunSpec clipped = spec;
  clipped.mutable_averaging()->mutable_screen()->mutable_clip();
  EXPECT_TRUE(NeedsVersions(clipped));
}

TEST(RunTest, StatesOfLiveRuns) {
  for (const auto state : {v1::RUN_STATE_QUEUED, v1::RUN_STATE_RUNNING, v1::RUN_STATE_FINISHING,
                           v1::RUN_STATE_PARKED}) {
    EXPECT_TRUE(IsLive(state)) << state;
  }
  for (const auto state : {v1::RUN_STATE_DONE, v1::RUN_STATE_FAILED, v1::RUN_STATE_STOPPED}) {
    EXPECT_FALSE(IsLive(state)) << state;
  }
}

TEST(RunTest, LengthIsNotKnownWithoutTheData) {
  const v1::RunRecord run = Record(2, 32, 5, 3, 0, 0);
  EXPECT_EQ(EpochAt(run, 100), 0);
  EXPECT_FALSE(EvaluationDue(run, 1'000'000));
  EXPECT_EQ(NextEvaluation(run, 7), 1U) << "after the first epoch";
  EXPECT_FALSE(AtEnd(run, 1'000'000));
  const v1::RunRecord never = Record(1, 32, 0, 3, 0, 0);
  EXPECT_EQ(BoundaryAfter(never, 7), std::numeric_limits<uint32_t>::max());
}

TEST(RunTest, DurationsOfMembers) {
  EXPECT_EQ(SecondsOrZero(0.5F), 0.5F);
  EXPECT_EQ(SecondsOrZero(-0.5F), 0);
  EXPECT_EQ(SecondsOrZero(std::numeric_limits<float>::infinity()), 0);
  EXPECT_EQ(SecondsOrZero(std::numeric_limits<float>::quiet_NaN()), 0);
}

}  // namespace
}  // namespace cadre
