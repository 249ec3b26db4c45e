#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "kernels/kernels.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;

struct BackEnd {
  std::string name;
  std::function<std::unique_ptr<Kernels>()> make;
};

// What both back ends must do, word for word.
class ElementwiseTest : public ::testing::TestWithParam<BackEnd> {
 protected:
  const std::unique_ptr<Kernels> kernels_ = GetParam().make();
};

TEST_P(ElementwiseTest, ReluForward) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const Floats x = {-2, -1e-40F, 0, 1e-40F, 3, -infinity, infinity, nan};
  Floats y = Garbage(8);
  kernels_->ReluForward(x, y);
  EXPECT_TRUE(std::isnan(y.back()));
  y.pop_back();
  EXPECT_THAT(y, ElementsAre(0, 0, 0, 1e-40F, 3, 0, infinity));
}

TEST_P(ElementwiseTest, ReluBackward) {
  const Floats y = {0, 1e-40F, 2, 0, 5};
  const Floats dy = {1, 2, -3, std::numeric_limits<float>::quiet_NaN(), 0};
  Floats dx = Garbage(5);
  kernels_->ReluBackward(y, dy, dx);
  EXPECT_THAT(dx, ElementsAre(0, 2, -3, 0, 0));
}

TEST_P(ElementwiseTest, ReluInPlace) {
  Floats values = Uniform(100'003, 1);
  Floats y = Garbage(100'003);
  kernels_->ReluForward(values, y);
  kernels_->ReluForward(values, values);
  EXPECT_EQ(values, y);
  Floats gradient = Uniform(100'003, 2);
  Floats dx = Garbage(100'003);
  kernels_->ReluBackward(y, gradient, dx);
  kernels_->ReluBackward(y, gradient, gradient);
  EXPECT_EQ(gradient, dx);
}

// The gradient of max(x, 0), found by moving x by less than its distance from the kink.
TEST_P(ElementwiseTest, ReluGradientIsTheDifference) {
  Floats x = SmallIntegers(64, 1);
  for (float& value : x) value += 0.5F;
  Floats y(64), moved(64), dx(64);
  kernels_->ReluForward(x, y);
  const Floats dy = SmallIntegers(64, 2);
  kernels_->ReluBackward(y, dy, dx);
  for (float& value : x) value += 0.25F;
  kernels_->ReluForward(x, moved);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ((moved[i] - y[i]) * 4 * dy[i], dx[i]) << i;
}

TEST_P(ElementwiseTest, SgdKnownSteps) {
  // Powers of two, so that every product is exact.
  const SgdStep step{.rate = 0.5F, .momentum = 0.5F, .weight_decay = 0.25F};
  Floats w = {4}, v = {0};
  kernels_->Sgd(step, Floats{1}, w, v);  // v = 1 + 1, w = 4 - 1
  EXPECT_THAT(v, ElementsAre(2));
  EXPECT_THAT(w, ElementsAre(3));
  kernels_->Sgd(step, Floats{1}, w, v);  // v = 1 + 1 + 0.75, w = 3 - 1.375
  EXPECT_THAT(v, ElementsAre(2.75F));
  EXPECT_THAT(w, ElementsAre(1.625F));
}

TEST_P(ElementwiseTest, PlainSgdIsTheGradientScaled) {
  Floats w = SmallIntegers(1000, 1), v(1000);
  const Floats before = w, g = SmallIntegers(1000, 2);
  kernels_->Sgd({.rate = 0.125F}, g, w, v);
  EXPECT_EQ(v, g);
  for (size_t i = 0; i < w.size(); ++i) EXPECT_EQ(w[i], before[i] - 0.125F * g[i]);
}

TEST_P(ElementwiseTest, NothingIsFine) {
  Floats none;
  kernels_->ReluForward(none, none);
  kernels_->ReluBackward(none, none, none);
  kernels_->Sgd({.rate = 1}, none, none, none);
}

INSTANTIATE_TEST_SUITE_P(
    BackEnds, ElementwiseTest,
    ::testing::Values(BackEnd{"Reference", [] { return MakeReferenceKernels(); }},
                      BackEnd{"Cpu", [] { return MakeCpuKernels(1); }},
                      BackEnd{"CpuThreeThreads", [] { return MakeCpuKernels(3); }}),
    [](const auto& info) { return info.param.name; });

// Values below one: g + decay * w, momentum * v + that, and w - rate * v each round once or twice
// in fp32, half a unit in the last place of a result below four at most: 2^-23 each, times five.
TEST(CpuSgdTest, IsNearTheReference) {
  const SgdStep step{.rate = 0.05F, .momentum = 0.9F, .weight_decay = 1e-3F};
  for (const int64_t n : {1, 15, 16, 17, 1000, 100'003}) {
    Floats w = Uniform(n, 1), v = Uniform(n, 2);
    Floats want_w = w, want_v = v;
    const Floats g = Uniform(n, 3);
    MakeCpuKernels(1)->Sgd(step, g, w, v);
    MakeReferenceKernels()->Sgd(step, g, want_w, want_v);
    for (size_t i = 0; i < w.size(); ++i) {
      ASSERT_NEAR(v[i], want_v[i], 5 * 0x1.0p-23);
      ASSERT_NEAR(w[i], want_w[i], 5 * 0x1.0p-23);
    }
  }
}

TEST(CpuSgdTest, SeveralThreadsGiveTheSameBits) {
  const SgdStep step{.rate = 0.05F, .momentum = 0.9F, .weight_decay = 1e-3F};
  const Floats g = Uniform(200'001, 3);
  Floats w1 = Uniform(200'001, 1), v1 = Uniform(200'001, 2);
  Floats w3 = w1, v3 = v1;
  MakeCpuKernels(1)->Sgd(step, g, w1, v1);
  MakeCpuKernels(3)->Sgd(step, g, w3, v3);
  EXPECT_EQ(w3, w1);
  EXPECT_EQ(v3, v1);
}

TEST(ElementwiseDeathTest, RefusesSpansThatDoNotFit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Floats three(3);
  EXPECT_DEATH(MakeCpuKernels(1)->ReluForward(Floats(2), three), "elements of y");
  EXPECT_DEATH(MakeCpuKernels(1)->Sgd({}, Floats(2), three, three), "elements of g");
}

}  // namespace
}  // namespace cadre
