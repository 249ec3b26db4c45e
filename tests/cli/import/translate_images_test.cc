// Operators on images, translated.
#include "cli/import/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/graph.h"
#include "tests/cli/import/graphs.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ImagesTest, PoolingHasTheSidesOfItsWindow) {
  const auto imported =
      Import({1, 2, 5, 8},
             Node("MaxPool x -> p", Ints("kernel_shape", {2, 3}) + Ints("strides", {2, 1}) +
                                        Ints("pads", {0, 1, 0, 1}) + Int("ceil_mode", 1)) +
                 Node("AveragePool p -> q", Ints("kernel_shape", {1, 2}) + Ints("strides", {1, 2}) +
                                                Int("ceil_mode", 1) + Int("count_include_pad", 1)) +
                 Node("Flatten q -> f") + Weight("fc.weight", {3, 24}) +
                 Node("Gemm f fc.weight -> out", Int("transB", 1)));
  ASSERT_TRUE(imported.ok()) << imported.status();
  const v1::Pooling& max = imported->model.layer(0).max_pool();
  EXPECT_EQ(max.ShortDebugString(),
            "kernel_height: 2 kernel_width: 3 stride_height: 2 stride_width: 1 padding_width: 1 "
            "ceil_mode: true");
  const v1::Pooling& average = imported->model.layer(1).average_pool();
  EXPECT_EQ(average.ShortDebugString(),
            "kernel_height: 1 kernel_width: 2 stride_height: 1 stride_width: 2")
      << "ceil_mode adds no output, and there is no padding";
  const auto graph = Graph::FromModel(imported->model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ((*graph)[0].output, (Shape{3, 8, 2}));
}

TEST(ImagesTest, AutomaticPaddingThatIsSymmetric) {
  for (const char* automatic : {"SAME_UPPER", "SAME_LOWER"}) {
    const auto same = Import(
        {1, 2, 8, 8},
        Pooled(ConvNode(Text("auto_pad", automatic)) +
               Node("MaxPool c -> r", Ints("kernel_shape", {3, 3}) + Text("auto_pad", automatic))));
    ASSERT_TRUE(same.ok()) << same.status();
    EXPECT_EQ(same->model.layer(0).convolution().padding(), 1);
    EXPECT_EQ(same->model.layer(1).max_pool().padding(), 1);
  }
  const auto valid =
      Import({1, 2, 8, 8}, Pooled(ConvNode(Text("auto_pad", "VALID")) + Node("Relu c -> r")));
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->model.layer(0).convolution().padding(), 0);
  // A stride of 2 pads 7 rows by one at either side, and 8 by one below alone.
  const std::string strided = ConvNode(Ints("strides", {2, 2}) + Text("auto_pad", "SAME_UPPER"));
  const auto odd = Import({1, 2, 7, 7}, Pooled(strided + Node("Relu c -> r")));
  ASSERT_TRUE(odd.ok()) << odd.status();
  EXPECT_EQ(odd->model.layer(0).convolution().padding(), 1);
  EXPECT_THAT(ErrorOf(Import({1, 2, 8, 8}, Pooled(strided + Node("Relu c -> r")))),
              HasSubstr("operator Conv of node 'c_node': its attribute auto_pad is 'SAME_UPPER', "
                        "which adds 1 row and 1 column to its input of 8 x 8"));
  EXPECT_THAT(ErrorOf(Import({1, 2, 8, 8},
                             Pooled(ConvNode(Ints("pads", {0, 0, 1, 1})) + Node("Relu c -> r")))),
              HasSubstr("its attribute pads is [0, 0, 1, 1] (top, left, bottom, right)"));
  EXPECT_THAT(ErrorOf(Import({1, 2, 8, 8}, Pooled(ConvNode(Ints("pads", {1, 1, 1, 1}) +
                                                           Text("auto_pad", "SAME_UPPER")) +
                                                  Node("Relu c -> r")))),
              HasSubstr("auto_pad is 'SAME_UPPER', but its attribute pads is [1, 1, 1, 1]"));
}

