#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr std::array<Activation, 9> kActivations = {
    Activation::kRelu,  Activation::kGelu,      Activation::kSigmoid,
    Activation::kTanh,  Activation::kSilu,      Activation::kApproximateGelu,
    Activation::kRelu6, Activation::kHardSwish, Activation::kHardSigmoid};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Floats Forward(Backend& kernels, Activation kind, const Floats& x) {
  Floats y = Garbage(std::ssize(x));
  kernels.pointwise().ActivationForward(kind, x, y);
  return y;
}

Floats Backward(Backend& kernels, Activation kind, const Floats& x, const Floats& dy) {
  Floats dx = Garbage(std::ssize(x));
  kernels.pointwise().ActivationBackward(
      kind, GradientReadsInput(kind) ? x : Forward(kernels, kind, x), dy, dx);
  return dx;
}

using ElementwiseTest = BackEndTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, ElementwiseTest, ::testing::ValuesIn(BackEndsOfEverySize()),
                         NameOf);

TEST_P(ElementwiseTest, ReluForward) {
  EXPECT_THAT(
      Forward(*kernels_, Activation::kRelu, {-2, -1e-40F, 0, 1e-40F, 3, -kInfinity, kInfinity}),
      ElementsAre(0, 0, 0, 1e-40F, 3, 0, kInfinity));
}

TEST_P(ElementwiseTest, ReluBackward) {
  const Floats y = {0, 1e-40F, 2, 0, 5};
  const Floats dy = {1, 2, -3, kNan, 0};
  Floats dx = Garbage(5);
  kernels_->pointwise().ActivationBackward(Activation::kRelu, y, dy, dx);
  EXPECT_THAT(dx, ElementsAre(0, 2, -3, 0, 0));
}

// Expected values are from tables of the functions; the tolerance is fp32's rounding of numbers
// near one.
TEST_P(ElementwiseTest, KnownValues) {
  const Floats x = {-2, 0, 1};
  ExpectNear(Forward(*kernels_, Activation::kGelu, x), Floats{-0.04550026F, 0, 0.84134475F}, 1e-6);
  ExpectNear(Forward(*kernels_, Activation::kSigmoid, x), Floats{0.11920292F, 0.5F, 0.73105858F},
             1e-6);
  ExpectNear(Forward(*kernels_, Activation::kTanh, x), Floats{-0.96402758F, 0, 0.76159416F}, 1e-6);
}

TEST_P(ElementwiseTest, LargeArgumentsGiveLimits) {
  const Floats x = {-100, 100, -kInfinity, kInfinity};
  EXPECT_THAT(Forward(*kernels_, Activation::kTanh, x), ElementsAre(-1, 1, -1, 1));
  EXPECT_THAT(Forward(*kernels_, Activation::kSigmoid, {100, kInfinity}), ElementsAre(1, 1));
  ExpectNear(Forward(*kernels_, Activation::kSigmoid, {-100, -kInfinity}), Floats{0, 0}, 1e-37);
  ExpectNear(Forward(*kernels_, Activation::kGelu, {-100, 100}), Floats{0, 100}, 1e-37);
  for (const Activation kind : {Activation::kGelu, Activation::kSigmoid, Activation::kTanh}) {
    const Floats dx = Backward(*kernels_, kind, {-100}, {1});
    EXPECT_NEAR(dx[0], 0, 1e-30) << static_cast<int>(kind);
  }
}

// The NaN is at every position of a vector, and among the elements after the last whole vector.
TEST_P(ElementwiseTest, NanStaysNan) {
  for (const Activation kind : kActivations) {
    for (size_t at = 0; at < 37; ++at) {
      Floats x(37, 0.5F);
      x[at] = kNan;
      const Floats y = Forward(*kernels_, kind, x);
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_EQ(std::isnan(y[i]), i == at) << static_cast<int>(kind) << " " << i;
      }
    }
  }
}

