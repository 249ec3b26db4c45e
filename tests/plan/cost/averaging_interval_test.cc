#include "plan/cost/averaging_interval.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

// T = 64,000 = 40^3.
TEST(AveragingIntervalTest, BothBounds) {
  EXPECT_EQ(MaxGroupsForInterval(64'000, 1, IntervalBound::kYu), 40);
  EXPECT_EQ(MaxGroupsForInterval(64'000, 1, IntervalBound::kWangJoshi), 40);
  // 64,000 / 8^4 = 15.625 = 2.5^3; 64,000 / 8^2 = 1,000.
  EXPECT_EQ(MaxGroupsForInterval(64'000, 8, IntervalBound::kYu), 2);
  EXPECT_EQ(MaxGroupsForInterval(64'000, 8, IntervalBound::kWangJoshi), 10);
  // 64,000 / 10^3 = 64: its square root, and the root of that, 2.83.
  EXPECT_EQ(MaxStepsBetweenAverages(64'000, 10, IntervalBound::kWangJoshi), 8);
  EXPECT_EQ(MaxStepsBetweenAverages(64'000, 10, IntervalBound::kYu), 2);
}

TEST(AveragingIntervalTest, AtLeastOne) {
  EXPECT_EQ(MaxStepsBetweenAverages(0, 1, IntervalBound::kYu), 1);
  EXPECT_EQ(MaxStepsBetweenAverages(100, 1000, IntervalBound::kWangJoshi), 1);
  EXPECT_EQ(MaxGroupsForInterval(10, 1000, IntervalBound::kYu), 1);
}

}  // namespace
}  // namespace cadre
