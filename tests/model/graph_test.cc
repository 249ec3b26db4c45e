#include "model/graph.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/parameter_index.h"
#include "tests/base/expect.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::DemoSpec;
using ::cadre::testing::SpecOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
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

// Parses the text of a model, in which words in capitals stand for common beginnings and ends.
v1::Model ModelOf(const std::string& text) {
  const std::string small = "input { channels: 1 height: 4 width: 6 }";
  const std::string tokens = "tokens { length: 4 }";
  v1::Model model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      absl::StrReplaceAll(
          text,
          {{"SMALL", small},
           {"FEATURES", small + " layer { name: 'f' flatten {} }"},
           {"TOKENS", tokens},
           {"EMBEDDED", tokens + " layer { name: 'e' embedding { vocabulary: 5 features: 6 } }"},
           {"LOSS", kLoss}}),
      &model));
  return model;
}

// Models with one layer before the loss, after an image or after features.
std::string OnImage(const std::string& op) { return "SMALL layer { name: 'a' " + op + " } LOSS"; }
std::string OnFeatures(const std::string& op) {
  return "FEATURES layer { name: 'a' " + op + " } LOSS";
}

struct Invalid {
  std::string model;
  int layer;
  std::string field;
  std::string message;
};

void ExpectInvalid(const std::vector<Invalid>& cases) {
  for (const Invalid& invalid : cases) {
    SCOPED_TRACE(invalid.model);
    const v1::Model model = ModelOf(invalid.model);
    std::vector<LayerProblem> problems;
    InferLayers(model, &problems);
    ASSERT_EQ(problems.size(), 1U);
    EXPECT_EQ(problems[0].layer, invalid.layer);
    EXPECT_EQ(problems[0].field, invalid.field);
    EXPECT_THAT(problems[0].message, HasSubstr(invalid.message));
    const absl::Status status = Graph::FromModel(model).status();
    EXPECT_THAT(status, IsError(absl::StatusCode::kInvalidArgument, invalid.message));
    if (invalid.layer < 0) continue;
    EXPECT_THAT(status.message(),
                HasSubstr(absl::StrCat("layer '", model.layer(invalid.layer).name(), "'")));
  }
}

TEST(GraphTest, InvalidModels) {
  ExpectInvalid({
      {"LOSS", -1, "input", "give input (images) or tokens"},
      {"SMALL TOKENS LOSS", -1, "tokens", "cannot be combined with input"},
      {"input { height: 4 width: 4 } LOSS", -1, "input.channels", "is 0"},
      {"input { channels: 1 height: 2000000 width: 1 } LOSS", -1, "input.height",
       "is 2000000; it must be between 1 and"},
      {"input { channels: 1048576 height: 1048576 width: 1048576 } LOSS", -1, "input", "more than"},
      {"tokens {} LOSS", -1, "tokens.length", "is 0"},
      {"tokens { length: 4294967295 } LOSS", -1, "tokens.length", "is 4294967295"},
      {"SMALL ", -1, "layer", "no layers"},
      {"SMALL block { name: 'b' layer { name: 'r' relu {} } } LOSS", -1, "block[0]",
       "must be expanded, as the reader of run files does"},
      {"SMALL layer { name: 'u' use { block: 'b' } } LOSS", 0, "use", "block 'b' must be expanded"},
      {"FEATURES layer { name: 'u' set: 'out_features = 3' fully_connected {} }LOSS", 1, "set[0]",
       "is only valid in layers of blocks; set the field directly"},
      {"SMALL layer { relu {} }", 0, "name", "no name"},
      {"SMALL layer { name: 'a b' relu {} }", 0, "name", "'a b'"},
      {"SMALL layer { name: 'input' relu {} }", 0, "name", "is reserved for the model's input"},
      {"SMALL layer { name: 'a' relu {} } layer { name: 'a' relu {} }", 1, "name", "earlier layer"},
      {"SMALL layer { name: 'a' }", 0, "", "has no operation; give one of convolution, max_pool"},
      {"FEATURES layer { name: 'l' softmax_cross_entropy {} }layer { name: 'r' relu {} }", 1, "",
       "must be the last layer"},
      {"SMALL layer { name: 'a' relu {} }", 0, "", "must be softmax_cross_entropy, not relu"},
      {OnFeatures("input: 'unknown' relu {}"), 1, "input[0]", "no layer is called 'unknown'"},
      {"FEATURES layer { name: 'a' input: 'b' relu {} }layer { name: 'b' relu {} } LOSS", 1,
       "input[0]", "'b' is a later layer"},
      {OnFeatures("input: 'a' relu {}"), 1, "input[0]", "is the layer itself"},
      {OnFeatures("input: 'f' input: 'f' relu {}"), 1, "input[1]", "relu takes one input, not 2"},
      {"FEATURES layer { name: 'a' relu {} }layer { name: 'b' input: 'f' relu {} } LOSS", 1, "",
       "no layer uses its output"},
      {"SMALL layer { name: 'a/flatten' relu {} }layer { name: 'a' fully_connected { out_features: "
       "2 } } LOSS",
       1, "name", "'a/flatten' is the name of an earlier layer"},
  });
}