TEST_P(ElementwiseTest, InPlace) {
  constexpr int64_t kSize = 100'003;
  for (const Activation kind : kActivations) {
    const Floats x = Uniform(kSize, 1), dy = Uniform(kSize, 2);
    const Floats y = Forward(*kernels_, kind, x);
    Floats values = x;
    kernels_->pointwise().ActivationForward(kind, values, values);
    EXPECT_EQ(values, y);
    const Floats dx = Backward(*kernels_, kind, x, dy);
    Floats gradient = dy;
    kernels_->pointwise().ActivationBackward(kind, GradientReadsInput(kind) ? x : y, gradient,
                                             gradient);
    EXPECT_EQ(gradient, dx);
  }
}

TEST_P(ElementwiseTest, GradientsMatchDifferences) {
  const auto reference = MakeReferenceBackend();
  for (const Activation kind : kActivations) {
    SCOPED_TRACE(static_cast<int>(kind));
    Floats x = Uniform(200, 1);
    // Not near 0 or 3, where activations of straight pieces are not differentiable.
    for (float& value : x) value = 2.5F * value + (value < 0 ? -0.1F : 0.1F);
    const Floats dy = Uniform(200, 2);
    ExpectGradient(x, Backward(*kernels_, kind, x, dy), dy,
                   [&] { return Forward(*reference, kind, x); });
  }
}

