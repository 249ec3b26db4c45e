#include "model/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/parameter_index.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::DemoSpec;
using ::cadre::testing::SpecOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kLoss[] = "layer { name: 'loss' softmax_cross_entropy {} }";
// A layer that produces two classes from any input.
constexpr char kEnd[] = "layer { name: 'end' fully_connected { out_features: 2 } }";

Graph GraphOf(const std::string& model) {
  const auto graph = Graph::FromModel(SpecOf(absl::StrCat("model {", model, "}")).model());
  EXPECT_TRUE(graph.ok()) << graph.status();
  return graph.ok() ? *graph : Graph();
}

// A model with an image as input.
std::string Image(const std::string& input, const std::string& layers) {
  return absl::StrCat("input {", input, "}", layers);
}

// The layer of one operation on an image.
GraphLayer LayerOf(const std::string& input, const std::string& op) {
  const Graph graph =
      GraphOf(Image(input, absl::StrCat("layer { name: 'x' ", op, "}", kEnd, kLoss)));
  return graph.size() > 0 ? graph[0] : GraphLayer();
}

Shape OutputOf(const std::string& input, const std::string& op) {
  return LayerOf(input, op).output;
}

TEST(GraphTest, ShapesOfTheDemo) {
  const auto graph = Graph::FromModel(DemoSpec().model());
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::vector<std::string> shapes;
  for (const GraphLayer& layer : graph->layers()) shapes.push_back(layer.output.ToString());
  EXPECT_THAT(shapes, ElementsAre("[28, 28, 32]", "[28, 28, 32]", "[14, 14, 32]", "[14, 14, 64]",
                                  "[14, 14, 64]", "[7, 7, 64]", "[3136]", "[1024]", "[1024]",
                                  "[10]", "[1]"));
  EXPECT_EQ(graph->input(), (Shape{28, 28, 1}));
  EXPECT_FALSE(graph->takes_tokens());
  EXPECT_EQ(graph->classes(), 10);
  EXPECT_EQ(graph->labels_per_sample(), 1);
  EXPECT_EQ((*graph)[3].parameters[0].shape, (Shape{64, 32, 3, 3}));
  EXPECT_EQ((*graph)[7].parameters[0].shape, (Shape{1024, 3136}));
  EXPECT_EQ((*graph)[7].flops, 2 * 1024 * 3136);
  EXPECT_EQ((*graph)[0].flops, 2 * 32 * 28 * 28 * 9);
}

TEST(GraphTest, WindowsWithStridesAndPadding) {
  const std::string input = "channels: 3 height: 11 width: 8";
  EXPECT_EQ(OutputOf(input, "convolution { out_channels: 5 kernel: 3 }"), (Shape{9, 6, 5}));
  EXPECT_EQ(OutputOf(input, "convolution { out_channels: 5 kernel: 3 stride: 2 padding: 1 }"),
            (Shape{6, 4, 5}));
  EXPECT_EQ(OutputOf(input, "convolution { out_channels: 1 kernel: 8 }"), (Shape{4, 1, 1}));
  EXPECT_EQ(OutputOf(input, "max_pool { kernel: 2 }"), (Shape{5, 4, 3}))
      << "the odd row is dropped";
  EXPECT_EQ(OutputOf(input, "average_pool { kernel: 3 stride: 1 padding: 1 }"), (Shape{11, 8, 3}));
  EXPECT_EQ(OutputOf(input, "max_pool { kernel_height: 1 kernel_width: 2 }"), (Shape{11, 4, 3}));
  EXPECT_EQ(OutputOf(input,
                     "max_pool { kernel_height: 3 kernel_width: 2 stride_height: 2 "
                     "stride_width: 1 padding_height: 1 }"),
            (Shape{6, 7, 3}));
  EXPECT_EQ(OutputOf(input, "max_pool { kernel: 2 ceil_mode: true }"), (Shape{6, 4, 3}));
  // The additional row of windows would begin in the padding at the end.
  EXPECT_EQ(OutputOf(input, "max_pool { kernel: 2 stride: 3 padding: 1 ceil_mode: true }"),
            (Shape{4, 3, 3}));
  EXPECT_EQ(OutputOf(input, "convolution { out_channels: 2 kernel: 3 dilation: 3 }"),
            (Shape{5, 2, 2}));
  EXPECT_EQ(OutputOf(input, "global_average_pool {}"), (Shape{3}));
  EXPECT_EQ(OutputOf(input, "flatten {}"), (Shape{3 * 11 * 8}));
}

