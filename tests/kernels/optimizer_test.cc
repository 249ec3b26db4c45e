#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/backend.h"
#include "kernels/optimizer_step.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;

using OptimizerTest = BackEndTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, OptimizerTest, ::testing::ValuesIn(BackEnds()), NameOf);

// Powers of two, so that every product is exact.
TEST_P(OptimizerTest, SgdKnownSteps) {
  const SgdStep step{.rate = 0.5F, .momentum = 0.5F, .weight_decay = 0.25F};
  Floats w = {4}, v = {0};
  kernels_->optimizer().Update(step, Floats{1}, w, States{v});  // v = 1 + 1, w = 4 - 1
  EXPECT_THAT(v, ElementsAre(2));
  EXPECT_THAT(w, ElementsAre(3));
  kernels_->optimizer().Update(step, Floats{1}, w, States{v});  // v = 1 + 1 + 0.75, w = 3 - 1.375
  EXPECT_THAT(v, ElementsAre(2.75F));
  EXPECT_THAT(w, ElementsAre(1.625F));
}

TEST_P(OptimizerTest, NesterovKnownSteps) {
  const SgdStep step{.rate = 0.5F, .momentum = 0.5F, .weight_decay = 0.25F, .nesterov = true};
  Floats w = {4}, v = {0};
  kernels_->optimizer().Update(step, Floats{1}, w, States{v});  // v = 2, w = 4 - 0.5 * (2 + 1)
  EXPECT_THAT(v, ElementsAre(2));
  EXPECT_THAT(w, ElementsAre(2.5F));
  // slope = 1.625, v = 2.625, w = 2.5 - 0.5 * 2.9375
  kernels_->optimizer().Update(step, Floats{1}, w, States{v});
  EXPECT_THAT(v, ElementsAre(2.625F));
  EXPECT_THAT(w, ElementsAre(1.03125F));
}

// Decay multiplies the weights, so the scale of gradients does not affect it.
TEST_P(OptimizerTest, SgdScalesGradientsFirst) {
  Floats w = {4}, v = {0};
  kernels_->optimizer().Update(SgdStep{.rate = 1, .weight_decay = 0.5F, .gradient_scale = 0.25F},
                               Floats{8}, w, States{v});
  EXPECT_THAT(v, ElementsAre(4));
  EXPECT_THAT(w, ElementsAre(0));
}

TEST_P(OptimizerTest, PlainSgdIsTheGradientScaled) {
  Floats w = Eighths(1000, 1), v(1000);
  const Floats before = w, g = Eighths(1000, 2);
  kernels_->optimizer().Update(SgdStep{.rate = 0.125F}, g, w, States{v});
  EXPECT_EQ(v, g);
  for (size_t i = 0; i < w.size(); ++i) EXPECT_EQ(w[i], before[i] - 0.125F * g[i]);
}

TEST_P(OptimizerTest, AdamWKnownStep) {
  // g = 2: m = 0.5 * 2, v = 0.25 * 4; corrected by the same factors: 2 / (2 + 2) = 0.5.
  const AdamWStep step{.rate = 0.5F,
                       .beta1 = 0.5F,
                       .beta2 = 0.75F,
                       .epsilon = 2,
                       .weight_decay = 0.25F,
                       .correction1 = 0.5,
                       .correction2 = 0.25,
                       .gradient_scale = 0.5F};
  Floats w = {4}, m = {0}, v = {0};
  kernels_->optimizer().Update(step, Floats{4}, w, States{m, v});
  EXPECT_THAT(m, ElementsAre(1));
  EXPECT_THAT(v, ElementsAre(1));
  // 4 - 0.5 * (0.5 + 0.25 * 4)
  EXPECT_THAT(w, ElementsAre(3.25F));
}

// The first step has the size of the rate, for gradients of any size.
TEST_P(OptimizerTest, FirstAdamWStepHasTheSizeOfTheRate) {
  const AdamWStep step{.rate = 0.01F, .correction1 = 1 - 0.9, .correction2 = 1 - 0.999};
  for (const float g : {1e-3F, -1.0F, 1e4F}) {
    Floats w(33, 0.0F), m(33, 0.0F), v(33, 0.0F);
    kernels_->optimizer().Update(step, Floats(33, g), w, States{m, v});
    for (const float value : w) EXPECT_NEAR(value, g > 0 ? -0.01 : 0.01, 1e-6) << g;
  }
}

TEST_P(OptimizerTest, AdamWWithoutGradientsOnlyDecays) {
  Floats w = {8, -8}, m = {0, 0}, v = {0, 0};
  kernels_->optimizer().Update(AdamWStep{.rate = 0.5F, .weight_decay = 0.25F}, Floats{0, 0}, w,
                               States{m, v});
  EXPECT_THAT(w, ElementsAre(7, -7));
}

