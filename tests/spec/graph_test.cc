#include "spec/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spec/parameter_index.h"
#include "tests/spec/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::DemoSpec;
using ::cadre::testing::SpecOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kLoss[] = "layer { name: 'loss' softmax_cross_entropy {} }";

// A model of an input and layers in text format, closed by the loss.
v1::Model ModelOf(const std::string& input, const std::string& layers) {
  return SpecOf(absl::StrCat("model { input {", input, "} ", layers, kLoss, "}")).model();
}

Shape OutputOf(const std::string& input, const std::string& op) {
  const auto graph = Graph::FromModel(ModelOf(input, absl::StrCat("layer { name: 'x' ", op, "}")));
  EXPECT_TRUE(graph.ok()) << graph.status();
  return graph.ok() ? graph->layers()[0].output : Shape();
}

TEST(GraphTest, ShapesOfTheDemo) {
  const auto graph = Graph::FromModel(DemoSpec().model());
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::vector<std::string> shapes;
  for (const GraphLayer& layer : graph->layers()) shapes.push_back(layer.output.ToString());
  EXPECT_THAT(shapes, ElementsAre("[32, 28, 28]", "[32, 28, 28]", "[32, 14, 14]", "[64, 14, 14]",
                                  "[64, 14, 14]", "[64, 7, 7]", "[1024]", "[1024]", "[10]", "[1]"));
  EXPECT_EQ(graph->classes(), 10);
  EXPECT_EQ(graph->layers()[3].weight_shape(), (Shape{64, 32, 3, 3}));
  EXPECT_EQ(graph->layers()[6].weight_shape(), (Shape{1024, 3136}));
  EXPECT_EQ(graph->layers()[6].flops, 2 * 1024 * 3136);
  EXPECT_EQ(graph->layers()[0].flops, 2 * 32 * 28 * 28 * 9);
}

TEST(GraphTest, WindowsWithStridesAndPadding) {
  const std::string input = "channels: 3 height: 11 width: 8";
  EXPECT_EQ(OutputOf(input, "convolution { out_channels: 5 kernel: 3 }"), (Shape{5, 9, 6}));
  EXPECT_EQ(OutputOf(input, "convolution { out_channels: 5 kernel: 3 stride: 2 padding: 1 }"),
            (Shape{5, 6, 4}));
  EXPECT_EQ(OutputOf(input, "convolution { out_channels: 1 kernel: 8 }"), (Shape{1, 4, 1}));
  EXPECT_EQ(OutputOf(input, "max_pool { kernel: 2 }"), (Shape{3, 5, 4})) << "the odd row is left";
  EXPECT_EQ(OutputOf(input, "average_pool { kernel: 3 stride: 1 padding: 1 }"), (Shape{3, 11, 8}));
}

TEST(GraphTest, FullyConnectedFlattens) {
  const auto graph =
      Graph::FromModel(ModelOf("channels: 2 height: 3 width: 4",
                               "layer { name: 'a' fully_connected { out_features: 7 } }"
                               "layer { name: 'b' relu {} }"));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->layers()[0].weight_shape(), (Shape{7, 24}));
  EXPECT_EQ(graph->layers()[1].output, (Shape{7}));
  EXPECT_EQ(graph->classes(), 7);
}

struct Wrong {
  const char* label;
  const char* input;
  const char* layers;
  int layer;
  const char* field;
  const char* message;
};

class GraphErrors : public ::testing::TestWithParam<Wrong> {};

TEST_P(GraphErrors, PointsAtTheLayerAndField) {
  const Wrong& wrong = GetParam();
  const v1::Model model =
      SpecOf(absl::StrCat("model { input {", wrong.input, "} ", wrong.layers, "}")).model();
  std::vector<LayerProblem> problems;
  InferLayers(model, &problems);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].layer, wrong.layer);
  EXPECT_EQ(problems[0].field, wrong.field);
  EXPECT_THAT(problems[0].message, HasSubstr(wrong.message));
  const absl::Status status = Graph::FromModel(model).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.message));
}

constexpr char kSmall[] = "channels: 1 height: 4 width: 6";

