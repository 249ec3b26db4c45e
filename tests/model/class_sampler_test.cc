#include "model/class_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

namespace cadre {
namespace {

using ::testing::ElementsAreArray;

v1::ClassSampling Sampling(uint32_t classes, v1::ClassSampling::Distribution distribution) {
  v1::ClassSampling sampling;
  sampling.set_classes(classes);
  sampling.set_distribution(distribution);
  return sampling;
}

// Size of the sample, number of classes, distribution.
using Case = std::tuple<int, int, v1::ClassSampling::Distribution>;

class ClassSamplerTest : public ::testing::TestWithParam<Case> {
 protected:
  int sampled() const { return std::get<0>(GetParam()); }
  int classes() const { return std::get<1>(GetParam()); }
  ClassSampler Make(uint64_t seed) const {
    return ClassSampler(Sampling(sampled(), std::get<2>(GetParam())), classes(), seed);
  }
};

constexpr auto kUniform = v1::ClassSampling::UNIFORM;
constexpr auto kLogUniform = v1::ClassSampling::LOG_UNIFORM;

INSTANTIATE_TEST_SUITE_P(Cases, ClassSamplerTest,
                         ::testing::Values(Case{1, 2, kUniform}, Case{1, 2, kLogUniform},
                                           Case{12, 50, kUniform}, Case{12, 50, kLogUniform},
                                           Case{7, 13, kUniform}, Case{49, 50, kLogUniform},
                                           Case{50, 50, kUniform}, Case{50, 50, kLogUniform},
                                           Case{1, 1, kLogUniform}));

TEST_P(ClassSamplerTest, DrawsDistinctClassesWithTheirProbabilities) {
  constexpr int kDraws = 20'000;
  const ClassSampler sampler = Make(5);
  std::vector<int> counts(classes());
  for (int position = 0; position < kDraws; ++position) {
    const std::vector<int64_t> drawn = sampler.Draw(position);
    ASSERT_EQ(std::ssize(drawn), sampled());
    for (size_t i = 0; i < drawn.size(); ++i) {
      ASSERT_GE(drawn[i], i == 0 ? 0 : drawn[i - 1] + 1);
      ASSERT_LT(drawn[i], classes());
      ++counts[drawn[i]];
    }
  }
  double expected = 0;
  for (int c = 0; c < classes(); ++c) {
    const double p = sampler.Probability(c);
    expected += p;
    EXPECT_GT(p, 0);
    EXPECT_LE(p, 1);
    // Five standard deviations.
    EXPECT_NEAR(counts[c], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p)) + 1e-6) << c;
  }
  EXPECT_NEAR(expected, sampled(), 1e-9);
}

TEST_P(ClassSamplerTest, DependsOnSeedAndPositionOnly) {
  const ClassSampler sampler = Make(5);
  const std::vector<int64_t> drawn = sampler.Draw(3);
  sampler.Draw(4);
  EXPECT_THAT(sampler.Draw(3), ElementsAreArray(drawn));
  EXPECT_THAT(Make(5).Draw(3), ElementsAreArray(drawn));
}

TEST(ClassSampler, DrawsChangeWithSeedAndPosition) {
  const ClassSampler sampler(Sampling(20, kLogUniform), 1000, 1);
  EXPECT_NE(sampler.Draw(0), sampler.Draw(1));
  EXPECT_NE(sampler.Draw(0), ClassSampler(Sampling(20, kLogUniform), 1000, 2).Draw(0));
}

TEST(ClassSampler, LogUniformProbabilitiesFallLikeLogarithms) {
  const ClassSampler sampler(Sampling(100, kLogUniform), 10'000, 1);
  EXPECT_EQ(sampler.Probability(0), 1);
  const auto weight = [](double c) { return std::log((c + 2) / (c + 1)); };
  const double last = sampler.Probability(9'999);
  EXPECT_LT(last, 0.01);
  for (const int c : {100, 1000, 5000}) {
    EXPECT_NEAR(sampler.Probability(c) / last, weight(c) / weight(9'999), 1e-6) << c;
  }
}

// The estimate of a sum over all classes, with terms divided by probabilities, has no bias.
TEST(ClassSampler, WeightedSumsHaveNoBias) {
  constexpr int kClasses = 40, kDraws = 20'000;
  for (const auto distribution : {kUniform, kLogUniform}) {
    const ClassSampler sampler(Sampling(8, distribution), kClasses, 9);
    const auto term = [](int64_t c) { return 1 + std::sin(1.0 * c); };
    double exact = 0, estimate = 0;
    for (int c = 0; c < kClasses; ++c) exact += term(c);
    for (int position = 0; position < kDraws; ++position) {
      for (const int64_t c : sampler.Draw(position)) estimate += term(c) / sampler.Probability(c);
    }
    EXPECT_NEAR(estimate / kDraws, exact, 0.02 * exact);
  }
}

TEST(ClassSampler, SampleOfAllClassesIsCertain) {
  for (const auto distribution : {kUniform, kLogUniform}) {
    const ClassSampler sampler(Sampling(300, distribution), 300, 1);
    std::vector<int64_t> all(300);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_THAT(sampler.Draw(17), ElementsAreArray(all));
    for (int c = 0; c < 300; ++c) EXPECT_EQ(sampler.Probability(c), 1) << c;
  }
}

}  // namespace
}  // namespace cadre