TEST(GraphTest, InvalidWindows) {
  ExpectInvalid({
      {OnImage("convolution { out_channels: 1 }"), 0, "convolution.kernel", "between 1 and"},
      {OnImage("convolution { out_channels: 1 kernel_height: 1 }"), 0, "convolution.kernel_width",
       "between 1 and"},
      {OnImage("convolution { out_channels: 1 kernel: 1 kernel_height: 1 }"), 0,
       "convolution.kernel", "cannot be combined with kernel_height or kernel_width"},
      {OnImage("convolution { out_channels: 1 kernel: 1 padding: 1 padding_width: 1 }"), 0,
       "convolution.padding", "cannot be combined with padding_height or padding_width"},
      {OnImage("convolution { kernel: 1 }"), 0, "convolution.out_channels", "between 1 and"},
      {OnImage("convolution { out_channels: 1 kernel: 7 padding: 1 }"), 0, "convolution.kernel",
       "larger than the padded input of 6 x 8; at most 6 fits"},
      {OnImage("convolution { out_channels: 1 kernel_height: 1 kernel_width: 7 }"), 0,
       "convolution.kernel_width", "larger than the padded input of 4 x 6; at most 6 fits"},
      {OnImage("convolution { out_channels: 1 kernel: 3 dilation: 2 }"), 0, "convolution.kernel",
       "is 3 with a dilation of 2, larger than the padded input of 4 x 6; at most 2 fits"},
      {OnImage("convolution { out_channels: 1 kernel: 1 stride: 4000000000 }"), 0,
       "convolution.stride", "at most"},
      {OnImage("convolution { out_channels: 1 kernel: 1 padding: 4000000000 }"), 0,
       "convolution.padding", "at most"},
      {OnImage("convolution { out_channels: 1 kernel: 1 dilation: 4000000000 }"), 0,
       "convolution.dilation", "at most"},
      {OnImage("convolution { out_channels: 2 kernel: 1 groups: 2 }"), 0, "convolution.groups",
       "must divide the 1 input channels and the 2 output channels"},
      {"input { channels: 4 height: 1 width: 1 }layer { name: 'a' convolution { out_channels: 3 "
       "kernel: 1 groups: 2 } } LOSS",
       0, "convolution.groups", "is 2; it must divide the 4 input channels and the 3 output"},
      {OnImage("max_pool {}"), 0, "max_pool.kernel", "between 1 and"},
      {OnImage("average_pool { kernel: 3 padding: 2 }"), 0, "average_pool.padding",
       "at most half the kernel, 1"},
      {OnImage("max_pool { kernel: 3 padding: 1 count_padding: true }"), 0,
       "max_pool.count_padding", "only valid for average_pool"},
      {OnFeatures("convolution { out_channels: 1 kernel: 1 }"), 1, "convolution",
       "requires an image [height, width, channels]; its input is [24]"},
      {OnImage("average_pool { kernel: 3 count_padding: true ceil_mode: true }"), 0,
       "average_pool.count_padding", "cannot be combined with ceil_mode"},
      {OnImage("max_pool { kernel: 2 stride: 2 stride_width: 1 }"), 0, "max_pool.stride",
       "cannot be combined with stride_height"},
      {OnImage("max_pool { kernel_height: 2 kernel_width: 1 padding_width: 1 }"), 0,
       "max_pool.padding_width", "at most half the kernel, 0"},
      {OnFeatures("max_pool { kernel: 1 }"), 1, "max_pool", "requires an image"},
      {OnFeatures("global_average_pool {}"), 1, "global_average_pool", "requires an image"},
      {OnFeatures("flatten {}"), 1, "flatten", "requires an image"},
  });
}

