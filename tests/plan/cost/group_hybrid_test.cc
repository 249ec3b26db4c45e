// Expected numbers computed by hand, for AlexNet and VGG-16 in groups.
#include "plan/cost/group_hybrid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/plan/cost/alexnet.h"

namespace cadre {
namespace {

class GroupHybridTest : public ::testing::Test {
 protected:
  HybridProblem Problem(int64_t workers, double samples) const {
    return testing::GholamiProblem(network_, workers, samples * workers);
  }

  const NetworkShape network_ = testing::ZooShape("alexnet");
};

TEST_F(GroupHybridTest, ClosedForm) {
  EXPECT_EQ(HybridActivationWords(network_), 35'816);
  EXPECT_EQ(network_.product_weights(), 58'621'952);
  const struct {
    int64_t workers;
    double samples, best, whole, words;
    int64_t chosen;
  } rows[] = {
      {16, 32, 10.11, 116'939'580, 22'373'948, 8},
      {64, 32, 10.11, 122'786'559, 28'220'927, 8},
      {512, 4, 28.61, 124'491'927.875, 15'353'079.875, 32},
  };
  for (const auto& row : rows) {
    const HybridProblem problem = Problem(row.workers, row.samples);
    EXPECT_NEAR(BestGroup(problem), row.best, 0.005);
    EXPECT_DOUBLE_EQ(GroupHybridCommunication(problem, 1).words, row.whole);
    EXPECT_DOUBLE_EQ(GroupHybridCommunication(problem, row.chosen).words, row.words);
    EXPECT_EQ(*ChooseGroup(problem), row.chosen);
    for (const int64_t group : DivisorsOf(row.workers)) {
      EXPECT_GE(GroupHybridCommunication(problem, group).words, row.words) << group;
    }
  }
}

TEST_F(GroupHybridTest, ClosedFormOfVgg) {
  const NetworkShape vgg = testing::ZooShape("vgg16");
  EXPECT_EQ(vgg.product_weights(), 123'633'664);
  EXPECT_EQ(HybridActivationWords(vgg), 67'560);
  EXPECT_NEAR(BestGroup(testing::GholamiProblem(vgg, 64, 64 * 16)), 15.12, 0.005);
  EXPECT_NEAR(BestGroup(testing::GholamiProblem(vgg, 64, 64 * 32)), 10.69, 0.005);
}

TEST_F(GroupHybridTest, ParameterState) {
  EXPECT_NEAR(HybridStateBytes(network_, 1) / 1e6, 748.4, 0.05);
  EXPECT_NEAR(HybridStateBytes(network_, 8) / 1e6, 132.9, 0.05);
  EXPECT_NEAR(HybridStateBytes(network_, 32) / 1e6, 66.9, 0.05);
}

// (g - 1) b S + 2 (1 / g - 1 / N) |W_fc| plus the all-reduce of the convolutions.
TEST_F(GroupHybridTest, LayersAddUp) {
  const HybridProblem problem = Problem(48, 7);
  for (const int64_t group : {1, 2, 3, 6, 48}) {
    const double g = group;
    const double words =
        2.0 * 47 / 48 * 3'745'824 + (g - 1) * 7 * 35'816 + 2 * (1 / g - 1.0 / 48) * 58'621'952;
    EXPECT_NEAR(GroupHybridCommunication(problem, group).words / words, 1, 1e-12) << group;
  }
  // Convolutions 5 x 2 x 6; 3 for the gather of fc6's inputs; outputs and input gradients of three
  // layers, 3 each; all-reduces over 8 groups, 3 x 2 x 3.
  EXPECT_EQ(GroupHybridCommunication(problem, 6).messages, 5 * 12 + 3 + 3 * 6 + 3 * 6);
}

TEST_F(GroupHybridTest, Seconds) {
  HybridProblem problem = Problem(512, 4);
  EXPECT_DOUBLE_EQ(DataParallelCommunication(problem).words, 124'491'927.875);
  EXPECT_EQ(DataParallelCommunication(problem).messages, 18) << "one all-reduce";
  EXPECT_DOUBLE_EQ(DataParallelSeconds(problem), 18 * 2e-6 + 124'491'927.875 * 4 / 6e9);
  // Sums of d over all layers: 659,272 outputs and 154,587 + 260,448 inputs.
  EXPECT_DOUBLE_EQ(ModelParallelCommunication(problem).words,
                   511.0 / 512 * 2048 * (659'272 + 154'587 + 260'448));
  EXPECT_EQ(ModelParallelCommunication(problem).messages, 2 * 8 * 9);
  problem.flops = 1e12;
  const double computing = 3 * network_.flops * 4 / 1e12;
  EXPECT_GT(computing, 0);
  EXPECT_DOUBLE_EQ(HybridComputeSeconds(problem), computing);
  EXPECT_DOUBLE_EQ(GroupHybridSeconds(problem, 32),
                   computing + GroupHybridCommunication(problem, 32).Seconds(problem.link));
}

TEST_F(GroupHybridTest, MemoryForcesLargerGroups) {
  HybridProblem problem = Problem(512, 4);
  problem.memory_bytes = HybridStateBytes(network_, 64) + HybridActivationBytes(problem, 64);
  EXPECT_EQ(*ChooseGroup(problem), 64);
  problem.memory_bytes = 1e6;
  const auto none = ChooseGroup(problem);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(none.status().message()), ::testing::HasSubstr("group of 512"));
}

TEST_F(GroupHybridTest, RoundsToDivisors) {
  // 28.6 lies between 25 and 125.
  EXPECT_EQ(*ChooseGroup(Problem(125, 4)), 25);
  // Primes have the divisors 1 and N: N is cheaper for 509, 1 for 5,003.
  EXPECT_EQ(*ChooseGroup(Problem(509, 4)), 509);
  EXPECT_EQ(*ChooseGroup(Problem(5'003, 4)), 1);
  EXPECT_EQ(*ChooseGroup(Problem(1, 4)), 1);
  // Fewer workers than g*.
  EXPECT_EQ(*ChooseGroup(Problem(4, 4)), 4);
  NetworkShape convolutions = network_;
  convolutions.layers.resize(5);
  EXPECT_EQ(BestGroup(testing::GholamiProblem(convolutions)), 1);
  EXPECT_EQ(*ChooseGroup(testing::GholamiProblem(convolutions)), 1);
}

TEST_F(GroupHybridTest, FewestWordsIfLinkIsUnknown) {
  HybridProblem problem = Problem(512, 4);
  problem.link = {};
  EXPECT_EQ(*ChooseGroup(problem), 32);
}

// fc8 has far fewer weights than the others but gathers almost as much.
TEST_F(GroupHybridTest, SplitsLayersIfThatPays) {
  EXPECT_EQ(LayersWorthSplitting(Problem(512, 4), 32),
            std::vector<bool>({false, false, false, false, false, true, true, true}));
  EXPECT_EQ(LayersWorthSplitting(Problem(512, 4), 1), std::vector<bool>(8, false));
  // 256 samples in groups of 32: 2 (1 - 1 / 32) 4,096,000 words of weights against 31 x 256 x
  // 5,096 of activations.
  const std::vector<bool> large = LayersWorthSplitting(Problem(512, 256), 32);
  EXPECT_FALSE(large[7]);
}

// Compares the result with all ways to split three layers.
TEST_F(GroupHybridTest, SplitsAreOptimal) {
  for (const double samples : {1.0, 4.0, 32.0, 100.0, 400.0}) {
    for (const int64_t group : {2, 8, 64}) {
      const HybridProblem problem = Problem(64, samples);
      const auto words = [&](const std::vector<bool>& split) {
        double sum = 0;
        for (size_t l = 5; l < 8; ++l) {
          const LayerShape& layer = network_.layers[l];
          const double g = group;
          const double weights = layer.weights;
          if (!split[l]) {
            sum += 2 * (1 - 1.0 / 64) * weights;
            continue;
          }
          const int64_t gathered = split[l - 1] ? 1 : 2;
          sum += (g - 1) * samples * (layer.outputs + gathered * layer.inputs);
          sum += 2 * (1 / g - 1.0 / 64) * weights;
        }
        return sum;
      };
      HybridProblem by_words = problem;
      by_words.link = {};
      const double chosen = words(LayersWorthSplitting(by_words, group));
      for (int ways = 0; ways < 8; ++ways) {
        std::vector<bool> split(8, false);
        for (int l = 0; l < 3; ++l) split[5 + l] = (ways >> l & 1) == 1;
        EXPECT_LE(chosen, words(split) * (1 + 1e-12)) << samples << " " << group << " " << ways;
      }
    }
  }
}

TEST(DivisorsTest, Ascending) {
  EXPECT_EQ(DivisorsOf(1), std::vector<int64_t>({1}));
  EXPECT_EQ(DivisorsOf(12), std::vector<int64_t>({1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(DivisorsOf(49), std::vector<int64_t>({1, 7, 49}));
  EXPECT_EQ(DivisorsOf(100'000).size(), 36u);
}

}  // namespace
}  // namespace cadre
