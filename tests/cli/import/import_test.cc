// Graphs in protobuf text, translated: layers, weights, and errors. tests/torch compares whole
// networks with PyTorch.
#include "cli/import/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "cli/import/folding.h"
#include "model/graph.h"
#include "model/run_file.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/import/graphs.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// A network on features: `body` computes y from f, [2, 4].
absl::StatusOr<ImportedModel> OnFeatures(const std::string& body) {
  return Import({2, 4, 1, 1},
                absl::StrCat(Node("Flatten x -> f"), body, Weight("head.weight", {3, 4}),
                             Node("Gemm y head.weight -> out", Int("transB", 1))));
}

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

TEST(ImportTest, PoolingHasTheSidesOfItsWindow) {
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

// Scores [samples, 2, 4, 4] of rows [samples, 4, 6]: queries, keys and values of two heads of 3.
std::string AttentionOf(const std::string& mask, int64_t samples = 1) {
  return Weight("emb.weight", {9, 6}) + Node("Gather emb.weight x -> e") +
         Weight("qkv.weight", {6, 18}) + Node("MatMul e qkv.weight -> qkv") +
         Weight("qkv.bias", {18}) + Node("Add qkv qkv.bias -> qkvb") +
         Integers("heads", {samples, 4, 2, 3}) + Node("Split qkvb -> q3 k3 v3", Int("axis", 2)) +
         Node("Reshape q3 heads -> q4") + Node("Reshape k3 heads -> k4") +
         Node("Reshape v3 heads -> v4") + Node("Transpose q4 -> qt", Ints("perm", {0, 2, 1, 3})) +
         Node("Transpose k4 -> kt", Ints("perm", {0, 2, 3, 1})) +
         Node("Transpose v4 -> vt", Ints("perm", {0, 2, 1, 3})) + Node("MatMul qt kt -> s") +
         Scalar("scale", 1 / 1.7320508) + Node("Mul s scale -> s1") + mask +
         Node("Softmax s2 -> a") + Node("MatMul a vt -> context") +
         Node("Transpose context -> ct", Ints("perm", {0, 2, 1, 3})) +
         Integers("rows", {samples, 4, 6}) + Node("Reshape ct rows -> cr") +
         Weight("proj.weight", {6, 6}) + Weight("proj.bias", {6}) +
         Node("MatMul cr proj.weight -> o") + Node("Add o proj.bias -> ob") +
         Weight("head.weight", {6, 9}) + Node("MatMul ob head.weight -> out");
}

constexpr int kInt64 = 7;

TEST(ImportTest, AttentionTakesItsProjections) {
  const auto imported = Import({1, 4}, AttentionOf(Node("Identity s1 -> s2")), kInt64);
  EXPECT_THAT(Operations(imported), ElementsAre("embedding", "attention", "fully_connected"));
  const v1::Attention& attention = imported->model.layer(1).attention();
  EXPECT_EQ(attention.heads(), 2);
  EXPECT_FALSE(attention.causal());
  // Head 1, keys, first feature, first input: row 0, column 6 + 3 of the stored matrix.
  const NamedTensor& weight = imported->weights[1];
  EXPECT_EQ(weight.name, "qkv/qkv_weight");
  EXPECT_EQ(weight.shape, (Shape{2, 3, 3, 6}));
  EXPECT_EQ(weight.values[(1 * 3 + 1) * 3 * 6], 10);
}

TEST(ImportTest, CausalMaskIsRecognized) {
  std::string mask = "initializer { name: 'mask' data_type: 1 dims: 4 dims: 4";
  for (int row = 0; row < 4; ++row) {
    for (int column = 0; column < 4; ++column) {
      absl::StrAppend(&mask, " float_data: ", column <= row ? "0" : "-inf");
    }
  }
  const auto causal =
      Import({1, 4}, AttentionOf(mask + " }\n" + Node("Add s1 mask -> s2")), kInt64);
  ASSERT_TRUE(causal.ok()) << causal.status();
  EXPECT_TRUE(causal->model.layer(1).attention().causal());
  const auto other =
      Import({1, 4}, AttentionOf(Weight("mask", {4, 4}) + Node("Add s1 mask -> s2")), kInt64);
  EXPECT_THAT(ErrorOf(other), HasSubstr("its mask has numbers other than 0"));
}

std::string Constant(const std::string& name, const std::vector<int64_t>& dims, double number) {
  std::string text = absl::StrCat("initializer { name: '", name, "' data_type: 1");
  int64_t elements = 1;
  for (const int64_t dim : dims) {
    absl::StrAppend(&text, " dims: ", dim);
    elements *= dim;
  }
  for (int64_t i = 0; i < elements; ++i) absl::StrAppend(&text, " float_data: ", number);
  return text + " }\n";
}

// The lower triangle of a [4, 4] matrix of truth values.
std::string CausalTruth() {
  std::string mask = "initializer { name: 'lower' data_type: 9 dims: 4 dims: 4";
  for (int i = 0; i < 16; ++i) absl::StrAppend(&mask, " int32_data: ", i % 4 <= i / 4 ? 1 : 0);
  return mask + " }\n";
}

std::string MaskInput(int type) {
  return absl::StrCat("input { name: 'mask' type { tensor_type { elem_type: ", type,
                      " shape { dim { dim_value: 2 } dim { dim_value: 4 } } } } }\n");
}

constexpr int kBool = 9;

// The settings of the attention under a mask of two samples; or the error.
std::string AttentionUnder(const std::string& mask, const ImportOptions& options = {}) {
  // The mask precedes the tokens in the text, but the tokens are the first input.
  onnx::Model model = Parse({2, 4}, AttentionOf(mask, 2), kInt64);
  auto& inputs = *model.mutable_graph()->mutable_input();
  if (inputs.size() > 1) inputs.SwapElements(0, inputs.size() - 1);
  const auto imported = ImportOnnx(model, "", options);
  if (!imported.ok()) return ErrorOf(imported);
  return imported->model.layer(1).attention().ShortDebugString();
}

TEST(ImportTest, MaskOfPaddingIsRecognized) {
  const std::string axes = Integers("axes", {1, 2});
  // As BERT: (1 - mask) * number.
  const std::string kept = Integers("pad", {5}) + Node("Equal x pad -> is") + Node("Not is -> not");
  EXPECT_EQ(
      AttentionUnder(axes + kept + Node("Cast not -> m", Int("to", 1)) +
                     Node("Unsqueeze m axes -> u") + Scalar("one", 1) + Scalar("large", -10000) +
                     Node("Sub one u -> d") + Node("Mul d large -> n") + Node("Add s1 n -> s2")),
      "heads: 2 padding_token: 5");
  // As TransformerEncoder: a mask of -inf for all heads, [samples * heads, 1, keys].
  EXPECT_EQ(AttentionUnder(axes + Integers("pad", {5}) + Node("Equal x pad -> is") +
                           Scalar("zero", 0) + Scalar("inf", -INFINITY) +
                           Node("Where is inf zero -> w") + Node("Unsqueeze w axes -> u") +
                           Integers("wide", {2, 2, 1, 4}) + Node("Expand u wide -> v") +
                           Integers("flat", {4, 1, 4}) + Node("Reshape v flat -> f") +
                           Node("Reshape f wide -> n") + Node("Add n s1 -> s2")),
            "heads: 2 padding_token: 5");
  // Scores are replaced, and tokens are compared by other operators.
  for (const char* compare : {"Greater x zero -> m", "Cast x -> m", "Less zero x -> m"}) {
    EXPECT_EQ(AttentionUnder(axes + Scalar("zero", 0) + Scalar("inf", -INFINITY) +
                             Node(compare, compare[0] == 'C' ? Int("to", kBool) : "") +
                             Node("Unsqueeze m axes -> u") + Node("Where u s1 inf -> s2")),
              "heads: 2 padding_token: 0")
        << compare;
  }
  EXPECT_EQ(AttentionUnder(axes + Integers("pad", {5}) + Node("Equal x pad -> is") +
                           Scalar("inf", -INFINITY) + Node("Unsqueeze is axes -> u") +
                           Node("Where u inf s1 -> s2")),
            "heads: 2 padding_token: 5");
  // Such scores keep a weight.
  EXPECT_THAT(
      AttentionUnder(axes + Integers("pad", {5}) + Node("Equal x pad -> is") + Scalar("zero", 0) +
                     Node("Unsqueeze is axes -> u") + Node("Where u zero s1 -> s2")),
      HasSubstr("replaces scores by other numbers"));
  // With a causal mask.
  EXPECT_EQ(AttentionUnder(axes + kept + CausalTruth() + Node("Unsqueeze not axes -> u") +
                           Node("And u lower -> b") + Scalar("zero", 0) + Scalar("inf", -INFINITY) +
                           Node("Where b zero inf -> n") + Node("Add s1 n -> s2")),
            "heads: 2 causal: true padding_token: 5");
}

// The probabilities of queries without keys are not numbers; exporters replace them by 0.
TEST(ImportTest, ProbabilitiesThatAreNotNumbersMayBeReplaced) {
  const auto imported = Import(
      {1, 4},
      absl::StrReplaceAll(
          AttentionOf(Node("Identity s1 -> s2")),
          {{Node("Softmax s2 -> a"), Node("Softmax s2 -> b") + Node("IsNaN b -> nan") +
                                         Scalar("zero", 0) + Node("Where nan zero b -> a")}}),
      kInt64);
  EXPECT_THAT(Operations(imported), ElementsAre("embedding", "attention", "fully_connected"));
}

TEST(ImportTest, SecondInputIsAMaskIfTheTokenIsNamed) {
  const std::string axes = Integers("axes", {1, 2});
  // 1 for tokens, as BERT; true for padding, as TransformerEncoder.
  const std::string of_tokens = MaskInput(kInt64) + axes + Node("Cast mask -> m", Int("to", 1)) +
                                Node("Unsqueeze m axes -> u") + Scalar("one", 1) +
                                Scalar("large", -10000) + Node("Sub one u -> d") +
                                Node("Mul d large -> n") + Node("Add s1 n -> s2");
  const std::string of_padding = MaskInput(kBool) + axes + Node("Unsqueeze mask axes -> u") +
                                 Scalar("inf", -INFINITY) + Node("Where u inf s1 -> s2");
  for (const std::string& mask : {of_tokens, of_padding}) {
    EXPECT_EQ(AttentionUnder(mask, {.padding_token = 3}), "heads: 2 padding_token: 3");
    EXPECT_THAT(AttentionUnder(mask),
                AllOf(HasSubstr("input 'mask': is a second input"), HasSubstr("--padding-token")));
  }
  EXPECT_THAT(AttentionUnder(Node("Identity s1 -> s2"), {.padding_token = 3}),
              HasSubstr("the graph has no second input"));
  EXPECT_THAT(AttentionUnder(of_padding, {.padding_token = 9}),
              HasSubstr("padding_token: is 9; the vocabulary of 'emb' is 0 to 8"));
  EXPECT_THAT(AttentionUnder(MaskInput(kInt64) + Weight("types", {2, 4}) +
                                 Node("Gather types mask -> t") + Node("Add s1 t -> s2"),
                             {.padding_token = 3}),
              HasSubstr("give other inputs of the graph, such as segments, fixed values"));
}

TEST(ImportTest, MasksThatAreNotOfPadding) {
  const std::string axes = Integers("axes", {1, 2});
  const std::string inf = Scalar("inf", -INFINITY);
  const std::string is_five = axes + inf + Integers("pad", {5}) + Node("Equal x pad -> is") +
                              Node("Unsqueeze is axes -> u");
  EXPECT_THAT(AttentionUnder(axes + inf + Scalar("three", 3) + Node("Less x three -> m") +
                             Node("Unsqueeze m axes -> u") + Node("Where u inf s1 -> s2")),
              HasSubstr("so that more than one token is padding"));
  EXPECT_THAT(AttentionUnder(is_five + Node("Where u s1 inf -> s2")),
              HasSubstr("hides all tokens but 5"));
  // The mask of the queries, and masks of two tokens.
  EXPECT_THAT(AttentionUnder(is_five + Node("Transpose u -> q", Ints("perm", {0, 1, 3, 2})) +
                             Node("Where q inf s1 -> s2")),
              HasSubstr("hides keys by other tokens than their own"));
  EXPECT_THAT(AttentionUnder(is_five + Integers("six", {6}) + Node("Equal x six -> is6") +
                             Node("Or is is6 -> both") + Node("Where both inf s1 -> s2")),
              HasSubstr("its masks are of different tokens"));
  EXPECT_THAT(AttentionUnder(is_five + Node("Transpose u -> q", Ints("perm", {0, 1, 3, 2})) +
                             Node("Or u q -> both") + Node("Where both inf s1 -> s2")),
              HasSubstr("its masks are of different tokens"));
  // All samples have the mask of the first.
  EXPECT_THAT(
      AttentionUnder(is_five + Integers("from", {0}) + Integers("to", {1}) +
                     Node("Slice u from to from -> first") + Node("Where first inf s1 -> s2")),
      HasSubstr("does not hide the padding of every sample"));
  // Half of the heads have a mask.
  EXPECT_THAT(AttentionUnder(Constant("open", {2, 1, 1, 4}, 0) + is_five + Scalar("zero", 0) +
                             Node("Where u inf zero -> n") +
                             Node("Concat n open -> c", Int("axis", 1)) + Node("Add s1 c -> s2")),
              HasSubstr("does not hide the padding of every sample"));
}

// A network on images of [2, 8, 8]: `body` computes r, [samples, 3, 8, 8], from x.
std::string Pooled(const std::string& body) {
  return body + Node("GlobalAveragePool r -> p") + Node("Flatten p -> f") +
         Weight("head.weight", {4, 3}) + Node("Gemm f head.weight -> out", Int("transB", 1));
}

std::string ConvNode(const std::string& attributes = Ints("pads", {1, 1, 1, 1})) {
  return Weight("conv.weight", {3, 2, 3, 3}) + Node("Conv x conv.weight -> c", attributes);
}

std::string OutputNamed(const std::string& name) {
  return absl::StrCat("output { name: '", name, "' }\n");
}

TEST(ImportTest, SeveralOutputsNeedAChoice) {
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

TEST(ImportTest, WhatTheScoresDoNotDependOnIsReported) {
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

TEST(ImportTest, TensorsThatAreNotTrainedAreReported) {
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
  const auto part = Import({1, 4},
                           AttentionOf(Node("Identity s1 -> s2")) + Weight("types", {2, 9}) +
                               Integers("zero", {0}) + Node("Gather types zero -> t") +
                               Node("Add out t -> sum") + OutputNamed("sum"),
                           kInt64, {.scores = "sum"});
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_THAT(part->left_out, testing::Contains("tensor 'types': the model has 9 of its 18 "
                                                "elements"));
}

TEST(ImportTest, NodesMayHaveAnyOrder) {
  const std::string relu = Node("Relu c -> r");
  const auto sorted = Import({1, 2, 8, 8}, Pooled(ConvNode() + relu));
  const auto unsorted = Import({1, 2, 8, 8}, Pooled(relu + ConvNode()));
  ASSERT_TRUE(sorted.ok() && unsorted.ok()) << unsorted.status();
  EXPECT_EQ(sorted->model.SerializeAsString(), unsorted->model.SerializeAsString());
}

TEST(ImportTest, GraphsThatAreNotGraphs) {
  EXPECT_THAT(ErrorOf(Import({1, 2, 8, 8}, Pooled(ConvNode() + Node("Relu missing -> r")))),
              HasSubstr("operator Relu of node 'r_node': its input 'missing' is neither an input "
                        "or an initializer of the graph nor the result of a node"));
  EXPECT_THAT(ErrorOf(Import({1, 2, 8, 8}, Pooled(ConvNode() + Node("Add c b -> a") +
                                                  Node("Relu a -> b") + Node("Relu b -> r")))),
              AllOf(HasSubstr("a cycle of 2 nodes"), HasSubstr("'a_node'"), HasSubstr("'b_node'")));
  EXPECT_THAT(
      ErrorOf(Import({1, 2, 8, 8}, Pooled(ConvNode() + Node("Relu c -> r") + Node("Tanh c -> r")))),
      HasSubstr("value 'r' is computed by operator Tanh of node 'r_node' and by operator "
                "Relu of node 'r_node'"));
  EXPECT_THAT(ErrorOf(Import({1, 2, 8, 8}, Pooled(ConvNode() + Node("Relu c -> r") +
                                                  Weight("conv.weight", {3, 2, 3, 3})))),
              HasSubstr("two initializers 'conv.weight'"));
  EXPECT_THAT(
      ErrorOf(Import({1, 2, 8, 8},
                     Pooled(ConvNode() + Scalar("half", 0.5) + Node("Dropout c half -> d mask") +
                            Node("Cast mask -> m", Int("to", 1)) + Node("Mul c m -> r")))),
      HasSubstr("operator Cast of node 'm_node': its input 'mask' is output 1 of operator "
                "Dropout of node 'mask_node', which is not supported"));
  EXPECT_THAT(ErrorOf(Import({1, 2, 8, 8}, Weight("w", {3}) + Node("Identity w -> out"))),
              HasSubstr("output 'out' does not depend on an input of the graph"));
  EXPECT_THAT(ErrorOf(Import({1, 2, 8, 8}, ConvNode() + Node("Relu c -> out"))),
              HasSubstr("output 'out': it has the extents [1, 3, 8, 8]; scores are [samples, "
                        "classes] or"));
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

TEST(ImportTest, AutomaticPaddingThatIsSymmetric) {
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

TEST(ImportTest, BiasOfAConvolutionMayBeAdded) {
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

TEST(ImportTest, WhatCannotBeABiasIsNamed) {
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

TEST(ImportTest, ReadsTensorsOfOtherFilesOnlyInTheFolder) {
  const TemporaryFolder folder;
  folder.Write("weights", std::string(4 * 6, '\0'));
  onnx::Model model = Parse({1, 2, 1, 1}, Weight("w", {3, 2}) + Node("Flatten x -> f") +
                                              Node("Gemm f w -> out", Int("transB", 1)));
  onnx::Tensor& tensor = *model.mutable_graph()->mutable_initializer(0);
  tensor.clear_float_data();
  tensor.set_data_location(1);
  onnx::Entry& location = *tensor.add_external_data();
  location.set_key("location");
  location.set_value("weights");
  EXPECT_TRUE(ImportOnnx(model, folder.path()).ok());
  for (const char* path : {"../weights", "/etc/passwd", "missing"}) {
    location.set_value(path);
    EXPECT_FALSE(ImportOnnx(model, folder.path()).ok()) << path;
  }
  // In a cache of downloads, the model and its weights are links to one folder of blobs.
  std::filesystem::create_directories(folder / "snapshot");
  std::filesystem::create_symlink("../weights", folder / "snapshot/linked");
  location.set_value("linked");
  EXPECT_THAT(ErrorOf(ImportOnnx(model, folder / "snapshot")),
              HasSubstr("leads out of the model's folder by '..' or by a link"));
  EXPECT_TRUE(ImportOnnx(model, folder / "snapshot", {.linked_folder = folder.path()}).ok());
  location.set_value("../weights");
  EXPECT_FALSE(ImportOnnx(model, folder / "snapshot", {.linked_folder = folder.path()}).ok());
  location.set_value("weights");
  onnx::Entry& offset = *tensor.add_external_data();
  offset.set_key("offset");
  offset.set_value("8");
  EXPECT_THAT(ErrorOf(ImportOnnx(model, folder.path())), HasSubstr("from byte 8"));
}

TEST(ImportTest, RefusesFilesThatAreNotModels) {
  EXPECT_THAT(ParseOnnx("text").status().message(), HasSubstr("not an ONNX model"));
  EXPECT_THAT(ParseOnnx("version https://git-lfs.github.com/spec/v1\n").status().message(),
              HasSubstr("is not an ONNX model: it is a Git LFS pointer"));
  onnx::Model old = Parse({1, 2, 1, 1}, Node("Flatten x -> out"));
  old.mutable_opset_import(0)->set_version(9);
  EXPECT_THAT(ParseOnnx(old.SerializeAsString()).status().message(), HasSubstr("operator set 9"));
  // The default domain has two names.
  old.mutable_opset_import(0)->set_domain("ai.onnx");
  EXPECT_THAT(ParseOnnx(old.SerializeAsString()).status().message(), HasSubstr("operator set 9"));
  old.add_opset_import()->set_version(17);
  EXPECT_THAT(ParseOnnx(old.SerializeAsString()).status().message(),
              HasSubstr("several operator sets of the domain ai.onnx: 9, 17"));
  old.mutable_opset_import(0)->set_version(17);
  EXPECT_TRUE(ParseOnnx(old.SerializeAsString()).ok());
  old.clear_opset_import();
  old.add_opset_import()->set_domain("com.microsoft");
  EXPECT_THAT(ParseOnnx(old.SerializeAsString()).status().message(),
              HasSubstr("states no operator set (opset_import) of the domain ai.onnx"));
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
