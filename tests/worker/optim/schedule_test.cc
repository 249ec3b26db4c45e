#include "worker/optim/schedule.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

TEST(RateAt, IsConstantWithoutWarmUpAndDecay) {
  v1::Schedule schedule;
  schedule.set_base_rate(0.1F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 0, 100), 0.1F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 99, 100), 0.1F);
}

TEST(RateAt, WarmUpRisesLinearlyToTheBaseRate) {
  v1::Schedule schedule;
  schedule.set_base_rate(0.4F);
  schedule.set_warmup_steps(4);
  EXPECT_FLOAT_EQ(RateAt(schedule, 0, 100), 0.1F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 1, 100), 0.2F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 3, 100), 0.4F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 4, 100), 0.4F);
}

TEST(RateAt, StepDecayDropsAtMultiples) {
  v1::Schedule schedule;
  schedule.set_base_rate(1);
  schedule.mutable_step()->set_every_steps(10);
  schedule.mutable_step()->set_factor(0.5F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 9, 100), 1.0F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 10, 100), 0.5F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 35, 100), 0.125F);
}

TEST(RateAt, CosineDecaysFromBaseToFinal) {
  v1::Schedule schedule;
  schedule.set_base_rate(1);
  schedule.set_warmup_steps(10);
  schedule.mutable_cosine()->set_final_fraction(0.2F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 10, 110), 1.0F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 60, 110), 0.6F);  // half way: the mean of 1 and 0.2
  EXPECT_FLOAT_EQ(RateAt(schedule, 110, 110), 0.2F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 500, 110), 0.2F);  // constant after the end
}

TEST(RateAt, PolynomialDecaysFromBaseToFinal) {
  v1::Schedule schedule;
  schedule.set_base_rate(2);
  schedule.set_warmup_steps(10);
  schedule.mutable_polynomial()->set_power(2);
  schedule.mutable_polynomial()->set_final_fraction(0.2F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 0, 110), 0.2F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 10, 110), 2.0F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 60, 110), 0.8F);  // 2 (0.2 + 0.8 / 4)
  EXPECT_FLOAT_EQ(RateAt(schedule, 110, 110), 0.4F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 500, 110), 0.4F);
}

TEST(RateAt, PolynomialWithoutPowerIsLinear) {
  v1::Schedule schedule;
  schedule.set_base_rate(1);
  schedule.mutable_polynomial();
  EXPECT_FLOAT_EQ(RateAt(schedule, 0, 10), 1.0F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 3, 10), 0.7F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 10, 10), 0.0F);
}

TEST(RateAt, WarmUpScalesStepDecay) {
  v1::Schedule schedule;
  schedule.set_base_rate(1);
  schedule.set_warmup_steps(4);
  schedule.mutable_step()->set_every_steps(2);
  schedule.mutable_step()->set_factor(0.5F);
  EXPECT_FLOAT_EQ(RateAt(schedule, 2, 100), 0.75F * 0.5F);
}

TEST(RateAt, HandlesRunWithoutSteps) {
  v1::Schedule schedule;
  schedule.set_base_rate(1);
  schedule.mutable_cosine();
  EXPECT_FLOAT_EQ(RateAt(schedule, 0, 0), 1.0F);
}

TEST(RateAt, HandlesWarmUpLongerThanTheRun) {
  v1::Schedule schedule;
  schedule.set_base_rate(1);
  schedule.set_warmup_steps(10);
  schedule.mutable_cosine();
  EXPECT_FLOAT_EQ(RateAt(schedule, 4, 5), 0.5F);
}

}  // namespace
}  // namespace cadre
