#include "lab/strategy_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/lab/questions.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using testing::QuestionOf;
using testing::SmallRequest;
using testing::ZooRequest;

// The request with all strategies to compare and without a compute speed.
PlanRequest All(PlanRequest request) {
  request.flops = 0;
  request.compare = AllStrategies();
  return request;
}

TEST(StrategyComparisonTest, AutoBeatsTheBestOfThePapers) {
  const auto question = QuestionOf(All(ZooRequest("alexnet", 512, 2048)));
  const StrategyComparison comparison = CompareStrategies(*question);
  ASSERT_EQ(comparison.rows.size(), 7u);
  EXPECT_EQ(comparison.best_of_papers, Strategy::kGroupHybrid);
  EXPECT_NEAR(comparison.best_of_papers_seconds, 10.533e-3, 5e-7);
  // Without compute times nothing overlaps, so formulas and predictions count the same costs.
  ASSERT_TRUE(comparison.gain && comparison.predicted_gain && comparison.auto_seconds);
  EXPECT_GT(*comparison.gain, 1.4);
  EXPECT_NEAR(*comparison.gain * *comparison.auto_seconds, 10.533e-3, 5e-7);
  EXPECT_EQ(comparison.gain_note, "");
  EXPECT_GT(*comparison.predicted_gain, 1.0);
  for (const ComparedStrategy& row : comparison.rows) {
    if (row.strategy == Strategy::kAuto) continue;
    ASSERT_TRUE(row.ratio.has_value()) << StrategyName(row.strategy);
    EXPECT_GE(*row.ratio, 1.0) << StrategyName(row.strategy);
    if (!row.predicted) continue;
    EXPECT_LE(*comparison.auto_seconds, row.predicted->prediction.times.step() * (1 + 1e-9))
        << StrategyName(row.strategy);
  }
  EXPECT_THAT(comparison.rows[1].note, HasSubstr("in Cadre not applicable to conv1, conv2"));
}

TEST(StrategyComparisonTest, FormulasAreNotComparedWithAnOverlappingStep) {
  PlanRequest request = All(SmallRequest(4));
  request.flops = 1e9;
  const auto question = QuestionOf(request);
  const StrategyComparison comparison = CompareStrategies(*question);
  EXPECT_FALSE(comparison.gain.has_value());
  EXPECT_THAT(comparison.gain_note, HasSubstr("do not model overlap"));
  EXPECT_GE(comparison.predicted_gain.value_or(0), 1.0);
  for (const ComparedStrategy& row : comparison.rows) {
    EXPECT_EQ(row.ratio.has_value(), row.strategy != Strategy::kAuto) << StrategyName(row.strategy);
  }
}

TEST(StrategyComparisonTest, FormulasAreNotComparedWithPinnedLayers) {
  PlanRequest request = All(SmallRequest(4));
  testing::PinLayer("fc1", request);
  const auto question = QuestionOf(request);
  EXPECT_THAT(CompareStrategies(*question).gain_note, HasSubstr("do not model pinned layers"));
}

TEST(StrategyComparisonTest, RowsAreTheRequestedStrategies) {
  PlanRequest request = SmallRequest(4);
  request.compare = {Strategy::kGroupHybrid, Strategy::kAuto, Strategy::kBatch};
  const auto question = QuestionOf(request);
  EXPECT_THAT(CompareStrategies(*question).rows,
              ElementsAre(Field(&ComparedStrategy::strategy, Strategy::kGroupHybrid),
                          Field(&ComparedStrategy::strategy, Strategy::kAuto),
                          Field(&ComparedStrategy::strategy, Strategy::kBatch)));
}

TEST(StrategyComparisonTest, ProfileComparesPredictions) {
  PlanRequest request = All(SmallRequest(4));
  request.link.reset();
  request.profile = testing::TwoHosts();
  const auto question = QuestionOf(request);
  const StrategyComparison comparison = CompareStrategies(*question);
  for (const ComparedStrategy& row : comparison.rows) {
    if (!row.predicted) continue;
    EXPECT_EQ(row.seconds, row.predicted->prediction.times.step());
  }
  ASSERT_TRUE(comparison.gain && comparison.predicted_gain);
  EXPECT_DOUBLE_EQ(*comparison.gain, *comparison.predicted_gain);
}

// A strategy that leaves ranks without samples is not a candidate for best_of_papers.
TEST(StrategyComparisonTest, TooFewSamplesAreNoted) {
  const auto question = QuestionOf(All(ZooRequest("alexnet", 64, 8)));
  const StrategyComparison comparison = CompareStrategies(*question);
  EXPECT_THAT(comparison.rows[0].note, HasSubstr("more ranks than samples"));
  EXPECT_NE(comparison.best_of_papers, Strategy::kBatch);
}

}  // namespace
}  // namespace cadre
