// Graphs in protobuf text, translated: layers, weights, and errors. tests/torch compares whole
// networks with PyTorch.
#include "cli/import/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "cli/import/folding.h"
#include "model/run_file.h"
#include "tests/cli/import/graphs.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// A path may contain any character but zero.
TEST(ImportTest, RunFileQuotesThePathOfTheWeights) {
  ImportedModel imported;
  for (const std::string path : {"/my \"data\"/w.safetensors", "/back\\slash/\\n.safetensors",
                                 "/new\nline'\t#/w", "/\u00e4\u65e5/w"}) {
    const auto run = ParseRunSpec("run.textproto", RunFileOf(imported, "net", path));
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->spec.checkpoint().from(), path);
  }
}

TEST(ImportTest, NamesLayersAfterModules) {
  const auto imported =
      Import({1, 2, 4, 4},
             Weight("stem.conv.weight", {3, 2, 3, 3}) + Weight("stem.conv.bias", {3}) +
                 Node("Conv x stem.conv.weight stem.conv.bias -> c", Ints("pads", {1, 1, 1, 1})) +
                 Node("Relu c -> r") + Node("GlobalAveragePool r -> p") + Node("Flatten p -> f") +
                 Weight("fc.weight", {5, 3}) + Node("Gemm f fc.weight -> out", Int("transB", 1)));
  EXPECT_THAT(Operations(imported),
              ElementsAre("convolution", "relu", "global_average_pool", "fully_connected"));
  EXPECT_EQ(imported->model.layer(0).name(), "stem.conv");
  EXPECT_EQ(imported->weights[0].name, "stem.conv/weight");
  EXPECT_THAT(imported->weights[1].values, ElementsAre(1, 2, 3));
  EXPECT_EQ(imported->model.original(0).name(), "stem.conv.weight");
}

TEST(ImportTest, TransposesWeightsThatAreStoredTransposed) {
  const auto imported = OnFeatures(Weight("fc.weight", {4, 4}) + Node("MatMul f fc.weight -> y"));
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(imported->weights[0].values,
              ElementsAre(1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 4, 8, 12, 16));
}

// x * (erf(x / sqrt 2) + 1) * 0.5, in eight operators.
TEST(ImportTest, RecognizesActivationsByTheirValues) {
  const std::string gelu = Scalar("root", 1.41421356) + Scalar("one", 1) + Scalar("half", 0.5) +
                           Node("Div f root -> d") + Node("Erf d -> e") + Node("Add e one -> a") +
                           Node("Mul f a -> m") + Node("Mul m half -> y");
  EXPECT_THAT(Operations(OnFeatures(gelu)), ElementsAre("gelu", "flatten", "fully_connected"));
  const std::string silu = Node("Sigmoid f -> s") + Node("Mul f s -> y");
  EXPECT_THAT(Operations(OnFeatures(silu)), ElementsAre("silu", "flatten", "fully_connected"));
  const std::string relu6 = Scalar("zero", 0) + Scalar("six", 6) + Node("Clip f zero six -> y");
  EXPECT_THAT(Operations(OnFeatures(relu6)), ElementsAre("relu6", "flatten", "fully_connected"));
  const std::string hard = Scalar("three", 3) + Scalar("zero", 0) + Scalar("six", 6) +
                           Node("Add f three -> a") + Node("Clip a zero six -> c") +
                           Node("Mul f c -> m") + Node("Div m six -> y");
  EXPECT_THAT(Operations(OnFeatures(hard)),
              ElementsAre("hard_swish", "flatten", "fully_connected"));
}

// relu(x) + x is not an activation, but a sum of layers.
TEST(ImportTest, SumsOfActivationsAreLayers) {
  EXPECT_THAT(Operations(OnFeatures(Node("Relu f -> r") + Node("Add f r -> y"))),
              ElementsAre("relu", "add", "flatten", "fully_connected"));
  EXPECT_THAT(Operations(OnFeatures(Node("Relu f -> r") + Node("Sigmoid r -> y"))),
              ElementsAre("relu", "sigmoid", "flatten", "fully_connected"));
}

TEST(ImportTest, ReportsEveryUnsupportedOperator) {
  const auto imported =
      Import({1, 2, 4, 4}, Node("LpPool x -> a") + Node("Relu a -> b") +
                               Node("InstanceNormalization b -> c") + Node("Mystery x -> d") +
                               Node("LeakyRelu x -> e") + Node("Sum c d e -> out"));
  const std::string error = ErrorOf(imported);
  EXPECT_THAT(error,
              HasSubstr("operator LpPool of node 'a_node' is not supported; the nearest that "
                        "works is AveragePool"));
  EXPECT_THAT(error, HasSubstr("operator Mystery of node 'd_node' is not supported"));
  EXPECT_THAT(error, HasSubstr("operator LeakyRelu of node 'e_node' is not supported; the nearest "
                               "that works is Relu"));
  // What depends on them is not reported.
  EXPECT_THAT(error, Not(HasSubstr("Instance")));
  EXPECT_THAT(std::vector<std::string>(absl::StrSplit(error, '\n')), SizeIs(3));
}

