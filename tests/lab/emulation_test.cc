#include "lab/emulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cadre {
namespace {

using ::testing::DoubleNear;

v1::RunSpec SpecOf(uint32_t batch) {
  v1::RunSpec spec;
  spec.set_batch_per_group(batch);
  spec.mutable_schedule()->set_base_rate(0.1F);
  spec.mutable_averaging()->set_every_steps(16);
  spec.mutable_cluster()->set_groups(2);
  spec.mutable_cluster()->set_ranks_per_group(4);
  spec.mutable_cluster()->add_layer()->set_layer("fc1");
  spec.mutable_stop()->set_steps(100);
  spec.mutable_evaluation()->set_every_epochs(3);
  spec.mutable_checkpoint()->set_directory("there");
  spec.set_seed(7);
  return spec;
}

TEST(EmulatedSpecTest, OneWorkerTakesAllBatches) {
  const v1::RunSpec spec =
      EmulatedSpec(SpecOf(64), {.workers = 4, .batch = 64, .target = 0.875F, .max_epochs = 9});
  EXPECT_EQ(spec.batch_per_group(), 256u);
  EXPECT_EQ(spec.micro_batches(), 4u);
  EXPECT_EQ(spec.cluster().groups(), 1u);
  EXPECT_EQ(spec.cluster().ranks_per_group(), 1u);
  EXPECT_EQ(spec.cluster().layer_size(), 0);
  EXPECT_FALSE(spec.has_averaging());
  EXPECT_FALSE(spec.has_checkpoint());
  EXPECT_EQ(spec.stop().epochs(), 9u);
  EXPECT_EQ(spec.stop().steps(), 0u);
  EXPECT_EQ(spec.stop().test_accuracy(), 0.875F);
  EXPECT_EQ(spec.evaluation().every_epochs(), 1u);
  EXPECT_EQ(spec.seed(), 7u);
}

TEST(RecipeDigestTest, IgnoresWorkersSeedAndName) {
  const Emulation two = {.workers = 2, .batch = 64, .target = 0.8F, .max_epochs = 9};
  const uint64_t recipe = RecipeDigest(SpecOf(64), two);
  EXPECT_NE(recipe, 0u);
  Emulation other = two;
  other.workers = 8;
  EXPECT_EQ(RecipeDigest(SpecOf(64), other), recipe);
  v1::RunSpec spec = SpecOf(64);
  spec.set_seed(1);
  spec.set_name("another");
  // The emulated run, with one worker, ignores the cluster of the run file.
  spec.mutable_cluster()->set_groups(5);
  EXPECT_EQ(RecipeDigest(spec, two), recipe);

  other = two;
  other.rate = RateRule::kSqrt;
  EXPECT_NE(RecipeDigest(SpecOf(64), other), recipe);
  other = two;
  other.max_epochs = 10;
  EXPECT_NE(RecipeDigest(SpecOf(64), other), recipe);
  spec = SpecOf(64);
  spec.mutable_schedule()->set_base_rate(0.2F);
  EXPECT_NE(RecipeDigest(spec, two), recipe);
  spec = SpecOf(64);
  spec.mutable_data()->mutable_synthetic()->set_train_samples(7);
  EXPECT_NE(RecipeDigest(spec, two), recipe);
  spec = SpecOf(64);
  spec.mutable_optimizer()->mutable_sgd()->set_momentum(0.9F);
  EXPECT_NE(RecipeDigest(spec, two), recipe);
}

TEST(EmulatedSpecTest, MicroBatchesKeepTheirSize) {
  v1::RunSpec spec = SpecOf(64);
  spec.set_micro_batches(2);
  EXPECT_EQ(EmulatedSpec(spec, {.workers = 4, .batch = 64}).micro_batches(), 8u);
  EXPECT_EQ(EmulatedSpec(spec, {.workers = 1, .batch = 64}).micro_batches(), 2u);
}

TEST(EmulatedSpecTest, RateFollowsItsRule) {
  const auto rate = [](uint32_t workers, uint32_t batch, RateRule rule) {
    return EmulatedSpec(SpecOf(64), {.workers = workers, .batch = batch, .rate = rule})
        .schedule()
        .base_rate();
  };
  EXPECT_FLOAT_EQ(rate(1, 64, RateRule::kLinear), 0.1F);
  EXPECT_FLOAT_EQ(rate(4, 64, RateRule::kLinear), 0.4F);
  EXPECT_FLOAT_EQ(rate(4, 64, RateRule::kSqrt), 0.2F);
  EXPECT_FLOAT_EQ(rate(4, 64, RateRule::kNone), 0.1F);
  EXPECT_FLOAT_EQ(rate(1, 16, RateRule::kLinear), 0.025F) << "the spec's step has 64 samples";
  EXPECT_EQ(RateRuleFromName("sqrt"), RateRule::kSqrt);
  EXPECT_EQ(RateRuleFromName("cubic"), std::nullopt);
}

TEST(EmulatedSpecTest, ScheduleCountsSamples) {
  v1::RunSpec spec = SpecOf(64);
  spec.mutable_schedule()->set_warmup_steps(200);
  spec.mutable_schedule()->mutable_step()->set_every_steps(1000);
  v1::Schedule schedule = EmulatedSpec(spec, {.workers = 8, .batch = 64}).schedule();
  EXPECT_EQ(schedule.warmup_steps(), 25u);
  EXPECT_EQ(schedule.step().every_steps(), 125u);
  schedule = EmulatedSpec(spec, {.workers = 1, .batch = 32}).schedule();
  EXPECT_EQ(schedule.warmup_steps(), 400u);
  schedule = EmulatedSpec(spec, {.workers = 10000, .batch = 64}).schedule();
  EXPECT_EQ(schedule.warmup_steps(), 1u);
  EXPECT_EQ(schedule.step().every_steps(), 1u);
}

TEST(EmulatedSpecTest, OnlyARaisedRateWarmsUp) {
  const auto warmup = [](uint32_t workers, RateRule rule) {
    return EmulatedSpec(SpecOf(64), {.workers = workers, .batch = 64, .rate = rule})
        .schedule()
        .warmup_steps();
  };
  EXPECT_EQ(warmup(1, RateRule::kLinear), 0u);
  EXPECT_EQ(warmup(4, RateRule::kLinear), 25u);
  EXPECT_EQ(warmup(4, RateRule::kSqrt), 25u);
  EXPECT_EQ(warmup(4, RateRule::kNone), 0u);

  // 10 epochs of 512 samples in steps of 256 are 20 steps.
  v1::RunSpec small = SpecOf(64);
  small.mutable_data()->mutable_synthetic()->set_train_samples(512);
  Emulation emulation{.workers = 4, .batch = 64, .max_epochs = 10};
  EXPECT_EQ(EmulatedSpec(small, emulation).schedule().warmup_steps(), 2u);
  emulation.max_epochs = 1;
  EXPECT_EQ(EmulatedSpec(small, emulation).schedule().warmup_steps(), 1u);
}

TEST(EmulatedSpecTest, KeepsInitialWeights) {
  v1::RunSpec spec = SpecOf(64);
  spec.mutable_checkpoint()->set_from("weights.safetensors");
  const v1::RunSpec emulated = EmulatedSpec(spec, {.workers = 2, .batch = 64});
  EXPECT_EQ(emulated.checkpoint().from(), "weights.safetensors");
  EXPECT_EQ(emulated.checkpoint().directory(), "");
}

// The status of a run with 10 steps per epoch that was evaluated at `step`.
v1::RunStatus At(uint32_t step, double accuracy) {
  v1::RunStatus run;
  run.set_total_steps(100);
  run.set_total_epochs(10);
  run.mutable_test()->set_samples(500);
  run.mutable_test()->set_step(step);
  run.mutable_test()->set_accuracy(accuracy);
  return run;
}

TEST(EpochsToTargetTest, InterpolatesBetweenEvaluations) {
  EpochsToTarget epochs(0.8);
  v1::RunStatus fresh;
  epochs.Observe(fresh);
  epochs.Observe(At(10, 0.5));
  epochs.Observe(At(10, 0.5));
  EXPECT_FALSE(epochs.reached());
  epochs.Observe(At(20, 0.7));
  epochs.Observe(At(30, 0.9));
  ASSERT_TRUE(epochs.reached());
  EXPECT_THAT(epochs.epochs(), DoubleNear(2.5, 1e-9));
  EXPECT_FALSE(epochs.is_upper_bound());
  // Later evaluations have no effect.
  epochs.Observe(At(40, 0.6));
  EXPECT_THAT(epochs.epochs(), DoubleNear(2.5, 1e-9));
}

TEST(EpochsToTargetTest, ExactTargetIsReached) {
  EpochsToTarget epochs(0.75);
  epochs.Observe(At(10, 0.5));
  epochs.Observe(At(20, 0.75));
  EXPECT_THAT(epochs.epochs(), DoubleNear(2, 1e-9));
}

TEST(EpochsToTargetTest, IsAnUpperBoundWithoutTheEvaluationBefore) {
  EpochsToTarget first(0.8);
  first.Observe(At(10, 0.9));
  EXPECT_TRUE(first.is_upper_bound());
  EXPECT_EQ(first.epochs(), 1);

  EpochsToTarget missed(0.8);
  missed.Observe(At(10, 0.5));
  missed.Observe(At(40, 0.9));
  EXPECT_TRUE(missed.is_upper_bound());
  EXPECT_EQ(missed.epochs(), 4);
}

TEST(EpochsToTargetTest, InterpolatesFromTheLatestEvaluationBelow) {
  EpochsToTarget epochs(0.8);
  epochs.Observe(At(10, 0.79));
  epochs.Observe(At(20, 0.6));
  epochs.Observe(At(30, 1.0));
  EXPECT_THAT(epochs.epochs(), DoubleNear(2.5, 1e-9));
  EXPECT_EQ(epochs.accuracy(), 1.0);
}

}  // namespace
}  // namespace cadre
