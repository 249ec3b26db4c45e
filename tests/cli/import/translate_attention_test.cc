// Attention and its masks, translated.
#include "cli/import/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/cli/import/graphs.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST(AttentionTest, AttentionTakesItsProjections) {
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

TEST(AttentionTest, CausalMaskIsRecognized) {
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

TEST(AttentionTest, MaskOfPaddingIsRecognized) {
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
TEST(AttentionTest, ProbabilitiesThatAreNotNumbersMayBeReplaced) {
  const auto imported = Import(
      {1, 4},
      absl::StrReplaceAll(
          AttentionOf(Node("Identity s1 -> s2")),
          {{Node("Softmax s2 -> a"), Node("Softmax s2 -> b") + Node("IsNaN b -> nan") +
                                         Scalar("zero", 0) + Node("Where nan zero b -> a")}}),
      kInt64);
  EXPECT_THAT(Operations(imported), ElementsAre("embedding", "attention", "fully_connected"));
}

TEST(AttentionTest, SecondInputIsAMaskIfTheTokenIsNamed) {
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

TEST(AttentionTest, MasksThatAreNotOfPadding) {
  const std::string axes = Integers("axes", {1, 2});
  const std::string inf = Scalar("inf", -INFINITY);
  const std::string is_five = axes + inf + Integers("pad", {5}) + Node("Equal x pad -> is") +
                              Node("Unsqueeze is axes -> u");
  const std::string of_queries = is_five + Node("Transpose u -> q", Ints("perm", {0, 1, 3, 2}));
  const struct {
    std::string mask;
    const char* error;
  } cases[] = {
      {axes + inf + Scalar("three", 3) + Node("Less x three -> m") + Node("Unsqueeze m axes -> u") +
           Node("Where u inf s1 -> s2"),
       "so that more than one token is padding"},
      {is_five + Node("Where u s1 inf -> s2"), "hides all tokens but 5"},
      {of_queries + Node("Where q inf s1 -> s2"), "hides keys by other tokens than their own"},
      // Masks of two tokens.
      {is_five + Integers("six", {6}) + Node("Equal x six -> is6") + Node("Or is is6 -> both") +
           Node("Where both inf s1 -> s2"),
       "its masks are of different tokens"},
      {of_queries + Node("Or u q -> both") + Node("Where both inf s1 -> s2"),
       "its masks are of different tokens"},
      // All samples have the mask of the first.
      {is_five + Integers("from", {0}) + Integers("to", {1}) +
           Node("Slice u from to from -> first") + Node("Where first inf s1 -> s2"),
       "does not hide the padding of every sample"},
      // Half of the heads have a mask.
      {Constant("open", {2, 1, 1, 4}, 0) + is_five + Scalar("zero", 0) +
           Node("Where u inf zero -> n") + Node("Concat n open -> c", Int("axis", 1)) +
           Node("Add s1 c -> s2"),
       "does not hide the padding of every sample"},
  };
  for (const auto& [mask, error] : cases) EXPECT_THAT(AttentionUnder(mask), HasSubstr(error));
}

TEST(AttentionTest, RowsThatTheModelLacksAreReported) {
  const auto part = Import({1, 4},
                           AttentionOf(Node("Identity s1 -> s2")) + Weight("types", {2, 9}) +
                               Integers("zero", {0}) + Node("Gather types zero -> t") +
                               Node("Add out t -> sum") + OutputNamed("sum"),
                           kInt64, {.scores = "sum"});
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_THAT(part->left_out, testing::Contains("tensor 'types': the model has 9 of its 18 "
                                                "elements"));
}

}  // namespace
}  // namespace cadre
