#include "base/digest.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "base/random.h"

namespace cadre {
namespace {

std::vector<float> Values(size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = RandomUniform(1, RandomStream::kTest, 3, i);
  return values;
}

float FlipBit(float value, int bit) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ (1U << bit));
}

// Digests are sent between programs and stored, so they must never change.
TEST(DigestTest, KnownAnswers) {
  const std::vector<float> values = {0, 1, -0.0F, 2.5F};
  EXPECT_EQ(DigestHex(Digest({}, 0)), "0000000000000000");
  EXPECT_EQ(DigestHex(Digest(values, 0)), "72141633a168a99e");
  EXPECT_EQ(DigestHex(Digest(values, 1000)), "9d25d118f4ee6a1c");
}

TEST(DigestTest, AddsUpOverIntervals) {
  constexpr uint64_t kFirst = 1'000'000'007;
  const std::vector<float> values = Values(1000);
  const std::span<const float> all = values;
  const uint64_t whole = Digest(all, kFirst);
  for (uint64_t trial = 0; trial < 50; ++trial) {
    // The values are split into random intervals, which are added in a random order.
    std::set<size_t> cuts = {0, all.size()};
    for (uint64_t i = 0; i < trial; ++i) {
      cuts.insert(RandomBits(trial, RandomStream::kTest, 0, i) % all.size());
    }
    std::vector<std::pair<size_t, size_t>> pieces;
    for (auto it = cuts.begin(); std::next(it) != cuts.end(); ++it) {
      pieces.emplace_back(*it, *std::next(it));
    }
    uint64_t sum = 0;
    for (const uint32_t i : RandomPermutation(trial, RandomStream::kTest, 1, pieces.size())) {
      const auto [begin, end] = pieces[i];
      sum += Digest(all.subspan(begin, end - begin), kFirst + begin);
    }
    EXPECT_EQ(sum, whole);
  }
}

TEST(DigestTest, DependsOnEveryBit) {
  std::vector<float> values = Values(64);
  const uint64_t before = Digest(values, 0);
  std::set<uint64_t> seen = {before};
  for (float& value : values) {
    const float kept = value;
    for (int bit = 0; bit < 32; ++bit) {
      value = FlipBit(kept, bit);
      seen.insert(Digest(values, 0));
    }
    value = kept;
  }
  EXPECT_EQ(seen.size(), 1 + values.size() * 32);
}

TEST(DigestTest, DependsOnOrder) {
  std::vector<float> values = Values(200);
  const uint64_t before = Digest(values, 5);
  for (size_t i = 0; i < values.size(); ++i) {
    for (const size_t step : {1, 2, 64, 100}) {
      const size_t j = (i + step) % values.size();
      std::swap(values[i], values[j]);
      EXPECT_NE(Digest(values, 5), before) << i << " " << j;
      std::swap(values[i], values[j]);
    }
  }
}

TEST(DigestTest, DependsOnPosition) {
  const std::vector<float> zeros(10, 0.0F);
  std::set<uint64_t> seen;
  // Shifts positions by about every power of two, for which a weak mix would repeat itself.
  for (int bit = 0; bit < 63; ++bit) {
    seen.insert(Digest(zeros, uint64_t{1} << bit));
    if (bit > 1) seen.insert(Digest(zeros, (uint64_t{1} << bit) + 1));
  }
  EXPECT_EQ(seen.size(), 63U + 61U);
}

// In a plain sum of the values, the two changes would cancel.
TEST(DigestTest, OppositeChangesDoNotCancel) {
  std::vector<float> values(256, 1.0F);
  const uint64_t before = Digest(values, 0);
  const float up = std::nextafter(1.0F, 2.0F), down = std::nextafter(1.0F, 0.0F);
  for (size_t i = 1; i < values.size(); ++i) {
    values[0] = up;
    values[i] = down;
    EXPECT_NE(Digest(values, 0), before) << i;
    values[0] = values[i] = 1.0F;
  }
}

TEST(DigestTest, ComparesBitsNotValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(Digest(std::vector{0.0F}, 0), Digest(std::vector{-0.0F}, 0));
  EXPECT_EQ(Digest(std::vector{nan}, 0), Digest(std::vector{nan}, 0));
  EXPECT_NE(Digest(std::vector{nan}, 0), Digest(std::vector{FlipBit(nan, 0)}, 0));
}

TEST(DigestTest, HexHasSixteenDigits) {
  EXPECT_EQ(DigestHex(0xabc), "0000000000000abc");
  EXPECT_EQ(DigestHex(0xfedcba9876543210ULL), "fedcba9876543210");
}

}  // namespace
}  // namespace cadre
