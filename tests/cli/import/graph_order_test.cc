// Which part of a graph is translated, and what is reported of the rest.
#include "cli/import/graph_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/cli/import/graphs.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GraphOrderTest, SeveralOutputsNeedAChoice) {
  // The features are the first output, as in the file of an embedding with a head.
  const std::string body = OutputNamed("f") + Pooled(ConvNode() + Node("Relu c -> r"));
  EXPECT_THAT(ErrorOf(Import({1, 2, 8, 8}, body)),
              AllOf(HasSubstr("the graph has 2 outputs, 'f', 'out'"), HasSubstr("--scores=NAME")));
  EXPECT_THAT(ErrorOf(Import({1, 2, 8, 8}, body, 1, {.scores = "score"})),
              HasSubstr("--scores is 'score', but the outputs of the graph are 'f', 'out'"));
  const auto scores = Import({1, 2, 8, 8}, body, 1, {.scores = "out"});
  ASSERT_THAT(Operations(scores),
              ElementsAre("convolution", "relu", "global_average_pool", "fully_connected"));
  EXPECT_THAT(scores->left_out, ElementsAre("1 other output ('f'): the model computes 'out' only"));
  // The head is dropped on request, and reported.
  const auto features = Import({1, 2, 8, 8}, body, 1, {.scores = "f"});
  ASSERT_THAT(Operations(features), ElementsAre("convolution", "relu", "global_average_pool"));
  EXPECT_THAT(features->left_out,
              ElementsAre("1 other output ('out'): the model computes 'f' only",
                          "1 operator ('out_node'): 'f' does not depend on them",
                          "1 tensor ('head.weight'): 'f' does not depend on their 12 elements"));
}

TEST(GraphOrderTest, WhatTheScoresDoNotDependOnIsReported) {
  const auto imported = Import(
      {1, 2, 8, 8},
      Pooled(ConvNode() + Node("Relu c -> r")) + Weight("aux.weight", {2, 3}) +
          Integers("batches", {7}) + Weight("spare", {2}) + Node("Gemm f aux.weight -> aux") +
          Node("Mystery aux -> other") +
          "input { name: 'lengths' type { tensor_type { elem_type: 7 shape { dim { dim_value: 1 } "
          "} } } }\n");
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(imported->left_out,
              ElementsAre("1 input ('lengths'): 'out' does not depend on them",
                          "2 operators ('aux_node' and 'other_node'): 'out' does not depend on "
                          "them",
                          "3 tensors ('aux.weight', 'batches' and 'spare'): 'out' does not depend "
                          "on their 9 elements"));
}

TEST(GraphOrderTest, TensorsThatAreNotTrainedAreReported) {
  const std::string frozen =
      "initializer { name: 'temperature' data_type: 1 dims: 1 "
      "float_data: 1 }\n";
  const auto imported = OnFeatures(
      frozen + Scalar("ratio", 0.5) + "initializer { name: 'off' data_type: 9 int32_data: 0 }\n" +
      Node("Mul f temperature -> m") + Node("Dropout m ratio off -> y"));
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(imported->left_out,
              ElementsAre("2 tensors ('temperature' and 'ratio'): the graph uses them as fixed "
                          "numbers, which are not trained",
                          "1 Dropout operator ('y_node'): the graph was exported with them "
                          "inactive, so the model has none"));
}

TEST(GraphOrderTest, NodesMayHaveAnyOrder) {
  const std::string relu = Node("Relu c -> r");
  const auto sorted = Import({1, 2, 8, 8}, Pooled(ConvNode() + relu));
  const auto unsorted = Import({1, 2, 8, 8}, Pooled(relu + ConvNode()));
  ASSERT_TRUE(sorted.ok() && unsorted.ok()) << unsorted.status();
  EXPECT_EQ(sorted->model.SerializeAsString(), unsorted->model.SerializeAsString());
}

TEST(GraphOrderTest, GraphsThatAreNotGraphs) {
  const std::string relu = Node("Relu c -> r");
  const struct {
    std::string body;
    const char* error;
  } cases[] = {
      {Pooled(ConvNode() + Node("Relu missing -> r")),
       "operator Relu of node 'r_node': its input 'missing' is neither an input or an initializer "
       "of the graph nor the result of a node"},
      {Pooled(ConvNode() + Node("Add c b -> a") + Node("Relu a -> b") + Node("Relu b -> r")),
       "a cycle of 2 nodes, each of which uses the result of the next: operator Add of node "
       "'a_node', operator Relu of node 'b_node'"},
      {Pooled(ConvNode() + relu + Node("Tanh c -> r")),
       "value 'r' is computed by operator Tanh of node 'r_node' and by operator Relu of node "
       "'r_node'"},
      {Pooled(ConvNode() + relu + Weight("conv.weight", {3, 2, 3, 3})),
       "two initializers 'conv.weight'"},
      {Pooled(ConvNode() + Scalar("half", 0.5) + Node("Dropout c half -> d mask") +
              Node("Cast mask -> m", Int("to", 1)) + Node("Mul c m -> r")),
       "operator Cast of node 'm_node': its input 'mask' is output 1 of operator Dropout of node "
       "'mask_node', which is not supported"},
      {Weight("w", {3}) + Node("Identity w -> out"),
       "output 'out' does not depend on an input of the graph"},
      {ConvNode() + Node("Relu c -> out"),
       "output 'out': it has the extents [1, 3, 8, 8]; scores are [samples, classes] or"},
  };
  for (const auto& [body, error] : cases) {
    EXPECT_THAT(ErrorOf(Import({1, 2, 8, 8}, body)), HasSubstr(error));
  }
}

}  // namespace
}  // namespace cadre