TEST_P(ElementwiseTest, Add) {
  Floats y = {1, 2, kNan};
  kernels_->pointwise().Add(Floats{10, 20, 30}, y);
  EXPECT_EQ(y[0], 11);
  EXPECT_EQ(y[1], 22);
  EXPECT_TRUE(std::isnan(y[2]));
  Floats sum = Uniform(100'003, 1);
  const Floats before = sum, x = Uniform(100'003, 2);
  kernels_->pointwise().Add(x, sum);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(sum[i], before[i] + x[i]);
  Floats separate = Garbage(std::ssize(x));
  kernels_->pointwise().Sum(x, before, separate);
  EXPECT_EQ(separate, sum);
}

TEST_P(ElementwiseTest, KnownValuesOfHardActivations) {
  const Floats x = {-4, -3, -1, 0, 1, 3, 7};
  EXPECT_THAT(Forward(*kernels_, Activation::kRelu6, x), ElementsAre(0, 0, 0, 0, 1, 3, 6));
  ExpectNear(Forward(*kernels_, Activation::kHardSigmoid, x),
             Floats{0, 0, 1 / 3.0F, 0.5F, 2 / 3.0F, 1, 1}, 1e-6);
  ExpectNear(Forward(*kernels_, Activation::kHardSwish, x),
             Floats{0, 0, -1 / 3.0F, 0, 2 / 3.0F, 3, 7}, 1e-6);
  ExpectNear(Forward(*kernels_, Activation::kSilu, {-1, 0, 2}), Floats{-0.26894142F, 0, 1.7615942F},
             1e-6);
  ExpectNear(Forward(*kernels_, Activation::kApproximateGelu, {-2, 0, 1}),
             Floats{-0.04540231F, 0, 0.84119199F}, 1e-6);
}

TEST_P(ElementwiseTest, MultiplyByFactorOfChannel) {
  const MultiplyDims dims{.batch = 2, .rows = 2, .channels = 2};
  const Floats x = {1, 2, 3, 4, 5, 6, 7, 8}, factor = {10, 100, -1, 0.5F};
  Floats y = Garbage(8), gradient = Garbage(4);
  kernels_->pointwise().Multiply(dims, x, factor, y);
  EXPECT_THAT(y, ElementsAre(10, 200, 30, 400, -5, 3, -7, 4));
  kernels_->pointwise().MultiplyBackward(dims, x, Floats{1, 2, 3, 4, 5, 6, 7, 8}, gradient);
  EXPECT_THAT(gradient, ElementsAre(10, 20, 74, 100));
  const MultiplyDims whole{.batch = 1, .rows = 1, .channels = 100'003};
  const Floats a = Uniform(100'003, 1), b = Uniform(100'003, 2);
  Floats product = Garbage(100'003);
  kernels_->pointwise().Multiply(whole, a, b, product);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(product[i], a[i] * b[i]);
}

TEST_P(ElementwiseTest, Transpose) {
  Floats y = Garbage(12);
  kernels_->memory().Transpose(2, 3, 2, Floats{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, y);
  EXPECT_THAT(y, ElementsAre(1, 3, 5, 2, 4, 6, 7, 9, 11, 8, 10, 12));
}

TEST_P(ElementwiseTest, TransposingTwiceChangesNothing) {
  for (const auto& [batch, positions, channels] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {3, 49, 512}, {2, 17, 33}, {5, 1, 64}, {2, 100, 3}, {0, 4, 4}, {2, 0, 3}}) {
    const Floats x = Uniform(batch * positions * channels, 1);
    Floats y = Garbage(batch * positions * channels), again = y;
    kernels_->memory().Transpose(batch, positions, channels, x, y);
    kernels_->memory().Transpose(batch, channels, positions, y, again);
    EXPECT_EQ(again, x);
    for (int64_t i = 0; i < std::ssize(x); ++i) {
      const int64_t n = i / (positions * channels), p = i / channels % positions, c = i % channels;
      ASSERT_EQ(y[(n * channels + c) * positions + p], x[i]);
    }
  }
}

TEST_P(ElementwiseTest, DropoutRateIsTheShareOfDroppedElements) {
  constexpr int64_t kSize = 100'000;
  for (const float rate : {0.0F, 0.1F, 0.5F, 0.9F}) {
    Floats y = Garbage(kSize);
    kernels_->pointwise().Dropout({.seed = 7, .layer = 3, .rate = rate}, 0, Floats(kSize, 1.0F), y);
    int64_t kept = 0;
    for (const float value : y) {
      if (value == 0) continue;
      ++kept;
      // Two roundings: a quotient, or a product with the rounded inverse.
      ASSERT_NEAR(value, 1 / (1.0 - rate), 0x1.0p-23 / (1.0 - rate));
    }
    // The tolerance is five standard deviations of the binomial distribution.
    const double deviation = std::sqrt(kSize * rate * (1.0 - rate));
    EXPECT_NEAR(kept, kSize * (1.0 - rate), 5 * deviation) << rate;
  }
}

// Parts of a batch on several ranks drop the same elements as the whole batch.
TEST_P(ElementwiseTest, DropoutDependsOnElementNumbersOnly) {
  const DropoutKey key{.seed = 7, .layer = 3, .rate = 0.5F};
  const Floats x = Uniform(10'001, 1);
  Floats whole = Garbage(10'001), parts = whole;
  const uint64_t first = (uint64_t{1} << 40) + 5;
  kernels_->pointwise().Dropout(key, first, x, whole);
  size_t begin = 0;
  for (const size_t size : {1, 2, 7, 991, 5000, 4000}) {
    kernels_->pointwise().Dropout(key, first + begin, std::span(x).subspan(begin, size),
                                  std::span(parts).subspan(begin, size));
    begin += size;
  }
  ASSERT_EQ(begin, x.size());
  EXPECT_EQ(parts, whole);
  Floats in_place = x;
  kernels_->pointwise().Dropout(key, first, in_place, in_place);
  EXPECT_EQ(in_place, whole);
}

TEST_P(ElementwiseTest, DropoutDiffersBySeedLayerAndNumber) {
  const Floats x(1000, 1.0F);
  const auto run = [&](uint64_t seed, uint64_t layer, uint64_t first) {
    Floats y = Garbage(1000);
    kernels_->pointwise().Dropout({.seed = seed, .layer = layer, .rate = 0.5F}, first, x, y);
    return y;
  };
  EXPECT_EQ(run(1, 2, 3), run(1, 2, 3));
  EXPECT_NE(run(1, 2, 3), run(2, 2, 3));
  EXPECT_NE(run(1, 2, 3), run(1, 3, 3));
  EXPECT_NE(run(1, 2, 3), run(1, 2, 4));
}

TEST_P(ElementwiseTest, DroppedNansAreZero) {
  Floats y = Garbage(1000);
  kernels_->pointwise().Dropout({.seed = 1, .rate = 0.5F}, 0, Floats(1000, kNan), y);
  int64_t zeros = 0;
  for (const float value : y) {
    EXPECT_TRUE(value == 0 || std::isnan(value));
    zeros += value == 0 ? 1 : 0;
  }
  EXPECT_GT(zeros, 400);
}

TEST_P(ElementwiseTest, EmptySpansAreAccepted) {
  Floats none;
  for (const Activation kind : kActivations) {
    kernels_->pointwise().ActivationForward(kind, none, none);
    kernels_->pointwise().ActivationBackward(kind, none, none, none);
  }
  kernels_->pointwise().Dropout({.rate = 0.5F}, 0, none, none);
  kernels_->pointwise().Add(none, none);
}

// The reference computes in double. The CPU's functions are polynomials in fp32, with about sixteen
// roundings of numbers up to one, or up to |x| if the function grows with it. A GPU's exp, erf and
// tanh have errors of up to two units in the last place, at most 4 * 2^-24; an activation or its
// derivative has at most two of them and up to eight roundings of products and sums: again sixteen
// roundings. A relative error e of an exponent -t changes exp(-t) by e * t * exp(-t), less than
// e / 2, so that it is one of the eight. Fused multiply-adds only leave out roundings.
TEST_P(ElementwiseTest, IsNearTheReference) {
  constexpr double kBound = 16 * 0x1.0p-24;
  const auto reference = MakeReferenceBackend();
  for (const Activation kind : kActivations) {
    SCOPED_TRACE(static_cast<int>(kind));
    for (const int64_t n : {1, 15, 16, 17, 1000, 100'003}) {
      Floats x = Uniform(n, 1);
      for (float& value : x) value *= 12;
      const Floats dy = Uniform(n, 2);
      ExpectNear(Forward(*kernels_, kind, x), Forward(*reference, kind, x), kBound);
      // The slope of the cubic polynomial multiplies rounding by up to ten where x is large.
      const double bound = kind == Activation::kApproximateGelu ? 10 * kBound : kBound;
      ExpectNear(Backward(*kernels_, kind, x, dy), Backward(*reference, kind, x, dy), bound);
    }
  }
}

TEST_P(ElementwiseTest, DropsTheSameElementsAsTheReference) {
  for (const float rate : {0.1F, 0.3F, 0.5F}) {
    const DropoutKey key{.seed = 99, .layer = 4, .rate = rate};
    const Floats x = Uniform(20'011, 1);
    Floats got = Garbage(20'011), want = got;
    kernels_->pointwise().Dropout(key, 1234, x, got);
    MakeReferenceBackend()->pointwise().Dropout(key, 1234, x, want);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i] == 0, want[i] == 0) << i;
    ExpectSumsNear(got, want, Absolute(want), 2);
  }
}

TEST(CpuElementwiseTest, SeveralThreadsGiveTheSameBits) {
  const auto one = MakeCpuBackend(1);
  const auto three = MakeCpuBackend(3);
  const Floats x = Uniform(300'001, 1), dy = Uniform(300'001, 2);
  for (const Activation kind : kActivations) {
    EXPECT_EQ(Forward(*three, kind, x), Forward(*one, kind, x));
    EXPECT_EQ(Backward(*three, kind, x, dy), Backward(*one, kind, x, dy));
  }
}

}  // namespace
}  // namespace cadre
