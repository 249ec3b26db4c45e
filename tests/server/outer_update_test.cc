#include "server/outer_update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "model/outer_optimizer.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;

v1::OuterStep Nesterov(float learning_rate, float momentum, uint32_t every_rounds = 1) {
  v1::OuterStep step;
  v1::OuterNesterov& nesterov = *step.mutable_optimizer()->mutable_nesterov();
  nesterov.set_learning_rate(learning_rate);
  nesterov.set_momentum(momentum);
  nesterov.set_every_rounds(every_rounds);
  return step;
}

v1::OuterStep SlowMo(float learning_rate, float momentum, float rate) {
  v1::OuterStep step;
  step.mutable_optimizer()->mutable_slowmo()->set_learning_rate(learning_rate);
  step.mutable_optimizer()->mutable_slowmo()->set_momentum(momentum);
  step.set_rate(rate);
  return step;
}

// One value over several rounds.
class Value {
 public:
  explicit Value(float x) : x_{x} {}

  // The update of the next round, whose mean is `change` away.
  float Update(const v1::OuterStep& step, float change) {
    std::vector<float> next = {x_[0] + change};
    OuterUpdate(step, ++round_).Update(x_, next, {b_, a_});
    x_ = next;
    return x_[0];
  }

 private:
  uint32_t round_ = 0;
  std::vector<float> x_;
  std::vector<float> b_ = {0};
  std::vector<float> a_ = {0};
};

TEST(OuterUpdate, Nesterov) {
  Value value(8);
  // b = 2, and d + b / 2 = 3.
  EXPECT_EQ(value.Update(Nesterov(0.5F, 0.5F), 2), 9.5F);
  // b = 1 + 4 = 5, and d + b / 2 = 6.5.
  EXPECT_EQ(value.Update(Nesterov(0.5F, 0.5F), 4), 12.75F);
}

TEST(OuterUpdate, RateOneWithoutMomentumIsTheMean) {
  std::vector<float> before = Values(1, 1000);
  const std::vector<float> mean = Values(2, 1000);
  std::vector<float> next = mean;
  std::vector<float> states(1000);
  OuterUpdate(Nesterov(1, 0), 1).Update(before, next, {states});
  for (size_t i = 0; i < mean.size(); ++i) EXPECT_FLOAT_EQ(next[i], mean[i]);
}

TEST(OuterUpdate, DelayedNesterovUsesMomentumInEveryNthRound) {
  Value value(0);
  EXPECT_EQ(value.Update(Nesterov(0.5F, 0.5F, 2), 2), 1);
  // b = (2 + 4) / 2 = 3, and d + b / 2 = 5.5.
  EXPECT_EQ(value.Update(Nesterov(0.5F, 0.5F, 2), 4), 3.75F);
  EXPECT_EQ(value.Update(Nesterov(0.5F, 0.5F, 2), 2), 4.75F);
  // b = 3 / 2 + (2 + 2) / 2 = 3.5, and d + b / 2 = 3.75.
  EXPECT_EQ(value.Update(Nesterov(0.5F, 0.5F, 2), 2), 6.625F);
}

// The momentum does not depend on the learning rate at which it was collected.
TEST(OuterUpdate, SlowMoFollowsTheLearningRate) {
  Value value(0);
  // u = 2 / 0.5 = 4, and x moves by 0.5 u.
  EXPECT_EQ(value.Update(SlowMo(1, 0.5F, 0.5F), 2), 2);
  // u = 2 + 0.25 / 0.25 = 3, and x moves by 0.25 u.
  EXPECT_EQ(value.Update(SlowMo(1, 0.5F, 0.25F), 0.25F), 2.75F);
  EXPECT_EQ(value.Update(SlowMo(1, 0.5F, 0), 0.25F), 3) << "the rate is 0: the mean";
}

TEST(OuterUpdate, Sums) {
  std::vector<float> before = {1, 2, 3};
  std::vector<float> values = {2, 0, 3};
  std::vector<float> momentum = {3, 1, 2};
  const v1::OuterSums sums = OuterUpdate(Nesterov(1, 0.5F), 1).Update(before, values, {momentum});
  EXPECT_EQ(sums.change_squared(), 1 + 4);
  EXPECT_EQ(sums.momentum_squared(), 9 + 1 + 4);
  EXPECT_EQ(sums.product(), 3 - 2);
}

// Any cut into blocks gives the same bits.
TEST(OuterUpdate, BlocksAreIndependent) {
  const std::vector<float> before = Values(1, 333);
  for (const v1::OuterStep& step :
       {Nesterov(0.7F, 0.9F), Nesterov(0.7F, 0.9F, 3), SlowMo(1, 0.7F, 0.01F)}) {
    std::vector<float> whole = Values(2, 333);
    std::vector<float> parts = whole;
    std::vector<float> b1 = Values(3, 333);
    std::vector<float> b2 = b1;
    std::vector<float> a1 = Values(4, 333);
    std::vector<float> a2 = a1;
    const v1::OuterSums sums = OuterUpdate(step, 3).Update(before, whole, {b1, a1});
    const OuterUpdate update(step, 3);
    v1::OuterSums added;
    for (size_t begin = 0, size = 1; begin < parts.size(); begin += size, size += 7) {
      const size_t n = std::min(size, parts.size() - begin);
      AddSums(update.Update(std::span(before).subspan(begin, n), std::span(parts).subspan(begin, n),
                            {std::span(b2).subspan(begin, n), std::span(a2).subspan(begin, n)}),
              added);
    }
    EXPECT_DOUBLE_EQ(added.change_squared(), sums.change_squared());
    EXPECT_DOUBLE_EQ(added.momentum_squared(), sums.momentum_squared());
    EXPECT_NEAR(added.product(), sums.product(), 1e-12 * sums.change_squared());
    EXPECT_TRUE(SameBits(whole, parts));
    EXPECT_TRUE(SameBits(b1, b2));
    EXPECT_TRUE(SameBits(a1, a2));
  }
}

TEST(OuterOptimizer, HasDefaults) {
  v1::Averaging averaging;
  EXPECT_FALSE(OuterOptimizerOf(averaging).has_value());
  averaging.mutable_outer()->mutable_nesterov();
  const auto nesterov = OuterOptimizerOf(averaging);
  EXPECT_EQ(OuterRate(*nesterov), 0.7F);
  EXPECT_EQ(OuterMomentum(*nesterov), 0.9F);
  EXPECT_EQ(nesterov->nesterov().every_rounds(), 1U);
  EXPECT_EQ(OuterStates(*nesterov), 1);
  averaging.mutable_outer()->mutable_slowmo();
  const auto slowmo = OuterOptimizerOf(averaging);
  EXPECT_EQ(OuterRate(*slowmo), 1);
  EXPECT_EQ(OuterMomentum(*slowmo), 0.7F);
}

}  // namespace
}  // namespace cadre::testing
