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

DiscrepancyOutlook Outlook(double gamma, uint32_t rounds, uint32_t groups, uint32_t every_steps,
                           uint32_t total_steps = 0) {
  return OutlookOf({.gamma = gamma,
                    .rounds = rounds,
                    .groups = groups,
                    .every_steps = every_steps,
                    .total_steps = total_steps});
}

TEST(DiscrepancyTest, OutlookFollowsBound) {
  EXPECT_EQ(Outlook(0.1, 2, 4, 8).advice, DiscrepancyAdvice::kTooEarly);

  const DiscrepancyOutlook agreed = Outlook(0.1, 3, 4, 8);
  EXPECT_EQ(agreed.advice, DiscrepancyAdvice::kRaise);
  EXPECT_EQ(agreed.max_groups, std::nullopt);
  EXPECT_THAT(agreed.text, HasSubstr("the groups agree: more groups may be tried"));

  // Four groups with gamma 0.9 have r = 12/7, with which five would exceed 1.
  const DiscrepancyOutlook some = Outlook(0.9, 3, 4, 8);
  EXPECT_EQ(some.advice, DiscrepancyAdvice::kKeep);
  EXPECT_EQ(some.max_groups, 4u);
  EXPECT_THAT(some.text, HasSubstr("the groups agree"));
  const DiscrepancyOutlook more = Outlook(0.7, 3, 4, 8);
  EXPECT_EQ(more.advice, DiscrepancyAdvice::kRaise);
  EXPECT_EQ(more.max_groups, 11u);
  EXPECT_THAT(more.text, HasSubstr("up to 11 groups"));

  const DiscrepancyOutlook apart = Outlook(1.5, 3, 4, 8);
  EXPECT_EQ(apart.advice, DiscrepancyAdvice::kLower);
  EXPECT_EQ(apart.max_groups, 2u);
  EXPECT_THAT(apart.text, HasSubstr("use 2 groups"));
  EXPECT_THAT(apart.text, HasSubstr("more often than every 8 steps"));
  EXPECT_THAT(Outlook(1.5, 3, 4, 1).text, HasSubstr("larger batch"))
      << "every step is the shortest interval";

  EXPECT_EQ(Outlook(2.9, 3, 4, 8).advice, DiscrepancyAdvice::kNoise);
  EXPECT_EQ(Outlook(7, 3, 4, 8).advice, DiscrepancyAdvice::kNoise);
  // For two groups the discrepancy of pure noise is only 1.
  EXPECT_EQ(Outlook(0.95, 3, 2, 8).advice, DiscrepancyAdvice::kKeep);
  EXPECT_EQ(Outlook(1.05, 3, 2, 8).advice, DiscrepancyAdvice::kNoise);
}

TEST(DiscrepancyTest, OutlookBoundsInterval) {
  // sqrt(6400 / 4^3) = 10.
  const DiscrepancyOutlook seldom = Outlook(0.1, 3, 4, 64, 6400);
  EXPECT_EQ(seldom.advice, DiscrepancyAdvice::kLower);
  EXPECT_EQ(seldom.max_steps, 10u);
  EXPECT_THAT(seldom.text, HasSubstr("6400 steps in all: average at least every 10 steps"));
  EXPECT_EQ(Outlook(0.9, 3, 4, 10, 6400).advice, DiscrepancyAdvice::kKeep);

  const DiscrepancyOutlook often = Outlook(0.9, 3, 4, 2, 6400);
  EXPECT_EQ(often.advice, DiscrepancyAdvice::kRaise);
  EXPECT_THAT(often.text,
              HasSubstr("the groups agree: averages as seldom as every 10 steps may be tried"));
  // (6400 / 2^2)^(1/3) = 11.7, less than the discrepancy allows.
  EXPECT_EQ(Outlook(0.1, 3, 4, 2, 6400).max_groups, 11u);
}

}  // namespace
}  // namespace cadre