TEST(GraphTest, InvalidLayers) {
  ExpectInvalid({
      {"input { channels: 1 height: 1 width: 1 } layer { name: 'f' flatten {} }LOSS", 1,
       "softmax_cross_entropy", "classes must be at least 2"},
      {"SMALL LOSS", 0, "softmax_cross_entropy",
       "its input is the image [4, 6, 1]; put a fully_connected"},
      {"FEATURES layer { name: 'l' softmax_cross_entropy { label_smoothing: 1 } }", 1,
       "softmax_cross_entropy.label_smoothing", "is 1; it must be at least 0 and below 1"},
      {"FEATURES layer { name: 'l' softmax_cross_entropy { label_smoothing: nan } }", 1,
       "softmax_cross_entropy.label_smoothing", "is nan"},
      {OnImage("fully_connected {}"), 0, "fully_connected.out_features", "between 1 and"},
      {OnImage("dropout { rate: 1 }"), 0, "dropout.rate",
       "is 1; it must be at least 0 and below 1"},
      {OnImage("dropout { rate: -0.5 }"), 0, "dropout.rate", "is -0.5"},
      {OnImage("add {}"), 0, "add", "takes 1 input; name at least 2"},
      {"SMALL layer { name: 'a' convolution { out_channels: 2 kernel: 1 } }layer { name: 'b' "
       "input: 'a' input: 'input' add {} } LOSS",
       1, "add", "adds [4, 6, 2] and [4, 6, 1]; its inputs must have equal shapes"},
      {OnImage("concat {}"), 0, "concat", "name at least 2"},
      {"SMALL layer { name: 'a' max_pool { kernel: 2 } }layer { name: 'b' input: 'a' input: "
       "'input' concat {} } LOSS",
       1, "concat",
       "concatenates [2, 3, 1] and [4, 6, 1]; its inputs may only differ in the last dimension"},
      {"SMALL layer { name: 'a' flatten {} }layer { name: 'b' input: 'a' input: 'input' concat {} "
       "} LOSS",
       1, "concat", "concatenates [24] and [4, 6, 1]; its inputs may only differ"},
      {OnImage("batch_norm { epsilon: -1 }"), 0, "batch_norm.epsilon", "is -1"},
      {OnImage("batch_norm { momentum: 1.5 }"), 0, "batch_norm.momentum", "above 0 and at most 1"},
      {OnFeatures("batch_norm {}"), 1, "batch_norm", "requires an image"},
      {OnFeatures("local_response_norm {}"), 1, "local_response_norm", "requires an image"},
      {OnImage("local_response_norm { beta: -1 }"), 0, "local_response_norm.beta", "at least 0"},
      {OnImage("layer_norm {}"), 0, "layer_norm", "its input is the image [4, 6, 1]"},
      {"SMALL layer { name: 'a' flatten {} } layer { name: 'b' fully_connected { out_features: 1 } "
       "} layer { name: 'c' layer_norm {} } LOSS",
       2, "layer_norm", "normalizes one feature"},
      {OnFeatures("layer_norm { epsilon: inf }"), 1, "layer_norm.epsilon", "is inf"},
  });
}

