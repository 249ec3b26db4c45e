// Compares the indices of every operation, and the layouts that splits of them produce, with
// tables.
#include "model/op_indices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "tests/base/expect.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

using Axes = std::vector<std::string>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Every operation on images.
constexpr char kImages[] = R"(model {
  input { channels: 4 height: 9 width: 7 }
  layer { name: "conv" convolution { out_channels: 6 kernel: 3 padding: 1 } }
  layer { name: "grouped" convolution { out_channels: 8 kernel: 3 groups: 2 stride: 2 no_bias: true } }
  layer { name: "point" convolution { out_channels: 8 kernel: 1 } }
  layer { name: "norm" batch_norm {} }
  layer { name: "relu" relu {} }
  layer { name: "pool" max_pool { kernel: 2 stride: 1 padding: 1 } }
  layer { name: "lrn" local_response_norm {} }
  layer { name: "concat" input: "lrn" input: "pool" concat {} }
  layer { name: "gap" global_average_pool {} }
  layer { name: "flat" input: "concat" flatten {} }
  layer { name: "fc" fully_connected { out_features: 16 } }
  layer { name: "add" input: "fc" input: "gap" add {} }
  layer { name: "loss" softmax_cross_entropy {} }
})";

constexpr char kTokens[] = R"(model {
  tokens { length: 5 }
  layer { name: "embedding" embedding { vocabulary: 11 features: 6 positions: true } }
  layer { name: "norm" layer_norm {} }
  layer { name: "attention" attention { heads: 3 } }
  layer { name: "lstm" lstm { hidden: 7 projection: 6 } }
  layer { name: "source" input: "norm" take_token { token: 1 count: 3 } }
  layer { name: "context" input: "lstm" input: "source" dot_product_attention {} }
  layer { name: "fc" fully_connected { out_features: 11 } }
  layer { name: "gelu" gelu {} }
  layer { name: "loss" softmax_cross_entropy {} }
})";

class OpIndicesTest : public ::testing::Test {
 protected:
  OpIndicesTest()
      : images_(*Graph::FromModel(testing::SpecOf(kImages).model())),
        tokens_(*Graph::FromModel(testing::SpecOf(kTokens).model())) {}

  const GraphLayer& Layer(const std::string& name, bool tokens = false) const {
    for (const GraphLayer& layer : (tokens ? tokens_ : images_).layers()) {
      if (layer.name == name) return layer;
    }
    ADD_FAILURE() << name;
    return images_[0];
  }

  std::vector<std::string> Names(const GraphLayer& layer) const {
    std::vector<std::string> names;
    for (const OpIndex& index : IndicesOf(layer)) names.push_back(index.name);
    return names;
  }

  OpIndex Index(const GraphLayer& layer, const std::string& name) const {
    for (const OpIndex& index : IndicesOf(layer)) {
      if (index.name == name) return index;
    }
    ADD_FAILURE() << layer.name << " has no " << name;
    return {};
  }

  const Graph images_;
  const Graph tokens_;
  const Mesh mesh_{{{"a", 2}, {"b", 3}, {"one", 1}}};
};

