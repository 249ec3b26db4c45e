#include "server/mean.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/weighted_sums.h"
#include "plan/cost/discrepancy.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;

using Vectors = std::vector<std::vector<float>>;

DiscrepancyTerms Sum(const std::vector<float>& before, const Vectors& groups,
                     const std::vector<double>& weights, size_t piece) {
  DiscrepancySums sums;
  DiscrepancyTerms total{0, 0};
  for (size_t at = 0; at < before.size(); at += piece) {
    const size_t n = std::min(piece, before.size() - at);
    sums.Begin(std::span(before).subspan(at, n));
    for (size_t g = 0; g < groups.size(); ++g) {
      sums.Add(weights[g], std::span(groups[g]).subspan(at, n));
    }
    total += sums.End();
  }
  return total;
}

TEST(DiscrepancySumsTest, SmallNumbersByHand) {
  // The groups' displacements are (1, 0) and (3, 4). With weights 1:1 their mean is (2, 2).
  const DiscrepancyTerms even = Sum({10, 20}, {{11, 20}, {13, 24}}, {0.5, 0.5}, 2);
  EXPECT_EQ(even.variance_between_groups, 1 + 4);
  EXPECT_EQ(even.displacement, 4 + 4);
  // With weights 1:3 the mean is (2.5, 3).
  const DiscrepancyTerms uneven = Sum({10, 20}, {{11, 20}, {13, 24}}, {1, 3}, 2);
  EXPECT_DOUBLE_EQ(uneven.variance_between_groups, 0.25 * (1.5 * 1.5 + 9) + 0.75 * (0.5 * 0.5 + 1));
  EXPECT_DOUBLE_EQ(uneven.displacement, 2.5 * 2.5 + 9);
}

TEST(DiscrepancySumsTest, EqualGroupsHaveNoVariance) {
  // Three thirds in fp32 do not add up to 1.
  const double third = 1.0F / 3;
  std::vector<float> x(1000);
  std::vector<float> before(1000);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = 0.1F * i;
    before[i] = 7.3F - x[i];
  }
  const DiscrepancyTerms sum = Sum(before, {x, x, x}, {third, third, third}, 300);
  EXPECT_EQ(sum.variance_between_groups, 0);
  EXPECT_GT(sum.displacement, 0);
}

TEST(DiscrepancySumsTest, SmallDifferencesAreKept) {
  // The groups differ by one unit in the last place of 1000, in one of many positions.
  std::vector<float> a(4096, 1000.0F);
  std::vector<float> b = a;
  b[77] = std::nextafter(1000.0F, 2000.0F);
  const double step = double{b[77]} - 1000.0;
  const DiscrepancyTerms sum = Sum(a, {a, b}, {0.5, 0.5}, 4096);
  EXPECT_DOUBLE_EQ(sum.variance_between_groups, step * step / 4);
  EXPECT_DOUBLE_EQ(sum.displacement, step * step / 4);
}

TEST(DiscrepancySumsTest, ZeroWeightIsIgnored) {
  const DiscrepancyTerms without = Sum({1, 2, 3}, {{2, 2, 2}, {5, 1, 1}}, {2, 1}, 3);
  const DiscrepancyTerms with = Sum({1, 2, 3}, {{900, 9, 9}, {2, 2, 2}, {5, 1, 1}}, {0, 2, 1}, 3);
  EXPECT_EQ(with.variance_between_groups, without.variance_between_groups);
  EXPECT_EQ(with.displacement, without.displacement);
}

TEST(DiscrepancySumsTest, DivergedModelIsNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  const DiscrepancyTerms sum = Sum({0, 0}, {{1, infinity}, {1, 1}}, {0.5, 0.5}, 2);
  EXPECT_TRUE(std::isnan(DiscrepancyOf(sum.variance_between_groups, sum.displacement)));
}

TEST(DiscrepancySumsTest, DefaultIsUnknown) {
  EXPECT_TRUE(std::isnan(DiscrepancyTerms().variance_between_groups));
  EXPECT_TRUE(std::isnan(DiscrepancyTerms().displacement));
}

TEST(MeanTest, WeightsAreRoundedOnce) {
  EXPECT_THAT(MeanWeights(std::vector<uint64_t>{12345}), ElementsAre(1.0F));
  EXPECT_THAT(MeanWeights(std::vector<uint64_t>{1, 3}), ElementsAre(0.25F, 0.75F));
  EXPECT_THAT(MeanWeights(std::vector<uint64_t>{1, 2}), ElementsAre(1.0F / 3, 2.0F / 3));
  EXPECT_THAT(MeanWeights(std::vector<uint64_t>{0, 5}), ElementsAre(0.0F, 1.0F));
}

TEST(MeanTest, EqualModelsKeepTheirBits) {
  const std::vector<float> x = Values(3, 1000);
  std::vector<float> sum(1000);
  SetWeighted(0.5F, x, sum);
  AddWeighted(0.5F, x, sum);
  EXPECT_TRUE(SameBits(sum, x));
}

TEST(TrimmedMeanTest, LeavesOutTheLargestAndTheSmallest) {
  const std::vector<float> weights = {0.1F, 0.2F, 0.3F, 0.2F, 0.2F};
  // By group, three positions each.
  const std::vector<float> values = {9, 1, 5, 1, 1, 5, 2, 4, 5, 3, 4, 5, -90, 7, 5};
  std::vector<float> mean(3);
  TrimmedMean(weights, 1, values, mean);
  EXPECT_FLOAT_EQ(mean[0], (0.2F * 1 + 0.3F * 2 + 0.2F * 3) / 0.7F);
  // Among the equal values, that of group 0 is left out, and the largest.
  EXPECT_FLOAT_EQ(mean[1], (0.2F * 1 + 0.3F * 4 + 0.2F * 4) / 0.7F);
  EXPECT_FLOAT_EQ(mean[2], 5);
  TrimmedMean(weights, 2, values, mean);
  EXPECT_FLOAT_EQ(mean[0], 2);
}

}  // namespace
}  // namespace cadre::testing