TEST(GraphTest, InvalidLayersOfSequences) {
  ExpectInvalid({
      {OnImage("embedding { vocabulary: 2 features: 2 }"), 0, "embedding",
       "requires the tokens of a model with `tokens`"},
      {"EMBEDDED layer { name: 'a' embedding { vocabulary: 2 features: 2 } } LOSS", 1, "embedding",
       "requires the tokens"},
      {OnFeatures("embedding { vocabulary: 2 features: 2 }"), 1, "embedding",
       "requires the tokens"},
      {"TOKENS layer { name: 'a' embedding { features: 2 } } LOSS", 0, "embedding.vocabulary",
       "is 0"},
      {"TOKENS layer { name: 'a' embedding { vocabulary: 2 } } LOSS", 0, "embedding.features",
       "is 0"},
      {"TOKENS layer { name: 'a' relu {} } LOSS", 0, "relu", "put an embedding before it"},
      {"TOKENS LOSS", 0, "softmax_cross_entropy", "put an embedding"},
      {"EMBEDDED layer { name: 'a' attention {} } LOSS", 1, "attention.heads", "is 0"},
      {"EMBEDDED layer { name: 'a' attention { heads: 4 } } LOSS", 1, "attention.heads",
       "is 4, which does not divide the 6 features"},
      {OnFeatures("attention { heads: 1 }"), 1, "attention",
       "requires a sequence [tokens, features]; its input is [24]"},
      {"EMBEDDED layer { name: 'a' attention { heads: 1 padding_token: 99 } } LOSS", 1,
       "attention.padding_token", "is 99; the vocabulary of 'e' is 0 to "},
      {"EMBEDDED layer { name: 'c' class_token {} }"
       "layer { name: 'a' attention { heads: 1 padding_token: 0 } } LOSS",
       2, "attention.padding_token", "requires the 4 tokens of the model; its input has 5"},
      {"SMALL layer { name: 't' to_tokens {} }"
       "layer { name: 'a' attention { heads: 1 padding_token: 0 } } LOSS",
       1, "attention.padding_token", "requires a model with `tokens`"},
      {"EMBEDDED layer { name: 't' take_token { token: 4 } } LOSS", 1, "take_token.token",
       "is 4; the sequence has 4 tokens"},
      {"EMBEDDED layer { name: 't' take_token { token: 3 count: 2 } } LOSS", 1, "take_token.count",
       "is 2; from token 3 on, the sequence has 1"},
      {"EMBEDDED layer { name: 'l' lstm {} } LOSS", 1, "lstm.hidden", "is 0"},
      {"EMBEDDED layer { name: 'l' lstm { hidden: 4 projection: 4 } } LOSS", 1, "lstm.projection",
       "is 4; it must be less than the 4 hidden features"},
      {OnFeatures("lstm { hidden: 1 }"), 1, "lstm",
       "requires a sequence [tokens, features]; its input is [24]"},
      {"EMBEDDED layer { name: 'd' dot_product_attention {} } LOSS", 1, "dot_product_attention",
       "takes 1 inputs; name the queries and the source"},
      {"EMBEDDED layer { name: 'l' lstm { hidden: 2 } }"
       "layer { name: 'd' input: 'l' input: 'e' dot_product_attention {} } LOSS",
       2, "dot_product_attention", "its inputs are [4, 2] and [4, 6]"},
  });
}

TEST(GraphTest, RecurrentLayers) {
  const auto graph = Graph::FromModel(
      ModelOf("tokens { length: 7 }"
              "layer { name: 'e' embedding { vocabulary: 9 features: 3 } }"
              "layer { name: 'source' take_token { count: 5 } }"
              "layer { name: 'encoder' lstm { hidden: 4 reverse: true } }"
              "layer { name: 'target' input: 'e' take_token { token: 5 count: 2 } }"
              "layer { name: 'decoder' lstm { hidden: 6 projection: 4 } }"
              "layer { name: 'context' input: 'decoder' input: 'encoder' dot_product_attention {} }"
              "layer { name: 'head' fully_connected { out_features: 9 } }"
              "layer { name: 'loss' softmax_cross_entropy {} }"));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ((*graph)[1].output, (Shape{5, 3}));
  const GraphLayer& encoder = (*graph)[2];
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
  const GraphLayer& decoder = (*graph)[4];
  EXPECT_EQ(decoder.output, (Shape{2, 4}));
  ASSERT_EQ(decoder.parameters.size(), 4U);
  EXPECT_EQ(decoder.parameters[1].shape, (Shape{24, 4}));
  EXPECT_EQ(decoder.parameters[3].name, "projection_weight");
  EXPECT_EQ(decoder.parameters[3].shape, (Shape{4, 6}));
  EXPECT_EQ(decoder.flops, 2 * 2 * (24 * (3 + 4) + 6 * 4));
  EXPECT_EQ((*graph)[5].output, (Shape{2, 4}));
  EXPECT_EQ((*graph)[5].flops, 4 * 2 * 5 * 4);
  EXPECT_EQ(graph->labels_per_sample(), 2);
}

