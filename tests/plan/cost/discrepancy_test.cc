#include "plan/cost/discrepancy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace cadre {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(DiscrepancyTest, WorkedNumbers) {
  EXPECT_THAT(ExpectedDiscrepancy(1, 4, 2), DoubleNear(2.0 / 3, 1e-12));
  EXPECT_THAT(ExpectedDiscrepancy(1, 4, 4), DoubleNear(1.5, 1e-12));
  EXPECT_THAT(ExpectedDiscrepancy(1, 4, 8), DoubleNear(7.0 / 3, 1e-12));
  EXPECT_THAT(ExpectedDiscrepancy(1, 4, 16), DoubleNear(3.0, 1e-12));
}

TEST(DiscrepancyTest, PureSignalAndPureNoise) {
  for (const double groups : {2.0, 3.0, 100.0}) {
    EXPECT_EQ(ExpectedDiscrepancy(5, 0, groups), 0);
    EXPECT_THAT(ExpectedDiscrepancy(0, 5, groups), DoubleNear(groups - 1, 1e-9));
  }
  EXPECT_EQ(ExpectedDiscrepancy(1, 4, 1), 0) << "one group equals its mean";
}

TEST(DiscrepancyTest, NoiseOverSignalInvertsExpectation) {
  for (const double groups : {2.0, 5.0, 64.0}) {
    for (const double r : {0.0, 0.1, 1.0, 4.0, 1000.0}) {
      EXPECT_THAT(NoiseOverSignal(ExpectedDiscrepancy(1, r, groups), groups),
                  DoubleNear(r, 1e-6 * (1 + r)));
    }
    EXPECT_EQ(NoiseOverSignal(groups - 1, groups), kInfinity);
    EXPECT_EQ(NoiseOverSignal(groups, groups), kInfinity);
  }
}

TEST(DiscrepancyTest, MaxGroupsKeepsWithinOne) {
  EXPECT_EQ(MaxGroups(0), std::nullopt);
  EXPECT_EQ(MaxGroups(1), std::nullopt);
  EXPECT_EQ(MaxGroups(4), 2u);
  EXPECT_EQ(MaxGroups(kInfinity), 2u) << "two groups of pure noise have exactly 1";
  for (const double r : {1.01, 1.5, 2.0, 3.0, 7.0, 1e5}) {
    const uint32_t max_groups = MaxGroups(r).value();
    EXPECT_LE(ExpectedDiscrepancy(1, r, max_groups), 1 + 1e-9) << r;
    EXPECT_GT(ExpectedDiscrepancy(1, r, max_groups + 1), 1 + 1e-9) << r;
  }
}

TEST(DiscrepancyTest, NanForInvalidInput) {
  EXPECT_EQ(DiscrepancyOf(3, 2), 1.5);
  EXPECT_EQ(DiscrepancyOf(0, 2), 0);
  EXPECT_TRUE(std::isnan(DiscrepancyOf(1, 0)));
  EXPECT_TRUE(std::isnan(DiscrepancyOf(-1, 1)));
  EXPECT_TRUE(std::isnan(DiscrepancyOf(kNan, 1)));
  EXPECT_TRUE(std::isnan(DiscrepancyOf(1, kInfinity)));
  EXPECT_TRUE(std::isnan(SmoothedDiscrepancy().Value()));
}

TEST(DiscrepancyTest, SmoothingFollows) {
  SmoothedDiscrepancy smoothed;
  smoothed.Add(3, 1);
  EXPECT_THAT(smoothed.Value(), DoubleNear(3, 1e-12)) << "the first round counts in full";
  smoothed.Add(1, 3);
  EXPECT_THAT(smoothed.Value(), DoubleNear(1, 1e-12)) << "the mean of three quarters and one";
  for (int i = 0; i < 500; ++i) smoothed.Add(2, 8);
  EXPECT_THAT(smoothed.Value(), DoubleNear(0.25, 1e-9));
  EXPECT_EQ(smoothed.rounds, 502u);
}

TEST(DiscrepancyTest, SmoothingResistsOutliers) {
  SmoothedDiscrepancy smoothed;
  for (int i = 0; i < 100; ++i) smoothed.Add(1, 2);
  // A round almost without displacement: its gamma is a million.
  smoothed.Add(1, 1e-6);
  EXPECT_LT(smoothed.Value(), 0.7);
  // A round with a thousand times the displacement has the same weight.
  smoothed.Add(1, 2000);
  for (int i = 0; i < 50; ++i) smoothed.Add(1, 1);
  EXPECT_THAT(smoothed.Value(), DoubleNear(1, 0.02));
}

