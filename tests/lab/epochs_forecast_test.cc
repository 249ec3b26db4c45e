#include "lab/epochs_forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/search/prediction.h"
#include "plan/search/search.h"
#include "tests/lab/questions.h"

namespace cadre {
namespace {

using testing::Epochs;
using ::testing::HasSubstr;

// The forecast for a step of one second.
EpochsForecast Forecast(PlanRequest request) {
  const auto question = testing::QuestionOf(std::move(request));
  auto forecast = ForecastEpochs(*question, 1.0);
  EXPECT_TRUE(forecast.ok()) << forecast.status();
  return *std::move(forecast);
}

TEST(EpochsForecastTest, ChoosesTheBatchThatReachesTheTargetSoonest) {
  PlanRequest request = testing::SmallRequest(8);
  request.epochs = Epochs({{1, 4}, {4, 5}, {8, 50}});
  const EpochsForecast forecast = Forecast(request);
  EXPECT_EQ(forecast.target_accuracy, 0.9F);
  EXPECT_EQ(forecast.samples, 256);
  // The batch of 32 samples is that of four workers, and an epoch has eight such steps.
  EXPECT_DOUBLE_EQ(forecast.epochs.value_or(0), 5);
  EXPECT_DOUBLE_EQ(forecast.seconds.value_or(0), 5.0 * 8);
  ASSERT_EQ(forecast.choices.size(), 4u);
  ASSERT_TRUE(forecast.best && forecast.gain);
  const BatchChoice& best = forecast.choices[*forecast.best];
  for (const BatchChoice& choice : forecast.choices) {
    EXPECT_LE(best.way.seconds, choice.way.seconds);
    EXPECT_EQ(choice.way.workers * choice.way.model_devices, 8);
    EXPECT_EQ(choice.batch, 8 * choice.way.workers);
    EXPECT_EQ(choice.mesh.ranks(), 8);
  }
  EXPECT_NE(best.way.workers, 8) << "ten times the epochs";
  EXPECT_DOUBLE_EQ(*forecast.gain, forecast.choices[3].way.seconds / best.way.seconds);
  EXPECT_FALSE(forecast.crossover.has_value());
  EXPECT_EQ(forecast.left_out, "");
}

// Two workers need nearly twice the epochs of one.
TEST(EpochsForecastTest, PlacedLayersDecideTheCrossover) {
  PlanRequest request = testing::BranchesRequest();
  request.epochs = Epochs({{1, 4}, {2, 7.5}});
  const EpochsForecast forecast = Forecast(request);
  ASSERT_EQ(forecast.choices.size(), 2u);
  const BatchChoice& hybrid = forecast.choices[0];
  EXPECT_EQ(hybrid.way.model_devices, 2);
  EXPECT_TRUE(hybrid.places_layers);
  EXPECT_TRUE(hybrid.way.splits_model);
  // The step is that of the placement, which the search finds for the batch of one worker.
  PlanRequest alone = request;
  alone.epochs.reset();
  const auto question = testing::QuestionOf(std::move(alone));
  const auto found = Search(question->problem);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(PlacesLayers(found->best.plan));
  EXPECT_DOUBLE_EQ(hybrid.way.step_seconds, found->best.prediction.times.step());
  EXPECT_EQ(forecast.best, 0u);
  EXPECT_EQ(forecast.crossover, 2);
  EXPECT_GT(forecast.gain.value_or(0), 1);
}

TEST(EpochsForecastTest, BatchBeyondTheTableIsNotForecast) {
  PlanRequest request = testing::SmallRequest(8);
  request.epochs = Epochs({{1, 4}, {8, 5}});
  request.spec.set_batch_per_group(128);
  const EpochsForecast forecast = Forecast(request);
  EXPECT_FALSE(forecast.seconds.has_value());
  EXPECT_THAT(forecast.note, HasSubstr("1 to 8 workers, not for 16"));
}

TEST(EpochsForecastTest, TargetThatWasNotReachedIsNotForecast) {
  PlanRequest request = testing::SmallRequest(8);
  request.epochs = Epochs({{1, 4}, {4, 0}});
  const EpochsForecast forecast = Forecast(request);
  EXPECT_FALSE(forecast.seconds.has_value());
  EXPECT_THAT(forecast.note, HasSubstr("did not reach the target"));
}

// An epoch of fewer samples than a step has would otherwise take no time.
TEST(EpochsForecastTest, BatchesLargerThanAnEpochAreLeftOut) {
  PlanRequest request = testing::SmallRequest(8);
  request.epochs = Epochs({{1, 4}, {8, 5}});
  request.samples = 10;
  request.spec.set_batch_per_group(64);
  const EpochsForecast forecast = Forecast(request);
  ASSERT_EQ(forecast.choices.size(), 1u);
  EXPECT_EQ(forecast.choices[*forecast.best].way.workers, 1);
  EXPECT_GT(forecast.choices[*forecast.best].way.seconds, 0.0);
  EXPECT_FALSE(forecast.gain.has_value());
  EXPECT_FALSE(forecast.seconds.has_value());
  EXPECT_EQ(forecast.note, "an epoch of 10 samples has no step of 64 samples");
  EXPECT_EQ(forecast.left_out,
            "batches of 2 or more workers are left out: an epoch of 10 samples has no step of 16 "
            "samples");
}

TEST(EpochsForecastTest, PinnedMeshHasNoCrossover) {
  PlanRequest request = testing::SmallRequest(8);
  request.epochs = Epochs({{1, 4}, {8, 50}});
  testing::PinDataParallel(request);
  EXPECT_FALSE(Forecast(request).crossover.has_value());
}

TEST(EpochsForecastTest, TableWithoutEntriesIsAnError) {
  PlanRequest request = testing::SmallRequest(8);
  request.epochs = Epochs({});
  const auto question = testing::QuestionOf(std::move(request));
  EXPECT_FALSE(ForecastEpochs(*question, 1.0).ok());
}

}  // namespace
}  // namespace cadre