constexpr char kSampledModel[] =
    "tokens { length: 7 }"
    "layer { name: 'e' embedding { vocabulary: 9 features: 3 } }"
    "layer { name: 'head' fully_connected { out_features: 9 } }"
    "layer { name: 'loss' softmax_cross_entropy { sampling { classes: 4 } } }";

TEST(GraphTest, SampledClasses) {
  const auto graph = Graph::FromModel(ModelOf(kSampledModel));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->classes(), 9);
  EXPECT_EQ(graph->labels_per_sample(), 7);
  EXPECT_EQ(graph->sampled_layer(), 1);
  const GraphLayer& head = (*graph)[1];
  EXPECT_EQ(head.sampled_classes, 4);
  EXPECT_EQ(head.output, (Shape{7, 5}));
  EXPECT_EQ(head.parameters[0].shape, (Shape{9, 3}));
  EXPECT_EQ(head.flops, 2 * 7 * 5 * 3);
  EXPECT_EQ((*graph)[2].settings.softmax_cross_entropy().sampling().distribution(),
            v1::ClassSampling::LOG_UNIFORM);

  // Evaluation computes the model without sampling.
  v1::Model full = ModelOf(kSampledModel);
  full.mutable_layer(2)->mutable_softmax_cross_entropy()->clear_sampling();
  const Graph expected = *Graph::FromModel(full);
  const Graph evaluated = graph->ForEvaluation();
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

TEST(GraphTest, InvalidSampling) {
  const auto with = [](const std::string& loss) {
    return absl::StrCat(
        "EMBEDDED layer { name: 'f' fully_connected { out_features: 5 } }"
        "layer { name: 'l' softmax_cross_entropy { ",
        loss, " } }");
  };
  ExpectInvalid({
      {with("sampling {}"), 2, "softmax_cross_entropy.sampling.classes",
       "is 0; it must be between 1 and the 5 classes of 'f'"},
      {"EMBEDDED layer { name: 'f' fully_connected { out_features: 1 } }"
       "layer { name: 'l' softmax_cross_entropy { sampling { classes: 1 } } }",
       2, "softmax_cross_entropy", "takes 1 features; classes must be at least 2"},
      {with("sampling { classes: 6 }"), 2, "softmax_cross_entropy.sampling.classes", "is 6"},
      {with("sampling { classes: 2 } label_smoothing: 0.1"), 2, "softmax_cross_entropy.sampling",
       "cannot be combined with label_smoothing"},
      {"EMBEDDED layer { name: 'l' softmax_cross_entropy { sampling { classes: 2 } } }", 1,
       "softmax_cross_entropy.sampling", "takes the output of a fully_connected"},
      {"EMBEDDED layer { name: 'f' fully_connected { out_features: 5 } }"
       "layer { name: 'r' relu {} } layer { name: 'g' fully_connected { out_features: 5 } }"
       "layer { name: 'l' input: 'f' softmax_cross_entropy { sampling { classes: 2 } } }",
       4, "softmax_cross_entropy.sampling", "no other layer takes the output of 'f', but 'r' does"},
  });
  v1::Model unknown = ModelOf(kSampledModel);
  v1::ClassSampling& sampling =
      *unknown.mutable_layer(2)->mutable_softmax_cross_entropy()->mutable_sampling();
  sampling.set_distribution(static_cast<v1::ClassSampling::Distribution>(7));
  EXPECT_THAT(std::string(Graph::FromModel(unknown).status().message()),
              ::testing::HasSubstr("layer 'loss': softmax_cross_entropy.sampling.distribution: is "
                                   "7; give LOG_UNIFORM or UNIFORM"));
}