TEST_F(OpIndicesTest, NamesMatchTable) {
  const Axes all_image = {"samples", "height", "width", "channels"};
  EXPECT_THAT(Names(Layer("conv")), ElementsAre("samples", "height", "width", "out", "in"));
  EXPECT_THAT(Names(Layer("grouped")), ElementsAre("samples", "height", "width", "groups"));
  EXPECT_EQ(Names(Layer("norm")), all_image);
  EXPECT_EQ(Names(Layer("relu")), all_image);
  EXPECT_EQ(Names(Layer("pool")), all_image);
  EXPECT_THAT(Names(Layer("lrn")), ElementsAre("samples", "height", "width"));
  EXPECT_THAT(Names(Layer("concat")), ElementsAre("samples", "height", "width"));
  EXPECT_EQ(Names(Layer("gap")), all_image);
  EXPECT_THAT(Names(Layer("flat")), ElementsAre("samples", "channels"));
  EXPECT_THAT(Names(Layer("fc")), ElementsAre("samples", "out", "in"));
  EXPECT_THAT(Names(Layer("add")), ElementsAre("samples", "features"));
  EXPECT_THAT(Names(Layer("loss")), ElementsAre("samples"));
  EXPECT_THAT(Names(Layer("embedding", true)), ElementsAre("samples", "tokens", "features"));
  EXPECT_THAT(Names(Layer("norm", true)), ElementsAre("samples", "tokens"));
  EXPECT_THAT(Names(Layer("attention", true)), ElementsAre("samples", "heads"));
  EXPECT_THAT(Names(Layer("lstm", true)), ElementsAre("samples"));
  EXPECT_THAT(Names(Layer("source", true)), ElementsAre("samples", "features"));
  EXPECT_THAT(Names(Layer("context", true)), ElementsAre("samples"));
  EXPECT_THAT(Names(Layer("fc", true)), ElementsAre("samples", "tokens", "out", "in"));
  EXPECT_THAT(Names(Layer("gelu", true)), ElementsAre("samples", "tokens", "features"));
  EXPECT_THAT(Names(Layer("loss", true)), ElementsAre("samples", "tokens"));
}

TEST_F(OpIndicesTest, EveryIndexCoversEveryTensor) {
  for (const Graph* graph : {&images_, &tokens_}) {
    for (const GraphLayer& layer : graph->layers()) {
      const auto fits = [&](const IndexPlace& place, int rank) {
        return place.kind != IndexPlace::Kind::kDimension ||
               (place.dimension >= 0 && place.dimension < rank);
      };
      for (const OpIndex& index : IndicesOf(layer)) {
        SCOPED_TRACE(layer.name + " " + index.name);
        ASSERT_EQ(index.inputs.size(), layer.inputs.size());
        ASSERT_EQ(index.parameters.size(), layer.parameters.size());
        for (size_t i = 0; i < index.inputs.size(); ++i) {
          EXPECT_TRUE(fits(index.inputs[i], layer.input_shapes[i].rank() + 1));
          EXPECT_NE(index.inputs[i], IndexPlace::Same());
        }
        EXPECT_TRUE(fits(index.output, layer.output.rank() + 1));
        for (size_t p = 0; p < index.parameters.size(); ++p) {
          EXPECT_TRUE(fits(index.parameters[p], layer.parameters[p].shape.rank()));
        }
      }
    }
  }
}

TEST_F(OpIndicesTest, WindowsNeedHalos) {
  EXPECT_TRUE(Index(Layer("conv"), "height").halo);
  EXPECT_TRUE(Index(Layer("pool"), "width").halo);
  EXPECT_FALSE(Index(Layer("point"), "height").halo) << "a kernel of one reads no neighbours";
  EXPECT_FALSE(Index(Layer("conv"), "samples").halo);
  EXPECT_FALSE(Index(Layer("gap"), "height").halo) << "its output is a sum instead";
}

// The layouts of a layer if one of its indices is split over axis `a`.
struct ExpectedLayouts {
  std::string input, output, input_gradient;
  // "layout" or "layout, summed".
  std::vector<std::string> parameters;
};

