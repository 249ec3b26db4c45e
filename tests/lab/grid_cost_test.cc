// Expected numbers computed by hand, for AlexNet without groups and for a tiny grid.
#include "lab/grid_cost.h"

#include <gtest/gtest.h>

#include "tests/plan/cost/alexnet.h"

namespace cadre {
namespace {

GridTerms ModelTerms(const LayerShape& layer, int64_t ranks, double batch) {
  return IntegratedTerms(layer, {.pr = ranks, .pc = 1}, batch);
}

TEST(GridCostTest, AlexNetShapesAndLimits) {
  const NetworkShape network = testing::ZooShape("alexnet");
  const struct {
    const char* name;
    int64_t weights, inputs, outputs;
    double simple, exact;
  } rows[] = {
      {"conv1", 34'848, 154'587, 290'400, 0.08, 0.24},
      {"conv2", 614'400, 69'984, 186'624, 2.19, 3.76},
      {"conv3", 884'736, 43'264, 64'896, 9.09, 11.69},
      {"conv4", 1'327'104, 64'896, 64'896, 13.63, 13.63},
      {"conv5", 884'736, 64'896, 43'264, 13.63, 10.22},
      {"fc6", 37'748'736, 9'216, 4'096, 6144, 3351.3},
      {"fc7", 16'777'216, 4'096, 4'096, 2730.7, 2730.7},
      {"fc8", 4'096'000, 4'096, 1'000, 2730.7, 891.2},
  };
  ASSERT_EQ(network.layers.size(), std::size(rows));
  int64_t outputs = 0;
  int64_t inputs = 0;
  for (size_t l = 0; l < std::size(rows); ++l) {
    const LayerShape& layer = network.layers[l];
    EXPECT_EQ(layer.name, rows[l].name);
    EXPECT_EQ(layer.weights, rows[l].weights) << layer.name;
    EXPECT_EQ(layer.inputs, rows[l].inputs) << layer.name;
    EXPECT_EQ(layer.outputs, rows[l].outputs) << layer.name;
    EXPECT_EQ(layer.convolution, l < 5) << layer.name;
    EXPECT_EQ(layer.first, l == 0) << layer.name;
    const double digits = l < 5 ? 0.005 : 0.05;
    EXPECT_NEAR(SimpleBatchLimit(layer), rows[l].simple, digits) << layer.name;
    EXPECT_NEAR(ExactBatchLimit(layer), rows[l].exact, digits) << layer.name;
    outputs += layer.outputs;
    inputs += l == 0 ? 0 : layer.inputs;
  }
  EXPECT_EQ(network.weights(), 62'367'776);
  EXPECT_EQ(network.convolution_weights(), 3'745'824);
  EXPECT_EQ(network.product_weights(), 58'621'952);
  EXPECT_EQ(outputs, 659'272);
  EXPECT_EQ(inputs, 260'448);
}

// 2 k_h k_w X_C / (3 Y_H Y_W).
TEST(GridCostTest, LimitOfConvolution) {
  const LayerShape conv2 = testing::ZooShape("alexnet").layers[1];
  EXPECT_DOUBLE_EQ(SimpleBatchLimit(conv2), 2.0 * 5 * 5 * 96 / (3 * 27 * 27));
}

// Below the exact limit, model parallelism moves fewer words than batch parallelism, above it more,
// for any number of ranks.
TEST(GridCostTest, ExactLimitIsCrossover) {
  for (const LayerShape& layer : testing::ZooShape("alexnet").layers) {
    const double limit = ExactBatchLimit(layer);
    for (const int64_t ranks : {2, 8, 512}) {
      const double by_batch = BatchTerms(layer, ranks).total().words;
      EXPECT_LT(ModelTerms(layer, ranks, 0.99 * limit).total().words, by_batch);
      EXPECT_GT(ModelTerms(layer, ranks, 1.01 * limit).total().words, by_batch);
      EXPECT_NEAR(ModelTerms(layer, ranks, limit).total().words / by_batch, 1, 1e-12);
    }
  }
}

// 2 x 3 ranks, 4 inputs, 6 outputs, 6 samples.
TEST(GridCostTest, TinyGrid) {
  const LayerShape layer = {.weights = 24, .inputs = 4, .outputs = 6};
  const GridTerms terms = IntegratedTerms(layer, {.pr = 2, .pc = 3}, 6);
  EXPECT_DOUBLE_EQ(terms.forward.words, 6);
  EXPECT_EQ(terms.forward.messages, 1);
  EXPECT_DOUBLE_EQ(terms.input_gradient.words, 8);
  EXPECT_EQ(terms.input_gradient.messages, 2);
  EXPECT_DOUBLE_EQ(terms.weight_gradient.words, 16);
  EXPECT_EQ(terms.weight_gradient.messages, 4);
  EXPECT_DOUBLE_EQ(terms.total().words, 30);
  EXPECT_DOUBLE_EQ(terms.total().Seconds({.alpha = 10, .beta = 1}), 100);
}

TEST(GridCostTest, OneRankIsFree) {
  const LayerShape layer = {.weights = 24, .inputs = 4, .outputs = 6};
  EXPECT_EQ(IntegratedTerms(layer, {}, 6).total().words, 0);
  EXPECT_EQ(IntegratedTerms(layer, {}, 6).total().messages, 0);
}

TEST(GridCostTest, FirstLayerHasNoInputGradient) {
  const LayerShape layer = {.first = true, .weights = 24, .inputs = 4, .outputs = 6};
  const GridTerms terms = ModelTerms(layer, 4, 8);
  EXPECT_EQ(terms.input_gradient.words, 0);
  EXPECT_EQ(terms.input_gradient.messages, 0);
  EXPECT_DOUBLE_EQ(terms.forward.words, 36);
}

TEST(GridCostTest, Halos) {
  EXPECT_DOUBLE_EQ(HaloWords(2, 5, 3, 3), 30) << "in each direction";
  EXPECT_DOUBLE_EQ(HaloWords(2, 5, 3, 1), 0) << "a kernel of size 1 needs no halo";
  const NetworkShape network = testing::ZooShape("alexnet");
  // 2048 samples on a 16 x 32 grid: 64 per column.
  const GridTerms conv1 = DomainTerms(network.layers[0], {.pr = 16, .pc = 32}, 2048);
  EXPECT_DOUBLE_EQ(conv1.forward.words, 217'920);
  EXPECT_DOUBLE_EQ(conv1.input_gradient.words, 1'689'600);
  EXPECT_EQ(conv1.forward.messages, 1);
  EXPECT_EQ(conv1.weight_gradient.messages, 18);
  const GridTerms conv3 = DomainTerms(network.layers[2], {.pr = 16, .pc = 32}, 2048);
  EXPECT_DOUBLE_EQ(conv3.forward.words, 212'992);
  EXPECT_DOUBLE_EQ(conv3.input_gradient.words, 319'488);
  // Without neighbours there is no halo.
  EXPECT_EQ(DomainTerms(network.layers[0], {.pr = 1, .pc = 512}, 2048).total().words,
            BatchTerms(network.layers[0], 512).total().words);
  const LayerShape point = {.convolution = true, .weights = 9, .in_width = 5, .in_channels = 3};
  EXPECT_EQ(DomainTerms(point, {.pr = 4, .pc = 1}, 8).forward.messages, 0);
}

TEST(GridCostTest, BandwidthOptimum) {
  const NetworkShape network = testing::ZooShape("alexnet");
  EXPECT_NEAR(BestRows(network, 512, 2048), 5.1, 0.05);
  NetworkShape products;
  products.layers.assign(network.layers.begin() + 5, network.layers.end());
  EXPECT_NEAR(BestRows(products, 512, 2048), 25.8, 0.05);
}

}  // namespace
}  // namespace cadre