// T = 64,000 = 40^3.
TEST(DiscrepancyTest, BoundsOfInterval) {
  EXPECT_EQ(MaxGroupsForInterval(64'000, 1, IntervalBound::kYu), 40);
  EXPECT_EQ(MaxGroupsForInterval(64'000, 1, IntervalBound::kWangJoshi), 40);
  // 64,000 / 8^4 = 15.625 = 2.5^3; 64,000 / 8^2 = 1,000.
  EXPECT_EQ(MaxGroupsForInterval(64'000, 8, IntervalBound::kYu), 2);
  EXPECT_EQ(MaxGroupsForInterval(64'000, 8, IntervalBound::kWangJoshi), 10);
  // 64,000 / 10^3 = 64: its square root, and the root of that, 2.83.
  EXPECT_EQ(MaxStepsBetweenAverages(64'000, 10, IntervalBound::kWangJoshi), 8);
  EXPECT_EQ(MaxStepsBetweenAverages(64'000, 10, IntervalBound::kYu), 2);
  // At least 1.
  EXPECT_EQ(MaxStepsBetweenAverages(0, 1, IntervalBound::kYu), 1);
  EXPECT_EQ(MaxStepsBetweenAverages(100, 1000, IntervalBound::kWangJoshi), 1);
  EXPECT_EQ(MaxGroupsForInterval(10, 1000, IntervalBound::kYu), 1);
}

TEST(DiscrepancyTest, Advice) {
  const struct {
    double gamma;
    uint32_t groups, every_steps, total_steps;
    const char* advice;
  } rows[] = {
      {0.1, 4, 8, 0, "the groups agree: more groups may be tried"},
      // Four groups with gamma 0.9 have r = 12/7, with which five would exceed 1.
      {0.9, 4, 8, 0, "the groups agree enough, but neither more groups"},
      {0.7, 4, 8, 0, "the groups agree: up to 11 groups may be tried"},
      {1.5, 4, 8, 0, "use 2 groups, or average more often than every 8 steps"},
      // Every step is the shortest interval.
      {1.5, 4, 1, 0, "use 2 groups, or a larger batch"},
      {2.9, 4, 8, 0, "mostly noise: use fewer groups, average more often than every 8 steps"},
      {7, 4, 8, 0, "mostly noise"},
      // For two groups the discrepancy of pure noise is only 1.
      {0.95, 2, 8, 0, "the groups agree enough, but neither more groups"},
      {1.05, 2, 8, 0, "mostly noise"},
      // sqrt(6400 / 4^3) = 10.
      {0.1, 4, 64, 6400, "6400 steps in all: average at least every 10 steps"},
      // The bound is 15 for the following; it omits constants.
      {0.3, 2, 60, 1800, "the groups agree enough, but neither more groups"},
      {0.3, 2, 100, 1800, "1800 steps in all: average at least every 15 steps"},
      // Too short for the bound.
      {0.3, 2, 20, 180, "the groups agree enough, but neither more groups"},
      {0.3, 2, 20, 100, "the groups agree enough, but neither more groups"},
      // More frequent averages of equal models change nothing.
      {0, 2, 100, 1800, "the groups agree exactly"},
      {0.9, 4, 10, 6400, "the groups agree enough, but neither more groups"},
      {0.9, 4, 2, 6400, "the groups agree: averages as seldom as every 10 steps may be tried"},
      // (6400 / 2^2)^(1/3) = 11.7, less than the discrepancy allows.
      {0.1, 4, 2, 6400, "the groups agree: up to 11 groups, or averages as seldom as every 10"},
  };
  for (const auto& [gamma, groups, every_steps, total_steps, advice] : rows) {
    DiscrepancyView view{.gamma = gamma, .rounds = 3, .groups = groups};
    view.every_steps = every_steps;
    view.total_steps = total_steps;
    EXPECT_THAT(AdviceFor(view), HasSubstr(advice)) << gamma;
    view.rounds = 2;
    EXPECT_THAT(AdviceFor(view), HasSubstr("too early"));
  }
}

}  // namespace
}  // namespace cadre