TEST(GraphTest, SizesThatOverflow) {
  ExpectInvalid({
      {OnImage("convolution { out_channels: 1048576 kernel: 1 padding: 1048576 }"), 0,
       "convolution", "more than"},
      {OnImage("max_pool { kernel: 1048576 stride: 1 padding: 524288 }"), 0, "max_pool.kernel",
       "too large"},
      {"input { channels: 1048576 height: 8 width: 8 }layer { name: 'a' convolution { "
       "out_channels: 1048576 kernel: 8 } } LOSS",
       0, "convolution", "more than"},
      {"input { channels: 64 height: 1024 width: 1024 }layer { name: 'a' fully_connected { "
       "out_features: 1048576 } } LOSS",
       0, "fully_connected.out_features", "more than"},
      {"tokens { length: 1048576 }layer { name: 'a' embedding { vocabulary: 2 features: 1048576 } "
       "} LOSS",
       0, "embedding", "more than"},
      {"tokens { length: 1 }layer { name: 'e' embedding { vocabulary: 2 features: 1048576 } }layer "
       "{ name: 'a' attention { heads: 2 } } LOSS",
       1, "attention", "more than"},
      {"tokens { length: 1048576 }layer { name: 'e' embedding { vocabulary: 2 features: 8 } }layer "
       "{ name: 'l' lstm { hidden: 1048576 projection: 1 } } LOSS",
       1, "lstm.hidden", "more than"},
      {"tokens { length: 1048576 }layer { name: 'e' embedding { vocabulary: 2 features: 8 } }layer "
       "{ name: 'd' input: 'e' input: 'e' dot_product_attention {} } LOSS",
       1, "dot_product_attention", "more than"},
      {"input { channels: 64 height: 1024 width: 1024 }layer { name: 'a' input: 'input' input: "
       "'input' concat {} } LOSS",
       0, "concat", "more than"},
  });
}

// Attention stores nothing that is quadratic in the tokens, so only its input has a limit.
TEST(GraphTest, AttentionOfLongSequences) {
  const absl::Status status =
      Graph::FromModel(ModelOf("tokens { length: 1048576 }"
                               "layer { name: 'e' embedding { vocabulary: 2 features: 8 } }"
                               "layer { name: 'a' attention { heads: 8 } }"
                               "layer { name: 'loss' softmax_cross_entropy {} }"))
          .status();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(GraphTest, LimitsLayers) {
  v1::Model model = ModelOf("input { channels: 1 height: 1 width: 1 }");
  for (int i = 0; i < 20'000; ++i) {
    v1::Layer& layer = *model.add_layer();
    layer.set_name(absl::StrCat("r", i));
    layer.mutable_relu();
  }
  const absl::Status status = Graph::FromModel(model).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("20000 layers; at most 16384"));
}

// Names from other programs may contain any bytes; error messages must be text.
TEST(GraphTest, EscapesNames) {
  v1::Model model = ModelOf("input { channels: 1 height: 1 width: 1 } layer { relu {} }");
  model.mutable_layer(0)->set_name("\xff\n");
  EXPECT_THAT(std::string(Graph::FromModel(model).status().message()), HasSubstr("'\\xff\\n'"));
}

// Models from other programs have not been checked by the reader of run files.
TEST(GraphTest, LimitsNamesAndInputs) {
  const auto message = [](const std::string& name, int inputs) {
    v1::Model model = ModelOf(
        Image("channels: 1 height: 1 width: 2", "layer { name: 'a' relu {} } layer { add {} }") +
        kLoss);
    model.mutable_layer(1)->set_name(name);
    for (int i = 0; i < inputs; ++i) model.mutable_layer(1)->add_input("a");
    return std::string(Graph::FromModel(model).status().message());
  };
  EXPECT_EQ(message(std::string(1000, 'n'), 1024), message("n", 1024));
  EXPECT_EQ(message(std::string(1 << 20, 'n'), 2),
            "layer 1: name: has 1048576 characters; at most 1000 are possible");
  EXPECT_EQ(message("n", 1025),
            "layer 'n': input: the layer takes 1025 inputs; at most 1024 are possible");
}

}  // namespace
}  // namespace cadre