TEST_P(OptimizerTest, SumOfSquares) {
  EXPECT_EQ(kernels_->optimizer().SumOfSquares(Floats{3, -4}), 25);
  EXPECT_EQ(kernels_->optimizer().SumOfSquares({}), 0);
  EXPECT_TRUE(std::isnan(kernels_->optimizer().SumOfSquares(Floats{1, NAN, 2})));
  // Their squares exceed fp32.
  EXPECT_NEAR(kernels_->optimizer().SumOfSquares(Floats(64, 1e30F)) / 64e60, 1, 1e-6);
  const Floats x = Eighths(200'001, 1);
  double want = 0;
  for (const float value : x) want += double{value} * value;
  EXPECT_EQ(kernels_->optimizer().SumOfSquares(x), want);
}

TEST_P(OptimizerTest, EmptySpansAreAccepted) {
  Floats none;
  kernels_->optimizer().Update(SgdStep{.rate = 1}, none, none, States{none});
  kernels_->optimizer().Update(AdamWStep{.rate = 1}, none, none, States{none, none});
}

// Inputs are below one. g + decay * w, momentum * v + that sum, and w - rate * v round once or
// twice each in fp32. An error is at most half a unit in the last place of a result below four,
// 2^-23, and there are at most five.
TEST_P(OptimizerTest, SgdIsNearTheReference) {
  for (const bool nesterov : {false, true}) {
    const SgdStep step{.rate = 0.05F,
                       .momentum = 0.9F,
                       .weight_decay = 1e-3F,
                       .nesterov = nesterov,
                       .gradient_scale = 0.7F};
    for (const int64_t n : {1, 15, 16, 17, 1000, 100'003}) {
      Floats w = Uniform(n, 1), v = Uniform(n, 2);
      Floats want_w = w, want_v = v;
      const Floats g = Uniform(n, 3);
      kernels_->optimizer().Update(step, g, w, States{v});
      MakeReferenceBackend()->optimizer().Update(step, g, want_w, States{want_v});
      ExpectNear(v, want_v, 5 * 0x1.0p-23);
      ExpectNear(w, want_w, 5 * 0x1.0p-23);
    }
  }
}

// Moments have the errors above. An update is `rate` times a quotient that is large if v is small;
// for the data here the quotient is at most 30, with a few roundings.
TEST_P(OptimizerTest, AdamWIsNearTheReference) {
  const AdamWStep step{.rate = 0.01F,
                       .weight_decay = 0.1F,
                       .correction1 = 1 - std::pow(0.9, 7),
                       .correction2 = 1 - std::pow(0.999, 7),
                       .gradient_scale = 0.7F};
  for (const int64_t n : {1, 15, 16, 17, 1000, 100'003}) {
    Floats w = Uniform(n, 1), m = Uniform(n, 2), v = Absolute(Uniform(n, 4));
    Floats want_w = w, want_m = m, want_v = v;
    const Floats g = Uniform(n, 3);
    kernels_->optimizer().Update(step, g, w, States{m, v});
    MakeReferenceBackend()->optimizer().Update(step, g, want_w, States{want_m, want_v});
    ExpectNear(m, want_m, 5 * 0x1.0p-23);
    ExpectNear(v, want_v, 5 * 0x1.0p-23);
    ExpectNear(w, want_w, 1e-6);
  }
}

TEST(CpuOptimizerTest, SeveralThreadsGiveTheSameBits) {
  const SgdStep sgd{.rate = 0.05F, .momentum = 0.9F, .weight_decay = 1e-3F};
  const AdamWStep adam{.rate = 0.05F, .weight_decay = 1e-3F};
  const auto one = MakeCpuBackend(1);
  const auto three = MakeCpuBackend(3);
  const Floats g = Uniform(200'001, 3);
  Floats w1 = Uniform(200'001, 1), m1 = Uniform(200'001, 2), v1 = Absolute(Uniform(200'001, 4));
  Floats w3 = w1, m3 = m1, v3 = v1;
  one->optimizer().Update(sgd, g, w1, States{m1});
  three->optimizer().Update(sgd, g, w3, States{m3});
  EXPECT_EQ(w3, w1);
  EXPECT_EQ(m3, m1);
  one->optimizer().Update(adam, g, w1, States{m1, v1});
  three->optimizer().Update(adam, g, w3, States{m3, v3});
  EXPECT_EQ(w3, w1);
  EXPECT_EQ(m3, m1);
  EXPECT_EQ(v3, v1);
}

}  // namespace
}  // namespace cadre
