// Messages about graphs that cannot be imported: they state what the file contains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "cli/import/onnx_file.h"
#include "tests/base/expect.h"
#include "tests/cli/import/graphs.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Global pooling of `image`, [2, 6, 8, 8], and a head.
std::string Head(const std::string& image) {
  return absl::StrCat(Node(absl::StrCat("GlobalAveragePool ", image, " -> pooled")),
                      Node("Flatten pooled -> flat"), Weight("head.weight", {4, 6}),
                      Node("Gemm flat head.weight -> out", Int("transB", 1)));
}

TEST(ImportMessages, PaddingOutOfRange) {
  for (const std::vector<int64_t>& pads :
       {std::vector<int64_t>{-1, -1, -1, -1}, {0, 0, 0}, {1 << 21, 0, 1 << 21, 0}}) {
    const std::string error = ErrorOf(
        Import({2, 3, 8, 8}, absl::StrCat(Weight("w", {6, 3, 3, 3}),
                                          Node("Conv x w -> y", Ints("pads", pads)), Head("y"))));
    EXPECT_THAT(error, AllOf(HasSubstr("operator Conv of node 'y_node': its attribute pads is ["),
                             HasSubstr("it must be four numbers from 0 to 1048576"),
                             Not(HasSubstr("opposite"))));
  }
}

TEST(ImportMessages, RearrangedImageNamesTheOperator) {
  const std::string convolution =
      absl::StrCat(Weight("w", {6, 3, 1, 1}), Node("Conv t w -> y"), Head("y"));
  const std::string error = ErrorOf(
      Import({2, 8, 8, 3}, Node("Transpose x -> t", Ints("perm", {0, 3, 1, 2})) + convolution));
  EXPECT_THAT(error,
              AllOf(HasSubstr("operator Conv of node 'y_node': its input is the input of the graph "
                              "with the extents [2, 3, 8, 8], of which the elements are rearranged "
                              "by operator Transpose of node 't_node' (its attribute perm is [0, "
                              "3, 1, 2])"),
                    HasSubstr("export the network for inputs in this order")));
}

// The result of a layer is one value, with or without its bias.
TEST(ImportMessages, ResultWithAndWithoutABias) {
  const std::string convolution = ErrorOf(Import(
      {2, 3, 8, 8}, absl::StrCat(Weight("w", {6, 3, 1, 1}), Weight("b", {1, 6, 1, 1}),
                                 Node("Conv x w -> c"), Node("Add c b -> biased"),
                                 Node("Relu biased -> r"), Node("Add r c -> y"), Head("y"))));
  EXPECT_THAT(convolution,
              AllOf(HasSubstr("operator Add of node 'biased_node' adds a bias to the result of "
                              "operator Conv of node 'c_node'"),
                    HasSubstr("without the bias"), Not(HasSubstr("optimize=False"))));
  const std::string product = ErrorOf(Import(
      {2, 6, 1, 1},
      absl::StrCat(Node("Flatten x -> f"), Weight("w", {6, 6}), Weight("b", {6}),
                   Node("MatMul f w -> m"), Node("Add m b -> biased"), Node("Relu biased -> r"),
                   Node("Add r m -> y"), Weight("head.weight", {4, 6}),
                   Node("Gemm y head.weight -> out", Int("transB", 1)))));
  EXPECT_THAT(product, HasSubstr("operator Add of node 'biased_node' adds a bias to the result of "
                                 "operator MatMul of node 'm_node'"));
}

TEST(ImportMessages, BiasThatAllUsersSeeIsRead) {
  EXPECT_TRUE(Import({2, 3, 8, 8},
                     absl::StrCat(Weight("w", {6, 3, 1, 1}), Weight("b", {1, 6, 1, 1}),
                                  Node("Conv x w -> c"), Node("Add c b -> biased"),
                                  Node("Relu biased -> r"), Node("Add r biased -> y"), Head("y")))
                  .ok());
}

TEST(ImportMessages, GraphWithoutNodes) {
  onnx::Model model;
  model.set_ir_version(8);
  model.mutable_graph()->set_name("empty");
  EXPECT_THAT(ParseOnnx(model.SerializeAsString()),
              IsError(kInvalidArgument, "has a graph 'empty' without nodes"));
  EXPECT_THAT(ParseOnnx(""), IsError(kInvalidArgument, "is not an ONNX model"));
  EXPECT_THAT(ParseOnnx("some text"),
              IsError(kInvalidArgument, "is not an ONNX model: it is text"));
}

}  // namespace
}  // namespace cadre