INSTANTIATE_TEST_SUITE_P(
    Each, GraphErrors,
    ::testing::Values(
        Wrong{"NoChannels", "height: 4 width: 4", kLoss, -1, "input.channels", "is 0"},
        Wrong{"Height", "channels: 1 height: 2000000 width: 1", kLoss, -1, "input.height",
              "is 2000000; it must be between 1 and"},
        Wrong{"Input", "channels: 1048576 height: 1048576 width: 1048576", kLoss, -1, "input",
              "more than"},
        Wrong{"NoLayers", kSmall, "", -1, "layer", "no layers"},
        Wrong{"NoName", kSmall, "layer { relu {} }", 0, "name", "no name"},
        Wrong{"BadName", kSmall, "layer { name: 'a b' relu {} }", 0, "name", "'a b'"},
        Wrong{"SameName", kSmall, "layer { name: 'a' relu {} } layer { name: 'a' relu {} }", 1,
              "name", "earlier layer"},
        Wrong{"NoOperation", kSmall, "layer { name: 'a' }", 0, "", "says no operation"},
        Wrong{"LossInside", kSmall,
              "layer { name: 'l' softmax_cross_entropy {} } layer { name: 'r' relu {} }", 0, "",
              "must be the last layer"},
        Wrong{"NoLoss", kSmall, "layer { name: 'a' relu {} }", 0, "",
              "must be softmax_cross_entropy, not relu"},
        Wrong{"OneClass", "channels: 1 height: 1 width: 1", kLoss, 0, "softmax_cross_entropy",
              "classes must be at least 2"},
        Wrong{"NoKernel", kSmall, "layer { name: 'a' convolution { out_channels: 1 } }", 0,
              "convolution.kernel", "between 1 and"},
        Wrong{"NoOutChannels", kSmall, "layer { name: 'a' convolution { kernel: 1 } }", 0,
              "convolution.out_channels", "between 1 and"},
        Wrong{"LargeKernel", kSmall,
              "layer { name: 'a' convolution { out_channels: 1 kernel: 7 padding: 1 } }", 0,
              "convolution.kernel", "larger than the padded input of 6 x 8; at most 6 fits"},
        Wrong{"LargeStride", kSmall,
              "layer { name: 'a' convolution { out_channels: 1 kernel: 1 stride: 4000000000 } }", 0,
              "convolution.stride", "at most"},
        Wrong{"LargePadding", kSmall,
              "layer { name: 'a' convolution { out_channels: 1 kernel: 1 padding: 4000000000 } }",
              0, "convolution.padding", "at most"},
        Wrong{"PoolNoKernel", kSmall, "layer { name: 'a' max_pool {} }", 0, "max_pool.kernel",
              "between 1 and"},
        Wrong{"PoolPadding", kSmall, "layer { name: 'a' average_pool { kernel: 3 padding: 2 } }", 0,
              "average_pool.padding", "at most half the kernel, 1,"},
        Wrong{"NoFeatures", kSmall, "layer { name: 'a' fully_connected {} }", 0,
              "fully_connected.out_features", "between 1 and"},
        Wrong{"ConvolutionOnFeatures", kSmall,
              "layer { name: 'a' fully_connected { out_features: 4 } }"
              "layer { name: 'b' convolution { out_channels: 1 kernel: 1 } }",
              1, "convolution", "needs an image"},
        Wrong{"PoolOnFeatures", kSmall,
              "layer { name: 'a' fully_connected { out_features: 4 } }"
              "layer { name: 'b' max_pool { kernel: 1 } }",
              1, "max_pool", "needs an image"},
        // Sizes that int64_t would not hold.
        Wrong{"HugeOutput", kSmall,
              "layer { name: 'a' convolution {"
              "  out_channels: 1048576 kernel: 1 padding: 1048576 } }",
              0, "convolution", "more than"},
        Wrong{"HugeWindow", kSmall,
              "layer { name: 'a' max_pool { kernel: 1048576 stride: 1 padding: 524288 } }", 0,
              "max_pool.kernel", "too large"},
        Wrong{"HugeKernel", "channels: 1048576 height: 8 width: 8",
              "layer { name: 'a' convolution { out_channels: 1048576 kernel: 8 } }", 0,
              "convolution", "more than"},
        Wrong{"HugeWeight", "channels: 64 height: 1024 width: 1024",
              "layer { name: 'a' fully_connected { out_features: 1048576 } }", 0,
              "fully_connected.out_features", "more than"}),
    [](const auto& info) { return info.param.label; });