TEST(ImportTest, UnknownFunctionNamesActivations) {
  EXPECT_THAT(ErrorOf(OnFeatures(Node("Softplus f -> y"))),
              AllOf(HasSubstr("Softplus"), HasSubstr("relu, relu6, gelu, silu")));
}

TEST(ImportTest, ErrorsNameTheReason) {
  EXPECT_THAT(
      ErrorOf(Import({1, 2, 6, 6}, Node("AveragePool x -> p",
                                        Ints("kernel_shape", {3, 3}) + Ints("strides", {3, 3}) +
                                            Ints("pads", {1, 1, 1, 1}) + Int("ceil_mode", 1) +
                                            Int("count_include_pad", 1)) +
                                       Node("Flatten p -> out"))),
      HasSubstr("of node 'p_node': count_include_pad is not supported where ceil_mode adds an"));
  EXPECT_THAT(ErrorOf(Import({1, 2, 4, 4}, Weight("w", {2, 2, 3, 3}) +
                                               Node("Conv x w -> c", Ints("strides", {1, 2})) +
                                               Node("Flatten c -> out"))),
              HasSubstr("strides must be equal"));
  EXPECT_THAT(ErrorOf(Import({1, 3}, Node("Relu x -> out"))), HasSubstr("matrix of numbers"));
  EXPECT_THAT(ErrorOf(OnFeatures(Weight("fc.weight", {4, 4}) + Node("MatMul f fc.weight -> a") +
                                 Node("MatMul a fc.weight -> y"))),
              AllOf(HasSubstr("'fc.weight' is used by"), HasSubstr("optimize=False")));
  EXPECT_THAT(ErrorOf(Import({1, 2, 1, 1}, Weight("w", {3, 2}) + Node("Flatten x -> f") +
                                               Node("Gemm f w -> g", Int("transB", 1)) +
                                               Node("Softmax g -> out"))),
              HasSubstr("the loss contains the softmax"));
}

TEST(ImportTest, BatchOfMinusOneIsVariable) {
  const auto imported = Import({-1, 2, 8, 8}, Pooled(ConvNode() + Node("Relu c -> r")));
  EXPECT_THAT(Operations(imported),
              ElementsAre("convolution", "relu", "global_average_pool", "fully_connected"));
  // Shapes of one sample may be constants in such a graph.
  EXPECT_THAT(
      Operations(Import({-1, 2, 1, 1}, Integers("flat", {1, 2}) + Node("Reshape x flat -> f") +
                                           Weight("w", {3, 2}) +
                                           Node("Gemm f w -> out", Int("transB", 1)))),
      ElementsAre("flatten", "fully_connected"));
  EXPECT_THAT(
      ErrorOf(Import({-1, 2, 1, 1}, Integers("flat", {3, 2}) + Node("Reshape x flat -> out"))),
      AllOf(HasSubstr("[2, 2, 1, 1] cannot become [3, 2]"),
            HasSubstr("the number of samples is variable in the file, and 2")));
  EXPECT_THAT(ErrorOf(Import({-1, 2, -1, 8}, Pooled(ConvNode() + Node("Relu c -> r")))),
              HasSubstr("input 'x': has the extents [-1, 2, -1, 8]; it must have"));
}

TEST(ImportTest, SumIsAdd) {
  EXPECT_THAT(Operations(OnFeatures(Node("Relu f -> r") + Node("Sum r f -> y"))),
              ElementsAre("relu", "add", "flatten", "fully_connected"));
  EXPECT_THAT(
      Operations(OnFeatures(Node("Relu f -> r") + Node("Tanh f -> t") + Node("Sum r f t -> y"))),
      ElementsAre("relu", "add", "tanh", "add", "flatten", "fully_connected"));
  EXPECT_THAT(Operations(OnFeatures(Node("Relu f -> r") + Node("Sum r -> y"))),
              ElementsAre("relu", "flatten", "fully_connected"));
  // The largest of one is not the larger of it and 0.
  EXPECT_THAT(Operations(OnFeatures(Node("Max f -> y"))),
              ElementsAre("flatten", "fully_connected"));
  EXPECT_THAT(ErrorOf(OnFeatures(Node("Pow f -> y"))), HasSubstr("it has 1 input instead of 2"));
}

