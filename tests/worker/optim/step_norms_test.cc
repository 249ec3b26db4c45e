#include "worker/optim/step_norms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/worker/optim/testing.h"

namespace cadre {
namespace {

TEST(StepNorms, NeedsNoSumsWithoutClipping) {
  StepNorms norms(OptimizerFrom("sgd {}"), 3);
  EXPECT_TRUE(norms.sums().empty());
  norms.Add(1, 4, 4);
  EXPECT_EQ(norms.GradientScale(), 1);
  EXPECT_EQ(norms.GradientNorm(), 0);
}

TEST(StepNorms, ClippingNeedsOneSum) {
  StepNorms norms(OptimizerFrom("adamw {} clip_norm: 2"), 3);
  EXPECT_EQ(norms.sums().size(), 1U);
  norms.Add(0, 9, 0);
  norms.Add(2, 16, 0);
  EXPECT_DOUBLE_EQ(norms.GradientNorm(), 5);
  EXPECT_DOUBLE_EQ(norms.GradientScale(), 2 / (5 + 1e-6));
  norms.Clear();
  norms.Add(0, 1, 0);  // below the limit
  EXPECT_EQ(norms.GradientScale(), 1);
  norms.Clear();
  EXPECT_EQ(norms.GradientScale(), 1);  // all zero
}

TEST(StepNorms, LarsNeedsTwoSumsPerTensor) {
  StepNorms norms(OptimizerFrom("lars {} clip_norm: 1"), 2);
  EXPECT_EQ(norms.sums().size(), 4U);
  norms.Add(0, 9, 4);
  norms.Add(1, 7, 25);
  norms.Add(1, 9, 0);
  EXPECT_DOUBLE_EQ(norms.GradientNorm(0), 3);
  EXPECT_DOUBLE_EQ(norms.GradientNorm(1), 4);
  EXPECT_DOUBLE_EQ(norms.WeightNorm(0), 2);
  EXPECT_DOUBLE_EQ(norms.WeightNorm(1), 5);
  EXPECT_DOUBLE_EQ(norms.GradientNorm(), 5);
  EXPECT_DOUBLE_EQ(norms.GradientScale(), 1 / (5 + 1e-6));
}

// The sums of two ranks that own halves of a tensor add up to the norm of the tensor.
TEST(StepNorms, SumsOfRanksAddUp) {
  const v1::Optimizer optimizer = OptimizerFrom("lars {}");
  StepNorms whole(optimizer, 1), half(optimizer, 1), other(optimizer, 1);
  whole.Add(0, 9 + 16, 1 + 3);
  half.Add(0, 9, 1);
  other.Add(0, 16, 3);
  for (size_t i = 0; i < half.sums().size(); ++i) half.sums()[i] += other.sums()[i];
  EXPECT_EQ(half.GradientNorm(0), whole.GradientNorm(0));
  EXPECT_EQ(half.WeightNorm(0), whole.WeightNorm(0));
}

TEST(StepNorms, NonFiniteGradientsGiveNonFiniteScale) {
  StepNorms norms(OptimizerFrom("sgd {} clip_norm: 1"), 1);
  norms.Add(0, std::numeric_limits<double>::quiet_NaN(), 0);
  EXPECT_TRUE(std::isnan(norms.GradientScale()));
}

}  // namespace
}  // namespace cadre
