// Expected numbers computed by hand, for ResNet-50 (25,557,032 parameters) and for the model of
// deploy/demo.textproto (3,241,354).
#include "lab/hierarchical_averaging.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

constexpr int64_t kResNet50 = 25'557'032;
constexpr int64_t kDemo = 3'241'354;

TEST(HierarchicalAveragingTest, AllReduce) {
  EXPECT_DOUBLE_EQ(SynchronousStep(kResNet50, 8).words, 44'724'806);
  EXPECT_DOUBLE_EQ(SynchronousStep(kResNet50, 64).words, 50'315'406.75);
  EXPECT_DOUBLE_EQ(SynchronousStep(kResNet50, 1).words, 0);
}

TEST(HierarchicalAveragingTest, AveragingAcrossGroups) {
  EXPECT_DOUBLE_EQ(AverageWithoutSlices(kResNet50, 8).words, 44'724'806);
  EXPECT_DOUBLE_EQ(AverageBySlices(kResNet50, 8, 8).words, 5'590'600.75);
  EXPECT_DOUBLE_EQ(AverageWithoutSlices(kResNet50, 16).words, 47'919'435);
  EXPECT_DOUBLE_EQ(AverageBySlices(kResNet50, 16, 8).words, 5'989'929.375);
  EXPECT_DOUBLE_EQ(AverageBySlices(kResNet50, 16, 32).words, 1'497'482.34375);
  EXPECT_DOUBLE_EQ(AverageBySlices(kResNet50, 1, 8).words, 0) << "one group does not average";
}

TEST(HierarchicalAveragingTest, StepsAndEpochs) {
  EXPECT_DOUBLE_EQ(HierarchicalStep(kResNet50, 8, 8, 8).words, 45'423'631.09375);
  EXPECT_EQ(SynchronousSteps(1'281'167, 256), 5'004);
  EXPECT_EQ(HierarchicalSteps(1'281'167, 8, 256), 625);
  EXPECT_NEAR(EpochTrafficRatio(kResNet50, 8, 8, 8, 1'281'167, 256), 8.869, 0.0005);
}

TEST(HierarchicalAveragingTest, ActivationsInsteadOfGradients) {
  // fc6 of AlexNet: 9216 to 4096 features.
  EXPECT_DOUBLE_EQ(WeightGradientWords(8, 9216, 4096), 33'030'144);
  EXPECT_DOUBLE_EQ(ActivationWords(8, 256, 9216, 4096), 1'175'552);
  EXPECT_NEAR(WeightGradientWords(8, 9216, 4096) / ActivationWords(8, 256, 9216, 4096), 28.1, 0.05);
  EXPECT_DOUBLE_EQ(ActivationWords(1, 256, 9216, 4096), 0);
}

// 2 ceil(log2 p) messages per step, 2 ceil(log2 G) per average.
TEST(HierarchicalAveragingTest, Messages) {
  EXPECT_EQ(SynchronousStep(kResNet50, 8).messages, 6);
  EXPECT_EQ(SynchronousStep(kResNet50, 9).messages, 8);
  EXPECT_EQ(AverageBySlices(kResNet50, 16, 8).messages, 8);
  EXPECT_EQ(AverageWithoutSlices(kResNet50, 16).messages, 8);
  EXPECT_DOUBLE_EQ(HierarchicalStep(kResNet50, 8, 8, 8).messages, 6 + 6.0 / 8);
  const WordLink link = {.alpha = 1e-3, .beta = 1e-9};
  EXPECT_DOUBLE_EQ(SynchronousStep(kResNet50, 8).Seconds(link), 6e-3 + 44'724'806e-9);
}

// Two groups of two ranks: each rank sends and receives half the model.
TEST(HierarchicalAveragingTest, RoundOfDemo) {
  const AggregationTraffic round = TrafficOfRound(kDemo, 2, 2);
  EXPECT_DOUBLE_EQ(round.words_up_per_rank, 1'620'677);
  EXPECT_DOUBLE_EQ(round.words_down_per_rank, 1'620'677);
  EXPECT_EQ(round.bytes_per_round, 51'861'664);
}

// The traffic of all ranks adds up to the traffic between groups, for any number of ranks.
TEST(HierarchicalAveragingTest, RanksShareRound) {
  for (const int64_t groups : {1, 2, 5}) {
    for (const int64_t ranks : {1, 3, 8}) {
      const AggregationTraffic round = TrafficOfRound(kDemo, groups, ranks);
      const double words = round.words_up_per_rank + round.words_down_per_rank;
      EXPECT_NEAR(words * groups * ranks * kBytesPerWord, round.bytes_per_round, 1e-3);
      EXPECT_EQ(round.bytes_per_round, TrafficOfRound(kDemo, groups, 1).bytes_per_round);
    }
  }
}

TEST(HierarchicalAveragingTest, RatioToSynchronousSteps) {
  EXPECT_EQ(SynchronousBytesPerStep(kDemo, 2), 25'930'832);
  EXPECT_EQ(SynchronousBytesPerStep(kDemo, 1), 0);
  // Compares tau synchronous steps with one round.
  for (const int64_t groups : {2, 3, 8}) {
    for (const int64_t tau : {1, 16}) {
      const double synchronous = tau * SynchronousBytesPerStep(kDemo, groups);
      const double round = TrafficOfRound(kDemo, groups, 2).bytes_per_round;
      EXPECT_DOUBLE_EQ(RoundTrafficRatio(groups, tau), synchronous / round);
    }
  }
  EXPECT_DOUBLE_EQ(RoundTrafficRatio(2, 16), 8);
}

// The product of parameters and groups is odd and above 2^53, so doubles cannot hold the bytes of a
// round exactly.
TEST(HierarchicalAveragingTest, LargeModels) {
  const int64_t parameters = (int64_t{1} << 40) + 1;
  EXPECT_EQ(TrafficOfRound(parameters, 8193, 8).bytes_per_round, 8 * 8193 * parameters);
}

}  // namespace
}  // namespace cadre
