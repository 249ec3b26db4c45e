// The worked numbers of ResNet-50 (25,557,032 parameters), and the demo's by hand.
#include "coordinator/plan/traffic.h"

#include <gtest/gtest.h>

#include <vector>

namespace cadre {
namespace {

constexpr int64_t kResNet50 = 25'557'032;
constexpr int64_t kDemo = 3'241'354;

TEST(TrafficTest, AllReduce) {
  EXPECT_DOUBLE_EQ(AllReduceWords(kResNet50, 8), 44'724'806);
  EXPECT_DOUBLE_EQ(AllReduceWords(kResNet50, 64), 50'315'406.75);
  EXPECT_DOUBLE_EQ(AllReduceWords(kResNet50, 1), 0);
}

TEST(TrafficTest, AveragingAcrossGroups) {
  EXPECT_DOUBLE_EQ(NaiveAcrossWords(kResNet50, 8), 44'724'806);
  EXPECT_DOUBLE_EQ(ShardedAcrossWords(kResNet50, 8, 8), 5'590'600.75);
  EXPECT_DOUBLE_EQ(NaiveAcrossWords(kResNet50, 16), 47'919'435);
  EXPECT_DOUBLE_EQ(ShardedAcrossWords(kResNet50, 16, 8), 5'989'929.375);
  EXPECT_DOUBLE_EQ(ShardedAcrossWords(kResNet50, 16, 32), 1'497'482.34375);
  EXPECT_DOUBLE_EQ(ShardedAcrossWords(kResNet50, 1, 8), 0) << "one group averages with nobody";
}

TEST(TrafficTest, HierarchicalStepsAndPasses) {
  EXPECT_DOUBLE_EQ(HierarchicalStepWords(kResNet50, 8, 8, 8), 45'423'631.09375);
  EXPECT_NEAR(EpochSaving(kResNet50, 8, 8, 8, 1'281'167, 256), 8.869, 0.0005);
}

TEST(TrafficTest, ActivationsInPlaceOfGradients) {
  // fc6 of VGG and AlexNet: 9216 to 4096 features.
  EXPECT_DOUBLE_EQ(WeightGradientWords(8, 9216, 4096), 33'030'144);
  EXPECT_DOUBLE_EQ(ActivationWords(8, 256, 9216, 4096), 1'175'552);
  EXPECT_DOUBLE_EQ(ActivationWords(1, 256, 9216, 4096), 0);
}

// Two groups of two ranks: each rank sends half the model up and takes half of it down.
TEST(TrafficTest, ARoundOfTheDemo) {
  const AggregationTraffic round = TrafficOfRound(kDemo, 2, 2);
  EXPECT_DOUBLE_EQ(round.words_up_per_rank, 1'620'677);
  EXPECT_DOUBLE_EQ(round.words_down_per_rank, 1'620'677);
  EXPECT_EQ(round.bytes_per_round, 51'861'664);
  EXPECT_EQ(round.naive_bytes_per_round, 103'723'328);
}

// What all ranks send and take is what crosses the slow links, however many ranks share it.
TEST(TrafficTest, RanksShareTheRound) {
  for (const int64_t groups : {1, 2, 5}) {
    for (const int64_t ranks : {1, 3, 8}) {
      const AggregationTraffic round = TrafficOfRound(kDemo, groups, ranks);
      const double words = round.words_up_per_rank + round.words_down_per_rank;
      EXPECT_NEAR(words * static_cast<double>(groups * ranks * kBytesPerWord),
                  static_cast<double>(round.bytes_per_round), 1e-3);
      EXPECT_EQ(round.bytes_per_round, TrafficOfRound(kDemo, groups, 1).bytes_per_round);
    }
  }
}

TEST(TrafficTest, AveragingAgainstSynchronousSteps) {
  EXPECT_EQ(SynchronousBytesPerStep(kDemo, 2), 25'930'832);
  EXPECT_EQ(SynchronousBytesPerStep(kDemo, 1), 0);
  // tau steps of the one against one round of the other.
  for (const int64_t groups : {2, 3, 8}) {
    for (const int64_t tau : {1, 16}) {
      const auto synchronous = static_cast<double>(tau * SynchronousBytesPerStep(kDemo, groups));
      const auto round = static_cast<double>(TrafficOfRound(kDemo, groups, 2).bytes_per_round);
      EXPECT_DOUBLE_EQ(AggregationSaving(groups, tau), synchronous / round);
    }
  }
  EXPECT_DOUBLE_EQ(AggregationSaving(2, 16), 8);
}

// Two by three ranks, 4 to 6 features, 6 samples.
TEST(TrafficTest, ATinyGrid) {
  const GridWords words = GridLayerWords(2, 3, 6, 4, 6, 24);
  EXPECT_DOUBLE_EQ(words.gather_outputs, 6);
  EXPECT_DOUBLE_EQ(words.input_gradient, 8);
  EXPECT_DOUBLE_EQ(words.weight_gradient, 16);
}

TEST(TrafficTest, HalosAndGathers) {
  EXPECT_DOUBLE_EQ(HaloWords(2, 5, 3, 3), 30);
  EXPECT_DOUBLE_EQ(HaloWords(2, 5, 3, 1), 0) << "a kernel of one sees no neighbour";
  EXPECT_DOUBLE_EQ(HybridGatherWords(4, 32, 9216), 32 * 9216 * 3 / 4);
  EXPECT_DOUBLE_EQ(HybridGatherWords(1, 32, 9216), 0);
}

// AlexNet without groups, 512 ranks, 2048 samples.
struct AlexNetLayer {
  int64_t weights, in_features, out_features;
  // Of convolutions.
  int64_t in_width, in_channels, out_width, out_channels, kernel;
};
const std::vector<AlexNetLayer> kConvolutions = {
    {34'848, 154'587, 290'400, 227, 3, 55, 96, 11},
    {614'400, 69'984, 186'624, 27, 96, 27, 256, 5},
    {884'736, 43'264, 64'896, 13, 256, 13, 384, 3},
    {1'327'104, 64'896, 64'896, 13, 384, 13, 384, 3},
    {884'736, 64'896, 43'264, 13, 384, 13, 256, 3},
};
const std::vector<AlexNetLayer> kProducts = {
    {37'748'736, 9'216, 4'096}, {16'777'216, 4'096, 4'096}, {4'096'000, 4'096, 1'000}};

double GridSum(const std::vector<AlexNetLayer>& layers, int64_t pr, int64_t pc, bool from_input) {
  double sum = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const AlexNetLayer& layer = layers[i];
    const GridWords words =
        GridLayerWords(pr, pc, 2048, layer.in_features, layer.out_features, layer.weights);
    sum += words.gather_outputs + words.weight_gradient;
    // Nobody asks for the gradient of the model's input.
    if (i > 0 || !from_input) sum += words.input_gradient;
  }
  return sum;
}

TEST(TrafficTest, AlexNetOnGrids) {
  double convolutions = 0;
  for (const AlexNetLayer& layer : kConvolutions)
    convolutions += AllReduceWords(layer.weights, 512);
  EXPECT_DOUBLE_EQ(AllReduceWords(62'367'776, 512), 124'491'927.875) << "all by samples";
  EXPECT_DOUBLE_EQ(GridSum(kConvolutions, 512, 1, true) + GridSum(kProducts, 512, 1, false),
                   2'412'263'392)
      << "all by weights";
  struct Row {
    int64_t pr, pc;
    double uniform, samples_and_grid, domain_and_grid;
  };
  for (const Row& row : std::vector<Row>{
           {2, 256, 66'844'823.875, 66'046'007.875, 66'649'503.875},
           {4, 128, 45'102'279.875, 37'087'095.875, 38'294'087.875},
           {8, 64, 48'393'023.875, 23'135'735.875, 25'549'719.875},
           {16, 32, 78'362'427.875, 17'216'247.875, 22'044'215.875},
           {32, 16, 149'995'193.875, 16'368'887.875, 26'024'823.875},
       }) {
    const double products = GridSum(kProducts, row.pr, row.pc, false);
    EXPECT_DOUBLE_EQ(GridSum(kConvolutions, row.pr, row.pc, true) + products, row.uniform);
    EXPECT_DOUBLE_EQ(convolutions + products, row.samples_and_grid);
    double halos = 0;
    for (const AlexNetLayer& layer : kConvolutions) {
      const int64_t samples = 2048 / row.pc;
      halos += HaloWords(samples, layer.in_width, layer.in_channels, layer.kernel) +
               HaloWords(samples, layer.out_width, layer.out_channels, layer.kernel);
    }
    EXPECT_DOUBLE_EQ(convolutions + halos + products, row.domain_and_grid);
  }
  EXPECT_DOUBLE_EQ(HaloWords(64, 227, 3, 11), 217'920) << "conv1, 16 x 32, forward";
  EXPECT_DOUBLE_EQ(HaloWords(64, 55, 96, 11), 1'689'600) << "and backward";
}

// More than 2^31 words and 2^53 bytes per round are far off, but must not wrap.
TEST(TrafficTest, LargeModels) {
  EXPECT_EQ(TrafficOfRound(int64_t{1} << 40, 1000, 8).bytes_per_round, 8000 * (int64_t{1} << 40));
}

}  // namespace
}  // namespace cadre
