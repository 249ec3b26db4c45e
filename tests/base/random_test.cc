#include "base/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

namespace cadre {
namespace {

constexpr RandomStream kTest = RandomStream::kTest;

// Initial weights and the order of samples depend on these numbers; a change would make stored runs
// incompatible with new workers.
TEST(RandomTest, KnownAnswers) {
  EXPECT_EQ(RandomBits(42, kTest, 0, 0), 0xb677f62a6bfa0d13ULL);
  EXPECT_EQ(RandomBits(42, kTest, 1, 7), 0x263a1a584124a745ULL);
  EXPECT_EQ(RandomBits(42, kTest, 3, 21), 0xdeaf294cb38ecc04ULL);
  EXPECT_EQ(RandomUniform(42, kTest, 0, 0), 0.421784222F);
  EXPECT_EQ(RandomUniform(42, kTest, 3, 3), 0.229006052F);
  EXPECT_EQ(RandomNormal(42, kTest, 0, 0), -0.242637277F);
  EXPECT_EQ(RandomNormal(42, kTest, 1, 1), 0.465854526F);
  EXPECT_EQ(RandomNormal(42, kTest, 2, 2), 0.576702297F);
  EXPECT_THAT(RandomPermutation(42, RandomStream::kSampleOrder, 3, 10),
              ::testing::ElementsAre(2, 5, 6, 3, 9, 7, 8, 4, 0, 1));
}

// The numbers of the streams must not change, because they determine the random numbers.
TEST(RandomTest, StreamsKeepTheirNumbers) {
  EXPECT_EQ(static_cast<int>(RandomStream::kInitialWeights), 1);
  EXPECT_EQ(static_cast<int>(RandomStream::kSampleOrder), 2);
  EXPECT_EQ(static_cast<int>(RandomStream::kSyntheticCentres), 3);
  EXPECT_EQ(static_cast<int>(RandomStream::kSyntheticNoise), 4);
  EXPECT_EQ(static_cast<int>(RandomStream::kSyntheticLabels), 5);
}

TEST(RandomTest, DependsOnEveryArgument) {
  std::set<uint64_t> seen;
  for (uint64_t seed : {0, 1, 2}) {
    for (const RandomStream stream : {RandomStream::kInitialWeights, RandomStream::kSampleOrder}) {
      for (uint64_t substream : {0, 1, 2}) {
        for (uint64_t counter = 0; counter < 100; ++counter) {
          seen.insert(RandomBits(seed, stream, substream, counter));
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 3U * 2 * 3 * 100);
}

// If one bit of the counter changes, half of the 64 bits of the result change: 32 with a standard
// deviation of 4. The mean of 10,000 is within 0.2 (five standard deviations of the mean).
TEST(RandomTest, BitsAreWellMixed) {
  double flipped = 0;
  for (uint64_t i = 0; i < 10'000; ++i) {
    const uint64_t other = i ^ (uint64_t{1} << (i % 64));
    flipped += std::popcount(RandomBits(1, kTest, 0, i) ^ RandomBits(1, kTest, 0, other));
  }
  EXPECT_NEAR(flipped / 10'000, 32, 0.2);
}

TEST(RandomTest, UniformIsUniform) {
  constexpr int kDraws = 100'000;
  std::array<int, 10> counts = {};
  for (uint64_t i = 0; i < kDraws; ++i) {
    const float value = RandomUniform(1, kTest, 0, i);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    ++counts[value * 10];
  }
  // The bound is five standard deviations of a binomial count: sqrt(n p (1 - p)) is 95.
  for (const int count : counts) EXPECT_NEAR(count, kDraws / 10, 475);
}

TEST(RandomTest, NormalIsNormal) {
  constexpr int kDraws = 200'000;
  double sum = 0, squares = 0, fourths = 0;
  int within_one = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double value = RandomNormal(1, kTest, 0, i);
    ASSERT_TRUE(std::isfinite(value));
    sum += value;
    squares += value * value;
    fourths += value * value * value * value;
    within_one += std::abs(value) < 1 ? 1 : 0;
  }
  // The bounds are five standard deviations. These are 1 / sqrt(n) for the mean, sqrt(2 / n) for
  // the second moment, sqrt(96 / n) for the fourth, and sqrt(0.683 * 0.317 / n) for the share of
  // values within one standard deviation.
  EXPECT_NEAR(sum / kDraws, 0, 5 * std::sqrt(1.0 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1, 5 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(fourths / kDraws, 3, 5 * std::sqrt(96.0 / kDraws));
  EXPECT_NEAR(1.0 * within_one / kDraws, 0.682689, 5 * std::sqrt(0.2166 / kDraws));
}

// The same formula with the logarithm and cosine of the library. Both are computed in double, so
// results differ by at most one rounding to fp32.
TEST(RandomTest, NormalIsBoxMuller) {
  for (uint64_t i = 0; i < 100'000; ++i) {
    const uint64_t bits = RandomBits(3, kTest, 0, i);
    const double u = 1 - ((bits & 0xffffffffU) >> 8) * 0x1.0p-24;
    const double v = (bits >> 40) * 0x1.0p-24;
    const double want = std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
    ASSERT_NEAR(RandomNormal(3, kTest, 0, i), want, std::abs(want) * 0x1.0p-23 + 1e-12) << i;
  }
}

TEST(RandomPermutationTest, ContainsEveryNumber) {
  for (uint64_t size : {0, 1, 2, 3, 10, 1000, 60'000}) {
    std::vector<uint32_t> order = RandomPermutation(7, kTest, 1, size);
    ASSERT_EQ(order.size(), size);
    std::sort(order.begin(), order.end());
    for (uint64_t i = 0; i < size; ++i) ASSERT_EQ(order[i], i);
  }
}

TEST(RandomPermutationTest, SubstreamsAndSeedsDiffer) {
  const auto first = RandomPermutation(7, kTest, 1, 100);
  EXPECT_EQ(RandomPermutation(7, kTest, 1, 100), first);
  EXPECT_NE(RandomPermutation(7, kTest, 2, 100), first);
  EXPECT_NE(RandomPermutation(8, kTest, 1, 100), first);
}

// All orders of three elements are equally frequent: six counts of 10,000, with a standard
// deviation of 91.
TEST(RandomPermutationTest, IsFair) {
  std::array<int, 27> counts = {};
  for (uint64_t i = 0; i < 60'000; ++i) {
    const auto order = RandomPermutation(1, kTest, i, 3);
    ++counts[order[0] * 9 + order[1] * 3 + order[2]];
  }
  int orders = 0;
  for (const int count : counts) {
    if (count == 0) continue;
    ++orders;
    EXPECT_NEAR(count, 10'000, 5 * 91);
  }
  EXPECT_EQ(orders, 6);
}

}  // namespace
}  // namespace cadre