// Attributes that are ignored would change what the graph computes.
TEST(ImportTest, UnknownAttributesAreErrors) {
  EXPECT_THAT(ErrorOf(OnFeatures(Node("Clip f -> y", "attribute { name: 'max' f: 1 }"))),
              HasSubstr("operator Clip of node 'y_node': its attribute max is 1, which is not "
                        "supported"));
  EXPECT_THAT(ErrorOf(OnFeatures(Node("Swish f -> y", "attribute { name: 'alpha' f: 2 }"))),
              HasSubstr("its attribute alpha is 2; only 1 is supported"));
  EXPECT_THAT(ErrorOf(Import({1, 2, 8, 8},
                             Pooled(ConvNode(Ints("kernel_shape", {5, 5})) + Node("Relu c -> r")))),
              HasSubstr("its attribute kernel_shape is [5, 5], but its weight is tensor "
                        "'conv.weight' with the extents [3, 2, 3, 3]"));
  // It only concerns extents of 0, which are otherwise those of the input.
  const auto reshaped = [](std::vector<int64_t> shape) {
    return OnFeatures(Integers("shape", shape) + Node("Reshape f shape -> y", Int("allowzero", 1)));
  };
  EXPECT_TRUE(reshaped({-1, 4}).ok());
  EXPECT_THAT(ErrorOf(reshaped({0, 4})), HasSubstr("its attribute allowzero is 1, and its shape"));
  EXPECT_THAT(ErrorOf(OnFeatures(Node("Relu f -> r") + Node("Cast r -> y", Int("to", 7)))),
              HasSubstr("operator Cast of node 'y_node': it rounds"));
}

TEST(FoldTest, ConstantOfShapeHasItsFill) {
  const auto filled = [](const std::string& tensor) {
    onnx::Node node;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        "op_type: 'ConstantOfShape' attribute { name: 'value' t { dims: 1 " + tensor + " } }",
        &node));
    const auto result = Fold(node, {NumbersOf({1}, {2}, true)});
    return result.ok() ? NumbersIn(*result) : std::vector<double>();
  };
  EXPECT_THAT(filled("data_type: 6 raw_data: '\\003\\000\\000\\000'"), ElementsAre(3, 3));
  EXPECT_THAT(filled("data_type: 11 double_data: 0.5"), ElementsAre(0.5, 0.5));
  EXPECT_THAT(filled("data_type: 11 raw_data: '\\000\\000\\000\\000\\000\\000\\340\\077'"),
              ElementsAre(0.5, 0.5));
  EXPECT_THAT(filled("data_type: 3 raw_data: '\\377'"), ElementsAre(-1, -1));
}

TEST(ExportTest, RefusesPositionsOutside) {
  v1::Model model;
  v1::OriginalTensor& original = *model.add_original();
  original.set_name("w");
  original.add_shape(4);
  original.set_parameter("fc/weight");
  original.add_size(4);
  original.add_stride(1);
  original.add_parameter_stride(1);
  const auto read = [](const std::string&) -> absl::StatusOr<std::vector<float>> {
    return std::vector<float>{1, 2, 3, 4};
  };
  ASSERT_TRUE(ExportTensors(model, read).ok());
  EXPECT_THAT(ExportTensors(model, read)->tensors[0].values, ElementsAre(1, 2, 3, 4));
  original.set_offset(1);
  EXPECT_FALSE(ExportTensors(model, read).ok());
  original.set_offset(0);
  original.set_stride(0, -1);
  EXPECT_FALSE(ExportTensors(model, read).ok());
  original.set_stride(0, INT64_MAX);
  EXPECT_FALSE(ExportTensors(model, read).ok());
  // Neither ends soon.
  original.set_stride(0, 0);
  original.set_parameter_stride(0, 0);
  original.set_size(0, int64_t{1} << 60);
  EXPECT_FALSE(ExportTensors(model, read).ok());
  original.set_size(0, int64_t{1} << 30);
  EXPECT_FALSE(ExportTensors(model, read).ok());
  EXPECT_EQ(ExportTensors(v1::Model(), read).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// A tensor of which the model has one row is reported, not written with made-up numbers.
TEST(ExportTest, ReportsIncompleteTensors) {
  v1::Model model;
  v1::OriginalTensor& original = *model.add_original();
  original.set_name("types");
  original.add_shape(2);
  original.add_shape(3);
  original.set_parameter("types/bias");
  original.add_size(3);
  original.add_stride(1);
  original.add_parameter_stride(1);
  const auto exported =
      ExportTensors(model, [](const std::string&) -> absl::StatusOr<std::vector<float>> {
        return std::vector<float>{1, 2, 3};
      });
  ASSERT_TRUE(exported.ok());
  EXPECT_THAT(exported->incomplete, ElementsAre("types"));
  EXPECT_TRUE(exported->tensors.empty());
}

}  // namespace
}  // namespace cadre
