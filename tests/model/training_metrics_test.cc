#include "model/training_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string ProblemOf(const v1::TrainingMetrics& metrics) {
  return std::string(CheckMetrics(metrics).message());
}

TEST(TrainingMetricsTest, LimitsNameTheMetric) {
  v1::TrainingMetrics metrics;
  metrics.set_tokens(kMaxTokens);
  for (int i = 0; i < kMaxMetrics; ++i) (*metrics.mutable_mean())[absl::StrCat("m.", i)] = i;
  EXPECT_THAT(ProblemOf(metrics), IsEmpty());
  (*metrics.mutable_mean())["m.0"] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(ProblemOf(metrics), HasSubstr("metric 'm.0' is nan"));
  (*metrics.mutable_mean())["m.0"] = 0;
  (*metrics.mutable_mean())["one-more"] = 1;
  EXPECT_THAT(ProblemOf(metrics), HasSubstr("33 metrics"));
  metrics.clear_mean();
  (*metrics.mutable_mean())["\xff"] = 1;
  EXPECT_THAT(ProblemOf(metrics), HasSubstr("metric '\\xff'"));
  metrics.clear_mean();
  metrics.set_tokens(kMaxTokens + 1);
  EXPECT_THAT(ProblemOf(metrics), HasSubstr("tokens"));
}

TEST(TrainingMetricsTest, MeansAreThoseOfTheGroupsThatHaveThem) {
  MetricMeans means;
  v1::TrainingMetrics one;
  one.set_tokens(100);
  (*one.mutable_mean())["both"] = 1;
  (*one.mutable_mean())["first"] = 7;
  means.Add(one, 300);
  v1::TrainingMetrics other;
  other.set_tokens(20);
  (*other.mutable_mean())["both"] = 5;
  means.Add(other, 100);
  const v1::TrainingMetrics result = means.Result();
  EXPECT_EQ(result.tokens(), 120U);
  EXPECT_EQ(result.mean().at("both"), 2);
  EXPECT_EQ(result.mean().at("first"), 7);
}

TEST(TrainingMetricsTest, MeansAreFiniteAndLimited) {
  MetricMeans means;
  const double large = std::numeric_limits<double>::max();
  for (int group = 0; group < 2; ++group) {
    v1::TrainingMetrics one;
    (*one.mutable_mean())["a"] = large;
    for (int i = 1; i < kMaxMetrics; ++i) {
      (*one.mutable_mean())[absl::StrCat("m", group, "/", i)] = i;
    }
    means.Add(one, 1);
  }
  const v1::TrainingMetrics result = means.Result();
  EXPECT_EQ(result.mean().at("a"), large);
  EXPECT_EQ(result.mean_size(), kMaxMetrics);
  EXPECT_TRUE(CheckMetrics(result).ok());
}

TEST(TrainingMetricsTest, TokensPerSample) {
  v1::Model model;
  EXPECT_EQ(TokensPerSample(model), 0U);
  model.mutable_tokens()->set_length(64);
  EXPECT_EQ(TokensPerSample(model), 64U);
}

}  // namespace
}  // namespace cadre