TEST_F(OpIndicesTest, LayoutsMatchTable) {
  struct Row {
    std::string layer, index;
    bool tokens;
    ExpectedLayouts layouts;
  };
  const std::string none = "replicated", sum = "partial(a)", added = "replicated, summed";
  const std::string d0 = "{0: a}", d1 = "{1: a}", d2 = "{2: a}", d3 = "{3: a}";
  const std::vector<Row> rows = {
      {"conv", "samples", false, {d0, d0, d0, {added, added}}},
      {"conv", "height", false, {d1, d1, d1, {added, added}}},
      {"conv", "width", false, {d2, d2, d2, {added, added}}},
      {"conv", "out", false, {none, d3, sum, {d0, d0}}},
      {"conv", "in", false, {d3, sum, d3, {d1, none}}},
      {"grouped", "groups", false, {d3, d3, d3, {d0}}},
      {"pool", "channels", false, {d3, d3, d3, {}}},
      {"gap", "height", false, {d1, sum, d1, {}}},
      {"gap", "channels", false, {d3, d1, d3, {}}},
      {"norm", "samples", false, {d0, d0, d0, {added, added, added, added}}},
      {"norm", "width", false, {d2, d2, d2, {added, added, added, added}}},
      {"norm", "channels", false, {d3, d3, d3, {d0, d0, d0, d0}}},
      {"concat", "height", false, {d1, d1, d1, {}}},
      {"flat", "channels", false, {d3, d1, d3, {}}},
      {"fc", "samples", false, {d0, d0, d0, {added, added}}},
      {"fc", "out", false, {none, d1, sum, {d0, d0}}},
      {"fc", "in", false, {d1, sum, d1, {d1, none}}},
      {"add", "features", false, {d1, d1, d1, {}}},
      {"embedding", "samples", true, {d0, d0, d0, {added, added}}},
      {"embedding", "tokens", true, {d1, d1, d1, {added, d0}}},
      {"embedding", "features", true, {none, d2, sum, {d1, d1}}},
      {"norm", "tokens", true, {d1, d1, d1, {added, added}}},
      {"attention", "samples", true, {d0, d0, d0, {added, added, added, added}}},
      {"attention", "heads", true, {none, sum, sum, {d0, d0, d1, none}}},
      {"fc", "tokens", true, {d1, d1, d1, {added, added}}},
      {"fc", "out", true, {none, d2, sum, {d0, d0}}},
      {"fc", "in", true, {d2, sum, d2, {d1, none}}},
      {"loss", "tokens", true, {d1, sum, d1, {}}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.layer + " " + row.index);
    const GraphLayer& layer = Layer(row.layer, row.tokens);
    const auto layouts = LayOut(layer, mesh_, {{row.index, {"a"}}});
    ASSERT_TRUE(layouts.ok()) << layouts.status();
    EXPECT_EQ(layouts->name, row.layer);
    for (size_t i = 0; i < layer.inputs.size(); ++i) {
      EXPECT_EQ(layouts->inputs[i].ToString(), row.layouts.input);
      EXPECT_EQ(layouts->input_gradients[i].ToString(), row.layouts.input_gradient);
    }
    EXPECT_EQ(layouts->output.ToString(), row.layouts.output);
    std::vector<std::string> parameters;
    for (size_t p = 0; p < layouts->parameters.size(); ++p) {
      const Axes& sums = layouts->gradient_sums[p];
      parameters.push_back(layouts->parameters[p].ToString() + (sums.empty() ? "" : ", summed"));
      EXPECT_TRUE(sums.empty() || sums == Axes{"a"});
    }
    EXPECT_EQ(parameters, row.layouts.parameters);
  }
}

TEST_F(OpIndicesTest, SeveralIndicesAndAxes) {
  const auto layouts =
      LayOut(Layer("fc"), mesh_, {{"in", {"b"}}, {"out", {"a"}}, {"samples", {"one"}}});
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  EXPECT_EQ(layouts->inputs[0].ToString(), "{1: b}");
  EXPECT_EQ(layouts->input_gradients[0].ToString(), "{1: b} + partial(a)");
  EXPECT_EQ(layouts->output.ToString(), "{1: a} + partial(b)");
  EXPECT_EQ(layouts->parameters[0].ToString(), "{0: a, 1: b}");
  EXPECT_EQ(layouts->parameters[1].ToString(), "{0: a}");
  EXPECT_THAT(layouts->gradient_sums[0], IsEmpty()) << "an axis of one rank changes nothing";
  EXPECT_THAT(layouts->axes("in"), ElementsAre("b"));
  EXPECT_THAT(layouts->axes("tokens"), IsEmpty());

  const auto sums = LayOut(Layer("conv"), mesh_, {{"height", {"b"}}, {"samples", {"a"}}});
  ASSERT_TRUE(sums.ok());
  EXPECT_THAT(sums->gradient_sums[0], ElementsAre("a", "b")) << "in the mesh's order";
  const auto ordered = LayOut(Layer("conv"), mesh_, {{"samples", {"b", "a"}}});
  ASSERT_TRUE(ordered.ok());
  EXPECT_EQ(ordered->inputs[0].ToString(), "{0: b*a}");
  EXPECT_THAT(ordered->gradient_sums[0], ElementsAre("a", "b"));
}