TEST(GraphTest, RectangularKernels) {
  const GraphLayer layer = LayerOf("channels: 4 height: 11 width: 8",
                                   "convolution { out_channels: 6 kernel_height: 1 kernel_width: 7"
                                   "  padding_width: 3 groups: 2 no_bias: true }");
  EXPECT_EQ(layer.output, (Shape{11, 8, 6}));
  ASSERT_EQ(layer.parameters.size(), 1U);
  EXPECT_EQ(layer.parameters[0].shape, (Shape{6, 2, 1, 7}));
  EXPECT_EQ(layer.parameters[0].initial_stddev, std::sqrt(2.0 / 14));
  EXPECT_EQ(layer.groups, 2);
  EXPECT_EQ(layer.window, (Window{.kernel_width = 7, .padding_width = 3}));
  EXPECT_EQ(layer.flops, 2 * 11 * 8 * 6 * 2 * 7);
}

TEST(GraphTest, Defaults) {
  const std::string input = "channels: 3 height: 11 width: 8";
  const v1::Convolution conv =
      LayerOf(input, "convolution { out_channels: 5 kernel: 3 }").settings.convolution();
  EXPECT_EQ(conv.stride(), 1U);
  EXPECT_EQ(conv.dilation(), 1U);
  EXPECT_EQ(conv.groups(), 1U);
  EXPECT_EQ(LayerOf(input, "max_pool { kernel: 3 }").settings.max_pool().stride(), 3U);
  EXPECT_EQ(LayerOf(input, "max_pool { kernel: 3 }").window.stride_width, 3);
  const v1::BatchNorm norm = LayerOf(input, "batch_norm {}").settings.batch_norm();
  EXPECT_EQ(norm.epsilon(), 1e-5F);
  EXPECT_EQ(norm.momentum(), 0.1F);
  EXPECT_EQ(LayerOf(input, "batch_norm { epsilon: 1e-3 }").settings.batch_norm().epsilon(), 1e-3F);
  const v1::LocalResponseNorm lrn =
      LayerOf(input, "local_response_norm { k: 1 }").settings.local_response_norm();
  EXPECT_EQ(lrn.size(), 5U);
  EXPECT_EQ(lrn.alpha(), 1e-4F);
  EXPECT_EQ(lrn.beta(), 0.75F);
  EXPECT_EQ(lrn.k(), 1);
}

TEST(GraphTest, ElementwiseLayersKeepShape) {
  for (const char* op : {"relu {}", "gelu {}", "sigmoid {}", "tanh {}", "dropout { rate: 0.5 }",
                         "batch_norm {}", "local_response_norm {}"}) {
    SCOPED_TRACE(op);
    const GraphLayer layer = LayerOf("channels: 3 height: 4 width: 5", op);
    EXPECT_EQ(layer.output, (Shape{4, 5, 3}));
    EXPECT_GT(layer.flops, 0);
  }
}

TEST(GraphTest, BatchNormHasRunningStatistics) {
  const GraphLayer layer = LayerOf("channels: 3 height: 4 width: 5", "batch_norm {}");
  ASSERT_EQ(layer.parameters.size(), 4U);
  const char* const names[] = {"scale", "shift", "mean", "variance"};
  const ParameterRole roles[] = {ParameterRole::kScale, ParameterRole::kShift,
                                 ParameterRole::kRunningMean, ParameterRole::kRunningVariance};
  const float values[] = {1, 0, 0, 1};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(layer.parameters[i].name, names[i]);
    EXPECT_EQ(layer.parameters[i].role, roles[i]);
    EXPECT_EQ(layer.parameters[i].shape, (Shape{3}));
    EXPECT_EQ(layer.parameters[i].initial_stddev, 0);
    EXPECT_EQ(layer.parameters[i].initial_value, values[i]);
    EXPECT_EQ(IsStatistic(layer.parameters[i].role), i >= 2);
  }
}

