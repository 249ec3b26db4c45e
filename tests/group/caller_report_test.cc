#include "group/caller_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "model/training_metrics.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The lines that are logged while the object lives.
class LoggedLines final : public google::LogSink {
 public:
  LoggedLines() { google::AddLogSink(this); }
  ~LoggedLines() override { google::RemoveLogSink(this); }
  using google::LogSink::send;
  void send(google::LogSeverity /*severity*/, const char* /*full*/, const char* /*file*/,
            int /*line*/, const google::LogMessageTime& /*time*/, const char* message,
            size_t length) override {
    lines.emplace_back(message, length);
  }
  std::vector<std::string> lines;
};

TEST(CallerReportTest, MeansAndSumsSinceTheLastBoundary) {
  CallerReport report;
  for (const double value : {1.0, 2.0, 6.0}) {
    report.AddLoss(value);
    ASSERT_TRUE(report.AddMetric("gradient_norm", 10 * value).ok());
    ASSERT_TRUE(report.AddMetric("rate", value / 8).ok());
    ASSERT_TRUE(report.AddTokens(100).ok());
    if (value == 2) {
      const PeriodReport status = report.TakeForStatus();
      EXPECT_EQ(status.loss, 1.5);
      EXPECT_EQ(status.metrics.tokens(), 200U);
    }
  }
  EXPECT_EQ(report.TakeForStatus().loss, 6.0) << "since the last status";
  const PeriodReport contribution = report.TakeForContribution();
  EXPECT_EQ(contribution.loss, 3.0);
  EXPECT_EQ(contribution.rate, 0.75F) << "of the last step";
  EXPECT_EQ(contribution.metrics.tokens(), 300U);
  EXPECT_EQ(contribution.metrics.mean_size(), 1) << "the rate is not one of them";
  EXPECT_EQ(contribution.metrics.mean().at("gradient_norm"), 30);
  const PeriodReport empty = report.TakeForContribution();
  EXPECT_FALSE(empty.loss.has_value());
  EXPECT_FALSE(HasMetrics(empty.metrics));
  EXPECT_EQ(empty.rate, 0.75F) << "it remains known";
}

TEST(CallerReportTest, LostStepsDoNotCount) {
  CallerReport report;
  report.AddLoss(7);
  ASSERT_TRUE(report.AddTokens(5).ok());
  report.Reset();
  report.AddLoss(1);
  EXPECT_EQ(report.TakeForContribution().loss, 1);
}

TEST(CallerReportTest, ValuesThatAreNotFiniteAreCountedAndLoggedOnce) {
  CallerReport report;
  LoggedLines logged;
  for (const double value : {3.0, std::nan(""), -kInfinite}) {
    ASSERT_TRUE(report.AddMetric("gradient_norm", value).ok());
  }
  report.AddLoss(1e39);  // As a float it is infinite.
  report.AddLoss(2);
  EXPECT_TRUE(logged.lines.empty());
  const PeriodReport period = report.TakeForContribution();
  EXPECT_EQ(period.loss, 2);
  EXPECT_EQ(period.metrics.mean().at("gradient_norm"), 3);
  EXPECT_THAT(logged.lines, ElementsAre(StartsWith("2 reported values of 'gradient_norm' since"),
                                        StartsWith("1 reported value of 'loss' since")));
  report.AddLoss(kInfinite);
  report.TakeForContribution();
  EXPECT_EQ(logged.lines.size(), 2U);
}

TEST(CallerReportTest, MeansOfLargeValuesAreFinite) {
  CallerReport report;
  const double large = std::numeric_limits<double>::max();
  for (const double value : {large, large, -large}) {
    ASSERT_TRUE(report.AddMetric("m", value).ok());
  }
  const PeriodReport period = report.TakeForContribution();
  EXPECT_TRUE(CheckMetrics(period.metrics).ok()) << CheckMetrics(period.metrics);
  EXPECT_NEAR(period.metrics.mean().at("m") / large, 1.0 / 3, 1e-9);
}

TEST(CallerReportTest, RefusalsNameTheMetric) {
  CallerReport report;
  for (const std::string& name : {std::string("gradNorm"), std::string("a b"), std::string(65, 'a'),
                                  std::string("m\n"), std::string()}) {
    const absl::Status refused = report.AddMetric(name, 1);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << name;
    EXPECT_THAT(std::string(refused.message()), StartsWith("metric '")) << name;
  }
  EXPECT_THAT(std::string(report.AddMetric("rate", -1).message()), HasSubstr("'rate' is -1"));
  for (int i = 0; i < kMaxMetrics; ++i) {
    EXPECT_TRUE(report.AddMetric(absl::StrCat("m/", i), i).ok());
  }
  EXPECT_THAT(std::string(report.AddMetric("last", 1).message()), HasSubstr("metric 'last'"));
  EXPECT_TRUE(report.AddMetric("m/0", 1).ok()) << "a known name";
  EXPECT_THAT(std::string(report.AddTokens(~uint64_t{0}).message()),
              HasSubstr("18446744073709551615 tokens"));
}

}  // namespace
}  // namespace cadre