TEST_F(OpIndicesTest, RefusesInvalidSplits) {
  const auto refused = [&](const std::string& layer, std::vector<IndexSplit> splits) {
    const absl::Status status = LayOut(Layer(layer), mesh_, std::move(splits)).status();
    EXPECT_THAT(status, IsError(absl::StatusCode::kInvalidArgument, "layer '" + layer + "'"));
    return std::string(status.message());
  };
  EXPECT_THAT(refused("lrn", {{"channels", {"a"}}}),
              HasSubstr("has no index 'channels', only samples, height, width"));
  EXPECT_THAT(refused("conv", {{"out", {"c"}}}), HasSubstr("axis 'c' is not in the mesh"));
  EXPECT_THAT(refused("conv", {{"out", {"a"}}, {"in", {"a"}}}), HasSubstr("axis 'a' twice"));
  EXPECT_THAT(refused("conv", {{"out", {"a", "a"}}}), HasSubstr("axis 'a' twice"));
  EXPECT_THAT(refused("conv", {{"out", {"a"}}, {"out", {"b"}}}), HasSubstr("split twice"));
  EXPECT_THAT(refused("grouped", {{"groups", {"b"}}}), HasSubstr("3 parts"));
  EXPECT_THAT(refused("flat", {{"channels", {"b"}}}), HasSubstr("do not divide its 16"));
}

TEST_F(OpIndicesTest, SampledOutputsCannotBeSplit) {
  v1::Model model = testing::SpecOf(kTokens).model();
  v1::Layer& head = *model.mutable_layer(6);
  ASSERT_EQ(head.name(), "fc");
  model.mutable_layer()->DeleteSubrange(7, 1);
  model.mutable_layer(7)->mutable_softmax_cross_entropy()->mutable_sampling()->set_classes(3);
  const Graph graph = *Graph::FromModel(model);
  const GraphLayer& layer = graph[graph.sampled_layer()];
  std::vector<std::string> names;
  for (const OpIndex& index : IndicesOf(layer)) names.push_back(index.name);
  EXPECT_THAT(names, ElementsAre("samples", "tokens", "in"));
  EXPECT_THAT(std::string(LayOut(layer, Mesh({{"a", 2}}), {{"out", {"a"}}}).status().message()),
              HasSubstr("layer 'fc': the loss samples its outputs, so they cannot be split"));
}

TEST_F(OpIndicesTest, EnumeratesLegalSplits) {
  // Each of two axes splits one of 5 indices or none; if both split the same index, there are two
  // orders.
  EXPECT_EQ(LegalSplits(Layer("conv"), mesh_).size(), 6U * 6U + 5U);
  // Two groups cannot be split into three parts, nor into six.
  EXPECT_EQ(LegalSplits(Layer("grouped"), mesh_).size(), 5U * 5U - 5U + 3U);
  for (const GraphLayer& layer : images_.layers()) {
    std::set<std::string> seen;
    const auto all = LegalSplits(layer, mesh_);
    EXPECT_THAT(all, ::testing::Contains(IsEmpty()));
    for (const auto& splits : all) {
      EXPECT_TRUE(LayOut(layer, mesh_, splits).ok());
      std::string text;
      for (const IndexSplit& split : splits) {
        text += split.index + ":";
        for (const std::string& axis : split.axes) text += axis + ",";
      }
      EXPECT_TRUE(seen.insert(text).second) << text;
    }
  }
}