TEST(GraphTest, FullyConnectedFlattensImages) {
  const Graph graph = GraphOf(Image("channels: 2 height: 3 width: 4",
                                    "layer { name: 'r' relu {} }"
                                    "layer { name: 'a' fully_connected { out_features: 7 } }"
                                    "layer { name: 'b' relu {} }" +
                                        std::string(kLoss)));
  ASSERT_EQ(graph.size(), 5);
  EXPECT_EQ(graph[1].name, "a/flatten");
  EXPECT_EQ(graph[1].kind, LayerKind::kFlatten);
  EXPECT_EQ(graph[1].spec_layer, 1);
  EXPECT_EQ(graph[1].output, (Shape{24}));
  EXPECT_TRUE(graph[1].settings.has_flatten());
  EXPECT_EQ(graph[2].name, "a");
  EXPECT_EQ(graph[2].spec_layer, 1);
  EXPECT_EQ(graph[2].parameters[0].shape, (Shape{7, 24}));
  EXPECT_EQ(graph[3].spec_layer, 2);
  EXPECT_EQ(graph[3].output, (Shape{7}));
  EXPECT_EQ(graph.classes(), 7);
}

TEST(GraphTest, Branches) {
  const Graph graph =
      GraphOf(Image("channels: 2 height: 4 width: 4",
                    "layer { name: 'a' convolution { out_channels: 2 kernel: 3 padding: 1 } }"
                    "layer { name: 'b' relu {} }"
                    "layer { name: 'sum' input: 'b' input: 'input' input: 'a' add {} }"
                    "layer { name: 'c' input: 'a' convolution { out_channels: 3 kernel: 1 } }"
                    "layer { name: 'joined' input: 'sum' input: 'c' input: 'sum' concat {} }"
                    "layer { name: 'fc' fully_connected { out_features: 2 } }" +
                        std::string(kLoss)));
  ASSERT_EQ(graph.size(), 8);
  EXPECT_THAT(graph[2].inputs, ElementsAre(1, Graph::kInput, 0));
  EXPECT_THAT(graph[4].inputs, ElementsAre(2, 3, 2));
  EXPECT_EQ(graph[4].output, (Shape{4, 4, 7}));
  EXPECT_EQ(graph[4].input(1), (Shape{4, 4, 3}));
  EXPECT_THAT(graph.consumers(Graph::kInput), ElementsAre(0, 2));
  EXPECT_THAT(graph.consumers(0), ElementsAre(1, 2, 3));
  EXPECT_THAT(graph.consumers(2), ElementsAre(4, 4)) << "once for each use";
  EXPECT_THAT(graph.consumers(7), IsEmpty());
}

TEST(GraphTest, ConcatenatesFeatures) {
  const Graph graph = GraphOf(Image("channels: 5 height: 4 width: 4",
                                    "layer { name: 'a' global_average_pool {} }"
                                    "layer { name: 'b' input: 'input' flatten {} }"
                                    "layer { name: 'j' input: 'a' input: 'b' concat {} }" +
                                        std::string(kLoss)));
  ASSERT_EQ(graph.size(), 4);
  EXPECT_EQ(graph[2].output, (Shape{85}));
}

TEST(GraphTest, Sequences) {
  const Graph graph = GraphOf(
      "tokens { length: 6 }"
      "layer { name: 'e' embedding { vocabulary: 9 features: 8 positions: true } }"
      "layer { name: 'n' layer_norm { epsilon: 1e-6 } }"
      "layer { name: 'a' attention { heads: 2 } }"
      "layer { name: 'h' fully_connected { out_features: 9 no_bias: true } }" +
      std::string(kLoss));
  ASSERT_EQ(graph.size(), 5);
  EXPECT_TRUE(graph.takes_tokens());
  EXPECT_EQ(graph.input(), (Shape{6}));
  EXPECT_EQ(graph[0].output, (Shape{6, 8}));
  EXPECT_EQ(graph[2].output, (Shape{6, 8}));
  EXPECT_EQ(graph[3].output, (Shape{6, 9})) << "no flattening: the last dimension is multiplied";
  EXPECT_EQ(graph.classes(), 9);
  EXPECT_EQ(graph.labels_per_sample(), 6);
  std::vector<std::string> parameters;
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  for (const Parameter& parameter : index.parameters()) {
    parameters.push_back(absl::StrCat(parameter.name, parameter.shape.ToString()));
  }
  EXPECT_THAT(parameters,
              ElementsAre("e/weight[9, 8]", "e/positions[6, 8]", "n/scale[8]", "n/shift[8]",
                          "a/qkv_weight[2, 3, 4, 8]", "a/qkv_bias[2, 3, 4]",
                          "a/out_weight[8, 2, 4]", "a/out_bias[8]", "h/weight[9, 8]"));
  // Two products of 6 x 8 by 8 x 32, and 6 x 6 scores of 8 features, twice.
  EXPECT_EQ(graph[2].flops, 2 * 6 * 8 * 32 + 2 * 2 * 6 * 6 * 8);
}

