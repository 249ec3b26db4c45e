#include "base/weighted_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace cadre::testing {
namespace {

using ::testing::Each;

// Longer than any vector, and not a multiple of one.
constexpr size_t kSize = 1037;

TEST(WeightedSumsTest, EachOperationIsRounded) {
  const std::vector<float> x(kSize, 1 + 0x1p-23F);
  std::vector<float> sum(kSize);
  SetWeighted(1 + 0x1p-23F, x, sum);
  EXPECT_THAT(sum, Each(1 + 0x1p-22F));
  // A fused multiply-add would keep the last bit of the product.
  std::vector<float> rest(kSize, -(1 + 0x1p-22F));
  AddWeighted(1 + 0x1p-23F, x, rest);
  EXPECT_THAT(rest, Each(0.0F));
}

TEST(WeightedSumsTest, DifferenceIsRoundedFirst) {
  const std::vector<float> x(kSize, 0x1p24F);
  const std::vector<float> y(kSize, -1);
  std::vector<float> sum(kSize, -0x1p24F);
  AddDifference(x, y, sum);
  EXPECT_THAT(sum, Each(0.0F)) << "x - y is a tie, and even";
}

}  // namespace
}  // namespace cadre::testing