// The part of the input that these outputs read, computed for each element of the kernel.
Box ReadBy(const GraphLayer& layer, const Box& input_part, const Box& output) {
  Box read = input_part;
  const Window& w = layer.window;
  const int64_t kernel[] = {w.kernel_height, w.kernel_width};
  const int64_t stride[] = {w.stride_height, w.stride_width};
  const int64_t padding[] = {w.padding_height, w.padding_width};
  for (int d = 0; d < 2; ++d) {
    const int dim = d + 1;
    int64_t first = layer.input()[d], last = -1;
    for (int64_t o = output.begin[dim]; o < output.end[dim]; ++o) {
      for (int64_t tap = 0; tap < kernel[d]; ++tap) {
        const int64_t at = o * stride[d] - padding[d] + tap * w.dilation;
        if (at < 0 || at >= layer.input()[d]) continue;
        first = std::min(first, at);
        last = std::max(last, at);
      }
    }
    read.begin[dim] = first;
    read.end[dim] = last + 1;
  }
  return read;
}

bool Covers(const Box& outer, const Box& inner) {
  return inner.empty() || Intersect(outer, inner) == inner;
}

TEST_F(OpIndicesTest, NeededInputCoversReads) {
  const Shape batch_in = BatchShape(3, Shape{9, 7, 4});
  for (const auto& [kernel, stride, padding, dilation] :
       std::vector<std::array<int, 4>>{{3, 1, 1, 1},
                                       {5, 1, 2, 1},
                                       {3, 2, 1, 1},
                                       {1, 1, 0, 1},
                                       {1, 3, 0, 1},
                                       {2, 2, 0, 1},
                                       {3, 1, 2, 2},
                                       {7, 1, 0, 1},
                                       {2, 3, 1, 1},
                                       {4, 1, 3, 1}}) {
    v1::Model model = testing::SpecOf(kImages).model();
    auto& conv = *model.mutable_layer(0)->mutable_convolution();
    conv.set_kernel(kernel);
    conv.set_stride(stride);
    conv.set_padding(padding);
    conv.set_dilation(dilation);
    std::vector<LayerProblem> problems;
    const GraphLayer layer = InferLayers(model, &problems)[0];
    ASSERT_EQ(layer.name, "conv");
    for (const int parts : {2, 3, 4, 20}) {
      const Mesh mesh({{"space", parts}});
      for (const int dim : {1, 2}) {
        const Layout layout = Layout::Split(dim, {"space"});
        for (int rank = 0; rank < parts; ++rank) {
          const Box in = LocalBox(batch_in, layout, mesh, rank);
          const Box out = LocalBox(BatchShape(3, layer.output), layout, mesh, rank);
          const Box needed = NeededInput(layer, 0, in, out);
          SCOPED_TRACE(in.ToString() + " to " + out.ToString() + " needs " + needed.ToString());
          EXPECT_TRUE(Covers(Box::Whole(batch_in), needed));
          if (out.empty()) {
            EXPECT_TRUE(needed.empty());
            continue;
          }
          const Box read = ReadBy(layer, in, out);
          EXPECT_TRUE(Covers(needed, read)) << read.ToString();
          if (dilation == 1 && stride == 1) {
            EXPECT_EQ(needed.begin[dim], read.begin[dim]);
            EXPECT_EQ(needed.end[dim], read.end[dim]);
          }
        }
      }
    }
  }
}

TEST_F(OpIndicesTest, WholeImagesNeedNoHalo) {
  const GraphLayer& pool = Layer("pool");
  const Box in = Box::Whole(BatchShape(2, pool.input()));
  EXPECT_EQ(NeededInput(pool, 0, in, Box::Whole(BatchShape(2, pool.output))), in);
  const GraphLayer& fc = Layer("fc");
  const Box features{{0, 3}, {2, 7}};
  EXPECT_EQ(NeededInput(fc, 0, features, Box{{0, 0}, {2, 16}}), features);
}

}  // namespace
}  // namespace cadre
