// Expected numbers computed by hand, for AlexNet without grouped convolutions, on 512 and 4096
// workers.
#include "lab/paper_strategies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/plan/cost/alexnet.h"

namespace cadre {
namespace {

constexpr double kMillisecondsPerSecond = 1e3;
// kGroupHybrid (Joo, Youn 2021): convolutions by samples; fully connected layers split inside
// subsets of the ranks. The others: Gholami et al. 2018.
constexpr Strategy kPaperStrategies[] = {Strategy::kBatch,
                                         Strategy::kModel,
                                         Strategy::kUniformGrid,
                                         Strategy::kConvBatchFcGrid,
                                         Strategy::kConvDomainFcGrid,
                                         Strategy::kGroupHybrid};

class PaperStrategiesTest : public ::testing::Test {
 protected:
  PaperCost Cost(Strategy strategy, std::optional<int64_t> rows = std::nullopt) const {
    const auto cost = CostOf(strategy, problem_, rows);
    EXPECT_TRUE(cost.ok()) << cost.status();
    return *cost;
  }

  const NetworkShape network_ = testing::ZooShape("alexnet");
  HybridProblem problem_ = testing::GholamiProblem(network_);
};

TEST_F(PaperStrategiesTest, PureStrategies) {
  const PaperCost batch = Cost(Strategy::kBatch);
  EXPECT_DOUBLE_EQ(batch.communication.words, 124'491'927.875);
  EXPECT_EQ(batch.communication.messages, 144);
  EXPECT_NEAR(kMillisecondsPerSecond * batch.communication_seconds, 83.2826, 5e-5);
  EXPECT_EQ(batch.grid, (Grid{1, 512}));
  const PaperCost model = Cost(Strategy::kModel);
  EXPECT_DOUBLE_EQ(model.communication.words, 2'412'263'392);
  EXPECT_NEAR(kMillisecondsPerSecond * model.communication_seconds, 1608.57, 0.005);
  EXPECT_EQ(model.grid, (Grid{512, 1}));
}

TEST_F(PaperStrategiesTest, Grids) {
  const struct {
    int64_t pr;
    double uniform, uniform_ms, batch, batch_ms, domain, domain_ms;
  } cases[] = {
      {2, 66'844'823.875, 44.863, 66'046'007.875, 44.325, 66'649'503.875, 44.747},
      {4, 45'102'279.875, 30.380, 37'087'095.875, 25.025, 38'294'087.875, 25.849},
      {8, 48'393'023.875, 32.586, 23'135'735.875, 15.730, 25'549'719.875, 17.359},
      {16, 78'362'427.875, 52.578, 17'216'247.875, 11.789, 22'044'215.875, 15.028},
      {32, 149'995'193.875, 100.34, 16'368'887.875, 11.231, 26'024'823.875, 17.688},
  };
  for (const auto& c : cases) {
    const PaperCost uniform = Cost(Strategy::kUniformGrid, c.pr);
    EXPECT_DOUBLE_EQ(uniform.communication.words, c.uniform) << c.pr;
    EXPECT_NEAR(kMillisecondsPerSecond * uniform.communication_seconds, c.uniform_ms,
                c.pr == 32 ? 0.005 : 0.0005);
    const PaperCost batch = Cost(Strategy::kConvBatchFcGrid, c.pr);
    EXPECT_DOUBLE_EQ(batch.communication.words, c.batch) << c.pr;
    EXPECT_NEAR(kMillisecondsPerSecond * batch.communication_seconds, c.batch_ms, 0.0005);
    const PaperCost domain = Cost(Strategy::kConvDomainFcGrid, c.pr);
    EXPECT_DOUBLE_EQ(domain.communication.words, c.domain) << c.pr;
    EXPECT_NEAR(kMillisecondsPerSecond * domain.communication_seconds, c.domain_ms, 0.0005);
  }
}

TEST_F(PaperStrategiesTest, BestGrids) {
  EXPECT_EQ(Cost(Strategy::kUniformGrid).grid, (Grid{4, 128}));
  EXPECT_EQ(Cost(Strategy::kConvBatchFcGrid).grid, (Grid{32, 16}));
  EXPECT_EQ(Cost(Strategy::kConvDomainFcGrid).grid, (Grid{16, 32}));
  const double batch = Cost(Strategy::kBatch).communication_seconds;
  const double words = Cost(Strategy::kBatch).communication.words;
  EXPECT_NEAR(batch / Cost(Strategy::kUniformGrid).communication_seconds, 2.74, 0.005);
  const PaperCost hybrid = Cost(Strategy::kConvBatchFcGrid);
  EXPECT_NEAR(batch / hybrid.communication_seconds, 7.42, 0.005);
  EXPECT_NEAR(words / hybrid.communication.words, 7.61, 0.005);
  // The ratios without the all-reduce of fc6's input gradient, in case the paper does not count it.
  const CommunicationCost inputs =
      IntegratedTerms(network_.layers[5], hybrid.grid, 2048).input_gradient;
  EXPECT_NEAR(words / (hybrid.communication.words - inputs.words), 8.84, 0.005);
  EXPECT_NEAR(batch / (hybrid.communication_seconds - inputs.Seconds(problem_.link)), 8.60, 0.005);
  EXPECT_NEAR(*Cost(Strategy::kUniformGrid).closed_form_rows, 5.1, 0.05);
  EXPECT_NEAR(*hybrid.closed_form_rows, 25.8, 0.05);
}

// Two variants with fewer weights: torchvision's AlexNet, and AlexNet whose second, fourth and
// fifth convolutions have two groups. The ratios do not count the input gradient of fc6.
TEST_F(PaperStrategiesTest, OtherAlexNets) {
  const struct {
    std::vector<int64_t> weights;
    double words, seconds;
  } cases[] = {
      {{23'232, 307'200, 663'552, 884'736, 589'824}, 10.57, 10.21},
      {{34'848, 307'200, 884'736, 663'552, 442'368}, 10.80, 10.43},
  };
  for (const auto& c : cases) {
    NetworkShape network = network_;
    for (int l = 0; l < 5; ++l) network.layers[l].weights = c.weights[l];
    const HybridProblem problem = testing::GholamiProblem(network);
    const PaperCost batch = *CostOf(Strategy::kBatch, problem);
    const PaperCost grid = *CostOf(Strategy::kConvBatchFcGrid, problem, 32);
    const CommunicationCost inputs =
        IntegratedTerms(network.layers[5], grid.grid, 2048).input_gradient;
    EXPECT_NEAR(batch.communication.words / (grid.communication.words - inputs.words), c.words,
                0.005);
    EXPECT_NEAR(
        batch.communication_seconds / (grid.communication_seconds - inputs.Seconds(problem.link)),
        c.seconds, 0.005);
  }
}

TEST_F(PaperStrategiesTest, GroupHybrid) {
  const PaperCost cost = Cost(Strategy::kGroupHybrid);
  EXPECT_EQ(cost.grid, (Grid{32, 16}));
  EXPECT_NEAR(*cost.closed_form_rows, 28.61, 0.005);
  EXPECT_DOUBLE_EQ(cost.communication.words, 15'353'079.875);
  EXPECT_NEAR(cost.state_bytes / 1e6, 66.9, 0.05);
  EXPECT_NEAR(cost.activation_bytes, HybridActivationBytes(problem_, 32), 1e-6);
  EXPECT_EQ(cost.layers[0].worth_splitting, std::nullopt);
  EXPECT_EQ(cost.layers[7].worth_splitting, true);
}

// More workers than samples: rows of images are split further.
TEST_F(PaperStrategiesTest, BeyondTheBatch) {
  problem_ = testing::GholamiProblem(network_, 4096, 512);
  EXPECT_NEAR(kMillisecondsPerSecond * Cost(Strategy::kConvDomainFcGrid, 8).communication_seconds,
              15.242, 0.0005);
  EXPECT_NEAR(kMillisecondsPerSecond * Cost(Strategy::kConvDomainFcGrid, 16).communication_seconds,
              10.443, 0.0005);
  EXPECT_NEAR(kMillisecondsPerSecond * Cost(Strategy::kConvDomainFcGrid, 32).communication_seconds,
              8.166, 0.0005);
  EXPECT_TRUE(Cost(Strategy::kConvDomainFcGrid).enough_samples);
  EXPECT_FALSE(Cost(Strategy::kBatch).enough_samples);
  EXPECT_FALSE(Cost(Strategy::kConvBatchFcGrid).enough_samples);
  EXPECT_LE(Cost(Strategy::kUniformGrid).grid.pc, 512);
}

TEST_F(PaperStrategiesTest, LayersAddUp) {
  problem_.flops = 1e12;
  for (const Strategy strategy : kPaperStrategies) {
    const PaperCost cost = Cost(strategy);
    CommunicationCost sum;
    double seconds = 0;
    double memory = 0;
    ASSERT_EQ(cost.layers.size(), 8u);
    for (const PaperLayer& layer : cost.layers) {
      sum += layer.communication;
      seconds += layer.seconds;
      memory += layer.state_bytes + layer.activation_bytes;
    }
    EXPECT_DOUBLE_EQ(sum.words, cost.communication.words);
    EXPECT_EQ(sum.messages, cost.communication.messages);
    EXPECT_NEAR(seconds, cost.communication_seconds, 1e-12);
    EXPECT_NEAR(memory, cost.memory_bytes(), 1);
    EXPECT_DOUBLE_EQ(cost.step_seconds(), cost.communication_seconds + cost.compute_seconds);
    EXPECT_EQ(cost.grid.ranks(), 512);
  }
  EXPECT_EQ(Cost(Strategy::kConvDomainFcGrid).layers[0].parallelism, "samples/32 rows/16");
  EXPECT_EQ(Cost(Strategy::kConvBatchFcGrid).layers[0].parallelism, "samples/512");
  EXPECT_EQ(Cost(Strategy::kConvBatchFcGrid).layers[5].parallelism, "samples/16 outputs/32");
  EXPECT_EQ(Cost(Strategy::kModel).layers[5].parallelism, "outputs/512");
}

TEST_F(PaperStrategiesTest, MemoryExcludesGrids) {
  problem_.memory_bytes = 100e6;
  EXPECT_EQ(Cost(Strategy::kConvBatchFcGrid).grid, (Grid{32, 16}));
  problem_.memory_bytes = 81e6;
  EXPECT_GT(Cost(Strategy::kConvBatchFcGrid).grid.pr, 32);
  const auto batch = CostOf(Strategy::kBatch, problem_);
  EXPECT_EQ(batch.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(batch.status().message()),
              ::testing::AllOf(::testing::HasSubstr("batch needs"), ::testing::HasSubstr("more")));
}

TEST_F(PaperStrategiesTest, RejectsInvalidRows) {
  for (const int64_t rows : {-1, 0, 3, 1024}) {
    EXPECT_EQ(CostOf(Strategy::kUniformGrid, problem_, rows).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(CostOf(Strategy::kBatch, problem_, 2).ok());
  EXPECT_FALSE(CostOf(Strategy::kModel, problem_, 2).ok());
}

TEST_F(PaperStrategiesTest, FewestWordsIfLinkIsUnknown) {
  problem_.link = {};
  EXPECT_EQ(Cost(Strategy::kUniformGrid).grid, (Grid{4, 128}));
  EXPECT_EQ(Cost(Strategy::kUniformGrid).communication_seconds, 0);
}

TEST_F(PaperStrategiesTest, OneWorkerIsFree) {
  problem_ = testing::GholamiProblem(network_, 1, 32);
  for (const Strategy strategy : kPaperStrategies) {
    EXPECT_EQ(Cost(strategy).communication.words, 0) << StrategyName(strategy);
    EXPECT_EQ(Cost(strategy).communication.messages, 0);
  }
}

// Networks without convolutions, with branches, and with tokens as input.
TEST(NetworkShapeTest, Zoo) {
  const NetworkShape mlp = testing::ZooShape("mlp");
  EXPECT_EQ(mlp.convolution_weights(), 0);
  EXPECT_TRUE(mlp.layers[0].first);
  EXPECT_FALSE(mlp.layers[1].first);
  const NetworkShape resnet = testing::ZooShape("resnet50");
  // 25,557,032 parameters, of them 53,120 scales and shifts and 1,000 biases.
  EXPECT_EQ(resnet.weights(), 25'557'032 - 53'120 - 1'000);
  EXPECT_EQ(resnet.layers.size(), 54u);
  // With biases 14,714,688 and 123,642,856.
  const NetworkShape vgg = testing::ZooShape("vgg16");
  EXPECT_EQ(vgg.convolution_weights(), 14'714'688 - 4'224);
  EXPECT_EQ(vgg.product_weights(), 123'642'856 - 9'192);
  const NetworkShape gpt = testing::ZooShape("gpt");
  EXPECT_TRUE(gpt.layers[0].first) << "an embedding has no input gradient";
  EXPECT_GT(gpt.product_weights(), 10'000'000);
  for (const char* name : {"gpt", "inception-v3", "lenet", "mlp", "resnet18", "vgg16"}) {
    const NetworkShape network = testing::ZooShape(name);
    for (const Strategy strategy : kPaperStrategies) {
      const auto cost = CostOf(strategy, testing::GholamiProblem(network, 24, 96));
      ASSERT_TRUE(cost.ok()) << name << cost.status();
      EXPECT_GT(cost->communication_seconds, 0) << name;
    }
  }
}

}  // namespace
}  // namespace cadre