TEST(GraphTest, PaddedAttentionReadsTheTokens) {
  const Graph graph = GraphOf(
      "tokens { length: 6 }"
      "layer { name: 'e' embedding { vocabulary: 9 features: 8 } }"
      "layer { name: 'a' attention { heads: 2 } }"
      "layer { name: 'p' attention { heads: 2 padding_token: 0 } }" +
      std::string(kLoss));
  EXPECT_FALSE(HasPadding(graph[1]));
  EXPECT_THAT(graph[1].inputs, ElementsAre(0));
  EXPECT_TRUE(HasPadding(graph[2])) << "token 0 is a token";
  EXPECT_THAT(graph[2].inputs, ElementsAre(1, Graph::kInput));
  EXPECT_EQ(graph[2].input(1), (Shape{6}));
  EXPECT_THAT(graph.consumers(Graph::kInput), ElementsAre(0, 2));
}

TEST(GraphTest, InitialDeviations) {
  const Graph graph = GraphOf(
      "tokens { length: 6 }"
      "layer { name: 'e' embedding { vocabulary: 9 features: 8 positions: true } }"
      "layer { name: 'a' attention { heads: 2 } }"
      "layer { name: 'f' fully_connected { out_features: 16 } }"
      "layer { name: 'h' fully_connected { out_features: 9 } }" +
      std::string(kLoss));
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  const auto deviation = [&](const char* name) {
    return index[index.Find(name).value()].initial_stddev;
  };
  EXPECT_EQ(deviation("e/weight"), 0.02);
  EXPECT_EQ(deviation("e/positions"), 0.02);
  EXPECT_EQ(deviation("a/qkv_weight"), std::sqrt(1.0 / 8));
  EXPECT_EQ(deviation("a/out_weight"), std::sqrt(1.0 / 8));
  EXPECT_EQ(deviation("f/weight"), std::sqrt(2.0 / 8));
  EXPECT_EQ(deviation("h/weight"), std::sqrt(1.0 / 16)) << "no ReLU follows the last one";
  EXPECT_EQ(deviation("h/bias"), 0);
}

TEST(GraphTest, RecurrentLayers) {
  const Graph graph = GraphOf(
      "tokens { length: 7 }"
      "layer { name: 'e' embedding { vocabulary: 9 features: 3 } }"
      "layer { name: 'source' take_token { count: 5 } }"
      "layer { name: 'encoder' lstm { hidden: 4 reverse: true } }"
      "layer { name: 'target' input: 'e' take_token { token: 5 count: 2 } }"
      "layer { name: 'decoder' lstm { hidden: 6 projection: 4 } }"
      "layer { name: 'context' input: 'decoder' input: 'encoder' dot_product_attention {} }"
      "layer { name: 'head' fully_connected { out_features: 9 } }"
      "layer { name: 'loss' softmax_cross_entropy {} }");
  ASSERT_EQ(graph.size(), 8);
  EXPECT_EQ(graph[1].output, (Shape{5, 3}));
  const GraphLayer& encoder = graph[2];
  EXPECT_EQ(encoder.output, (Shape{5, 4}));
  ASSERT_EQ(encoder.parameters.size(), 3U);
  EXPECT_EQ(encoder.parameters[0].shape, (Shape{16, 3}));
  EXPECT_EQ(encoder.parameters[1].shape, (Shape{16, 4}));
  EXPECT_EQ(encoder.parameters[2].shape, (Shape{16}));
  EXPECT_EQ(encoder.parameters[2].role, ParameterRole::kBias);
  EXPECT_EQ(encoder.flops, 2 * 5 * 16 * (3 + 4));
  // The variance of a uniform number in [-a, a] is a^2 / 3.
  EXPECT_DOUBLE_EQ(encoder.parameters[0].initial_stddev, std::sqrt(0.25 / 3));
  EXPECT_DOUBLE_EQ(encoder.parameters[2].initial_stddev, std::sqrt(2 * 0.25 / 3));
  const GraphLayer& decoder = graph[4];
  EXPECT_EQ(decoder.output, (Shape{2, 4}));
  ASSERT_EQ(decoder.parameters.size(), 4U);
  EXPECT_EQ(decoder.parameters[1].shape, (Shape{24, 4}));
  EXPECT_EQ(decoder.parameters[3].name, "projection_weight");
  EXPECT_EQ(decoder.parameters[3].shape, (Shape{4, 6}));
  EXPECT_EQ(decoder.flops, 2 * 2 * (24 * (3 + 4) + 6 * 4));
  EXPECT_EQ(graph[5].output, (Shape{2, 4}));
  EXPECT_EQ(graph[5].flops, 4 * 2 * 5 * 4);
  EXPECT_EQ(graph.labels_per_sample(), 2);
}