TEST(ImagesTest, BiasOfAConvolutionMayBeAdded) {
  const auto with_bias =
      Import({1, 2, 8, 8}, Pooled(Weight("conv.weight", {3, 2, 3, 3}) + Weight("b", {3}) +
                                  Node("Conv x conv.weight b -> c", Ints("pads", {1, 1, 1, 1})) +
                                  Node("Relu c -> r")));
  ASSERT_TRUE(with_bias.ok()) << with_bias.status();
  for (const std::vector<int64_t>& dims :
       {std::vector<int64_t>{1, 3, 1, 1}, std::vector<int64_t>{3, 1, 1}}) {
    for (const char* sum : {"Add c b -> a", "Add b c -> a", "Sum c b -> a"}) {
      const auto added = Import(
          {1, 2, 8, 8}, Pooled(ConvNode() + Weight("b", dims) + Node(sum) + Node("Relu a -> r")));
      ASSERT_TRUE(added.ok()) << sum << ": " << added.status();
      EXPECT_EQ(added->model.layer(0).SerializeAsString(),
                with_bias->model.layer(0).SerializeAsString());
      EXPECT_EQ(added->weights[1].values, with_bias->weights[1].values);
    }
  }
  // The bias of one channel is a number, like that of an activation.
  const auto one =
      Import({1, 2, 8, 8}, Weight("conv.weight", {1, 2, 3, 3}) + Weight("b", {1, 1, 1, 1}) +
                               Node("Conv x conv.weight -> c") + Node("Add c b -> a") +
                               Node("Relu a -> r") + Node("Flatten r -> out"));
  ASSERT_THAT(Operations(one), ElementsAre("convolution", "relu", "flatten"));
  EXPECT_FALSE(one->model.layer(0).convolution().no_bias());
  EXPECT_THAT(one->weights[1].values, ElementsAre(1));
  // After global pooling, where a convolution is a product.
  const auto pooled =
      Import({1, 2, 8, 8}, Node("GlobalAveragePool x -> g") + Weight("w", {3, 2, 1, 1}) +
                               Weight("b", {1, 3, 1, 1}) + Node("Conv g w -> c") +
                               Node("Add c b -> a") + Node("Flatten a -> out"));
  ASSERT_THAT(Operations(pooled), ElementsAre("global_average_pool", "fully_connected"));
  EXPECT_FALSE(pooled->model.layer(1).fully_connected().no_bias());
}

TEST(ImagesTest, WhatCannotBeABiasIsNamed) {
  const std::string relu = Node("Relu a -> r");
  EXPECT_THAT(ErrorOf(Import({1, 2, 8, 8}, Pooled(ConvNode() + Weight("b", {1, 3, 8, 8}) +
                                                  Node("Add c b -> a") + relu))),
              HasSubstr("operator Add of node 'a_node': it adds tensor 'b' with the extents [1, 3, "
                        "8, 8] to operator Conv of node 'c_node'"));
  EXPECT_THAT(ErrorOf(Import({1, 2, 8, 8}, Pooled(ConvNode() + Weight("b", {1, 3, 1, 1}) +
                                                  Node("Mul c b -> a") + relu))),
              HasSubstr("operator Mul of node 'a_node': it multiplies [1, 3, 8, 8] by tensor "
                        "'b' with the extents [1, 3, 1, 1]"));
  // The bias of a Gemm that is not a tensor of the file.
  EXPECT_THAT(
      ErrorOf(OnFeatures(Weight("w", {4, 4}) + Node("Relu f -> b") +
                         Node("Gemm f w b -> y", Int("transB", 1)))),
      HasSubstr(
          "operator Gemm of node 'y_node': its bias is a function of the input of the graph"));
}

}  // namespace
}  // namespace cadre