TEST(ParameterIndexTest, CountsTheDemo) {
  const auto index = ParameterIndex::FromModel(DemoSpec().model());
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->size(), 3'241'354);
  std::vector<std::string> names;
  std::vector<int64_t> offsets;
  for (const Parameter& parameter : index->parameters()) {
    names.push_back(parameter.name);
    offsets.push_back(parameter.offset);
  }
  EXPECT_THAT(names, ElementsAre("conv1/weight", "conv1/bias", "conv2/weight", "conv2/bias",
                                 "fc1/weight", "fc1/bias", "fc2/weight", "fc2/bias"));
  EXPECT_THAT(offsets, ElementsAre(0, 288, 320, 18752, 18816, 3230080, 3231104, 3241344));
  EXPECT_EQ((*index)[0].fan_in, 9);
  EXPECT_EQ((*index)[2].fan_in, 288);
  EXPECT_EQ((*index)[4].fan_in, 3136);
  EXPECT_EQ(index->Find("fc1/weight").value(), 4);
  EXPECT_EQ(index->Find("fc3/weight").status().code(), absl::StatusCode::kNotFound);
}

TEST(ParameterIndexTest, AModelWithoutParametersIsEmpty) {
  const auto index = ParameterIndex::FromModel(ModelOf("channels: 1 height: 1 width: 2", ""));
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->size(), 0);
  EXPECT_THAT(index->RangesOf(0, 0), IsEmpty());
}

// Every pair of borders of a small model, there and back.
TEST(ParameterIndexTest, RangesCoverWhatTheyAreMadeOf) {
  const auto index =
      ParameterIndex::FromModel(ModelOf("channels: 1 height: 1 width: 2",
                                        "layer { name: 'a' fully_connected { out_features: 3 } }"
                                        "layer { name: 'b' fully_connected { out_features: 2 } }"));
  ASSERT_TRUE(index.ok()) << index.status();
  ASSERT_EQ(index->size(), 6 + 3 + 6 + 2);
  for (int64_t begin = 0; begin <= index->size(); ++begin) {
    for (int64_t end = begin; end <= index->size(); ++end) {
      int64_t at = begin;
      int64_t tensor = -1;
      for (const v1::Range& range : index->RangesOf(begin, end)) {
        const auto flat = index->FlatOf(range);
        ASSERT_TRUE(flat.ok()) << flat.status();
        EXPECT_EQ(flat->begin, at);
        EXPECT_GT(flat->size(), 0);
        EXPECT_GT(static_cast<int64_t>(range.tensor()), tensor);
        at = flat->end;
        tensor = range.tensor();
      }
      EXPECT_EQ(at, end);
    }
  }
}

TEST(ParameterIndexTest, RangesThatAreNotThereAreRefused) {
  const auto index = ParameterIndex::FromModel(DemoSpec().model());
  ASSERT_TRUE(index.ok()) << index.status();
  const auto refused = [&](uint32_t tensor, uint64_t begin, uint64_t end) {
    v1::Range range;
    range.set_tensor(tensor);
    range.set_begin(begin);
    range.set_end(end);
    return index->FlatOf(range).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused(7, 0, 10));
  EXPECT_TRUE(refused(8, 0, 1)) << "no such tensor";
  EXPECT_TRUE(refused(7, 0, 11)) << "past its end";
  EXPECT_TRUE(refused(7, 3, 3)) << "empty";
  EXPECT_TRUE(refused(7, 4, 3)) << "backwards";
  EXPECT_TRUE(refused(0xffffffff, 0, 1));
  EXPECT_TRUE(refused(0, 0, 0xffffffffffffffff));
}

}  // namespace
}  // namespace cadre