constexpr char kSampledModel[] =
    "tokens { length: 7 }"
    "layer { name: 'e' embedding { vocabulary: 9 features: 3 } }"
    "layer { name: 'head' fully_connected { out_features: 9 } }"
    "layer { name: 'loss' softmax_cross_entropy { sampling { classes: 4 } } }";

TEST(GraphTest, SampledClasses) {
  const Graph graph = GraphOf(kSampledModel);
  ASSERT_EQ(graph.size(), 3);
  EXPECT_EQ(graph.classes(), 9);
  EXPECT_EQ(graph.labels_per_sample(), 7);
  EXPECT_EQ(graph.sampled_layer(), 1);
  const GraphLayer& head = graph[1];
  EXPECT_EQ(head.sampled_classes, 4);
  EXPECT_EQ(head.output, (Shape{7, 5}));
  EXPECT_EQ(head.parameters[0].shape, (Shape{9, 3}));
  EXPECT_EQ(head.flops, 2 * 7 * 5 * 3);
  EXPECT_EQ(graph[2].settings.softmax_cross_entropy().sampling().distribution(),
            v1::ClassSampling::LOG_UNIFORM);

  // Evaluation computes the model without sampling.
  v1::Model full = SpecOf(absl::StrCat("model {", kSampledModel, "}")).model();
  full.mutable_layer(2)->mutable_softmax_cross_entropy()->clear_sampling();
  const Graph expected = *Graph::FromModel(full);
  const Graph evaluated = graph.ForEvaluation();
  EXPECT_EQ(evaluated.sampled_layer(), Graph::kNoLayer);
  EXPECT_EQ(evaluated.classes(), 9);
  for (int l = 0; l < 3; ++l) {
    EXPECT_EQ(evaluated[l].output, expected[l].output);
    EXPECT_EQ(evaluated[l].input_shapes, expected[l].input_shapes);
    EXPECT_EQ(evaluated[l].flops, expected[l].flops);
    EXPECT_EQ(evaluated[l].sampled_classes, 0);
    EXPECT_EQ(evaluated[l].settings.SerializeAsString(), expected[l].settings.SerializeAsString());
  }
}

// The scores of one sample of a language model are as many as its tokens times its vocabulary.
TEST(GraphTest, ScoresOfLongSequences) {
  const Graph graph = GraphOf(
      "tokens { length: 131072 }"
      "layer { name: 'e' embedding { vocabulary: 128256 features: 8 } }"
      "layer { name: 'head' fully_connected { out_features: 128256 } }" +
      std::string(kLoss));
  EXPECT_EQ(graph[1].output.elements(), int64_t{131'072} * 128'256);
}

// Attention stores nothing that is quadratic in the tokens, so only its input has a limit.
TEST(GraphTest, AttentionOfLongSequences) {
  GraphOf(
      "tokens { length: 1048576 }"
      "layer { name: 'e' embedding { vocabulary: 2 features: 8 } }"
      "layer { name: 'a' attention { heads: 8 } }" +
      std::string(kLoss));
}

}  // namespace
}  // namespace cadre
