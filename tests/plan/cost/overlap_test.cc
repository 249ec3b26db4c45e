#include "plan/cost/overlap.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace cadre {
namespace {

constexpr double kNear = 1e-9;

// --- The recurrence ---

// Two convolutions, then two fully connected layers.
std::vector<LayerTimes> Layers(const std::vector<double>& backward, double convolutions) {
  const std::vector<double> forward = {10, 10, 2, 2};
  const std::vector<double> communication = {convolutions, convolutions, 40, 10};
  std::vector<LayerTimes> layers;
  for (size_t l = 0; l < forward.size(); ++l) {
    layers.push_back({forward[l], backward[l], communication[l]});
  }
  return layers;
}

TEST(OverlapRecurrenceTest, LongBackwardHidesAllButOne) {
  const StepTime time = OverlapRecurrence(Layers({60, 60, 4, 4}, 3));
  EXPECT_NEAR(time.seconds, 155, kNear);
  EXPECT_NEAR(time.exposed, 3, kNear);
  EXPECT_NEAR(time.serial, 208, kNear);
  EXPECT_NEAR(OverlapRecurrence(Layers({60, 60, 4, 4}, 6)).seconds, 158, kNear);
}

TEST(OverlapRecurrenceTest, ShortBackwardExposesMost) {
  const StepTime time = OverlapRecurrence(Layers({20, 20, 4, 4}, 3));
  EXPECT_NEAR(time.seconds, 84, kNear);
  EXPECT_NEAR(time.serial, 128, kNear);
  EXPECT_NEAR(time.exposed, 12, kNear);
  EXPECT_NEAR(OverlapRecurrence(Layers({20, 20, 4, 4}, 6)).seconds, 90, kNear);
}

TEST(OverlapRecurrenceTest, EdgeCases) {
  EXPECT_EQ(OverlapRecurrence({}).seconds, 0);
  const std::vector<LayerTimes> one = {{1, 2, 4}};
  EXPECT_NEAR(OverlapRecurrence(one).seconds, 7, kNear);
  EXPECT_NEAR(OverlapRecurrence(one).exposed, 4, kNear);
}

// --- The sharded step ---

TEST(OverlappedStepTest, OneLayerHasNoOverlap) {
  const StepModel model = {.layers = {{1, 2}}, .buckets = {{0, 3, 0.5, 4}}};
  const StepTime time = OverlappedStep(model);
  EXPECT_NEAR(time.seconds, 10.5, kNear);
  EXPECT_NEAR(time.exposed, 7.5, kNear);
  EXPECT_NEAR(time.serial, 10.5, kNear);
}

TEST(OverlappedStepTest, WithoutCommunication) {
  const StepTime alone = OverlappedStep({.layers = {{1, 2}, {3, 4}}});
  EXPECT_NEAR(alone.seconds, 10, kNear);
  EXPECT_EQ(alone.exposed, 0);
  const StepTime free = OverlappedStep({.layers = {{1, 2}, {3, 4}}, .buckets = {{0}, {1}}});
  EXPECT_NEAR(free.seconds, 10, kNear);
  EXPECT_EQ(OverlappedStep({}).seconds, 0);
}

// Backward of layer 1 ends at 4, of layer 0 at 8. Bucket 1 is reduced from 4 to 7 and gathered from
// 7 to 9. Bucket 0 is reduced from 9 to 10 and gathered from 10 to 11, so forward of layer 0 waits
// from 8 to 11.
TEST(OverlappedStepTest, NoPreemption) {
  const StepModel model = {.layers = {{1, 4}, {1, 2}}, .buckets = {{1, 3, 0, 2}, {0, 1, 0, 1}}};
  const StepTime time = OverlappedStep(model);
  EXPECT_NEAR(time.exposed, 3, kNear);
  EXPECT_NEAR(time.seconds, 11, kNear);
}

// Forward ends at 2, backward of layer 1 at 4, of layer 0 at 5. Bucket 1 is reduced from 4 to 7.
// Then the reduce-scatter of bucket 0 (7 to 8) and its all-gather (8 to 9) run before the
// all-gather of bucket 1 (9 to 11). Forward of layer 0 runs from 9 to 10, so forward of layer 1
// waits from 10 to 11.
TEST(OverlappedStepTest, EarlierLayersFirst) {
  const StepModel model = {.layers = {{1, 1}, {1, 2}}, .buckets = {{1, 3, 0, 2}, {0, 1, 0, 1}}};
  const StepTime time = OverlappedStep(model);
  EXPECT_NEAR(time.exposed, 4 + 1, kNear);
  EXPECT_NEAR(time.seconds, 10, kNear);
}

// The forward of earlier layers hides the last bucket's all-gather.
TEST(OverlappedStepTest, NextForwardHidesGathers) {
  const StepModel model = {.layers = {{10, 1}, {1, 1}}, .buckets = {{0, 1, 0, 1}, {1, 1, 0, 8}}};
  EXPECT_NEAR(OverlappedStep(model).exposed, 2, kNear);
}

TEST(OverlappedStepTest, UpdateTogetherWaitsForAllGradients) {
  // Without a common norm, bucket 1 could be gathered during the backward of layer 0.
  StepModel model = {.layers = {{1, 10}, {1, 1}}, .buckets = {{1, 1, 0, 4}, {0, 1, 0, 1}}};
  EXPECT_NEAR(OverlappedStep(model).exposed, 2, kNear);
  model.update_together = true;
  // Exposed are 1 + 1 of bucket 0, and 4 - 1 of bucket 1, since the forward of layer 0 hides 1.
  EXPECT_NEAR(OverlappedStep(model).exposed, 2 + 3, kNear);
  // Updates add their time once, with or without update_together.
  for (StepModel::Bucket& bucket : model.buckets) bucket.update = 0.25;
  EXPECT_NEAR(OverlappedStep(model).exposed, 5.5, kNear);
}

TEST(OverlappedStepTest, CommunicationBound) {
  const StepModel model = {.layers = {{1, 1}, {1, 1}, {1, 1}},
                           .buckets = {{2, 50, 0, 50}, {1, 50, 0, 50}, {0, 50, 0, 50}}};
  const StepTime time = OverlappedStep(model);
  EXPECT_GE(time.seconds, 300);
  EXPECT_LE(time.seconds, time.serial);
}

TEST(OverlappedStepTest, RandomStepsAreBounded) {
  uint32_t state = 1;
  const auto draw = [&state](uint32_t limit) -> double {
    state = state * 1664525U + 1013904223U;
    return (state >> 16) % limit;
  };
  for (int round = 0; round < 300; ++round) {
    StepModel model;
    const int layers = 1 + draw(6);
    double computing = 0;
    for (int l = 0; l < layers; ++l) {
      model.layers.push_back({draw(9), draw(9)});
      computing += model.layers.back().forward + model.layers.back().backward;
    }
    double communicating = 0;
    for (int l = layers - 1; l >= 0; --l) {
      if (draw(3) == 0) continue;
      model.buckets.push_back({l, draw(9), draw(2), draw(9)});
      const StepModel::Bucket& bucket = model.buckets.back();
      communicating += bucket.reduce_scatter + bucket.update + bucket.all_gather;
    }
    model.update_together = draw(2) == 0;
    const StepTime time = OverlappedStep(model);
    EXPECT_LE(time.seconds, time.serial + kNear) << round;
    EXPECT_GE(time.seconds, computing - kNear) << round;
    EXPECT_NEAR(time.seconds - time.exposed, computing, kNear) << round;
    EXPECT_NEAR(time.serial, computing + communicating, kNear);
  }
}

}  // namespace
}  // namespace cadre
