#include "model/blocks.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/graph.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::Model ParseModel(const std::string& text) {
  v1::Model model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &model)) << text;
  return model;
}

ExpandedModel Expand(const std::string& text) {
  std::vector<Problem> problems;
  ExpandedModel expanded = ExpandBlocks(ParseModel(text), &problems);
  for (const Problem& problem : problems) ADD_FAILURE() << problem.ToString();
  EXPECT_EQ(std::ssize(expanded.origins), expanded.model.layer_size());
  EXPECT_TRUE(expanded.model.block().empty());
  return expanded;
}

// The wiring of every layer as "name(inputs)".
std::vector<std::string> Wiring(const v1::Model& model) {
  std::vector<std::string> layers;
  for (const v1::Layer& layer : model.layer()) {
    layers.push_back(absl::StrCat(layer.name(), "(", absl::StrJoin(layer.input(), ", "), ")"));
  }
  return layers;
}

TEST(BlocksTest, KeepsModelWithoutBlocks) {
  const v1::Model model = ParseModel(R"(
    input { channels: 1 height: 2 width: 3 }
    layer { name: "a" relu {} }
    layer { name: "b" input: "a" input: "input" add {} }
    layer { set: "x" input: "unknown" })");
  std::vector<Problem> problems;
  const ExpandedModel expanded = ExpandBlocks(model, &problems);
  EXPECT_THAT(problems, IsEmpty()) << "shape inference reports the invalid layer";
  EXPECT_EQ(expanded.model.DebugString(), model.DebugString());
  EXPECT_THAT(expanded.origins, ElementsAre("model.layer[0]", "model.layer[1]", "model.layer[2]"));
}

constexpr char kFire[] = R"(
  block {
    name: "fire"
    parameter: "width"
    layer { name: "narrow" set: "out_channels = width" convolution { kernel: 1 } }
    layer { name: "relu" relu {} }
    layer { name: "wide" set: "out_channels=2*width" set: "kernel = width / 8 + 1" convolution {} }
    layer { name: "side" input: "input" set: "out_channels = 2 * width" convolution { kernel: 1 } }
    layer { name: "sum" input: "side" input: "wide" add {} }
  })";

TEST(BlocksTest, ExpandsUse) {
  const ExpandedModel expanded = Expand(absl::StrCat(kFire, R"(
    layer { name: "first" relu {} }
    layer { name: "a" use { block: "fire" with { key: "width" value: 16 } } }
    layer { name: "b" relu {} }
    layer { name: "join" input: "a" input: "b" input: "a/side" add {} })"));
  EXPECT_THAT(
      Wiring(expanded.model),
      ElementsAre("first()", "a/narrow(first)", "a/relu(a/narrow)", "a/wide(a/relu)",
                  "a/side(first)", "a/sum(a/side, a/wide)", "b()", "join(a/sum, b, a/side)"));
  EXPECT_EQ(expanded.model.layer(1).convolution().out_channels(), 16U);
  EXPECT_EQ(expanded.model.layer(1).convolution().kernel(), 1U);
  EXPECT_EQ(expanded.model.layer(3).convolution().out_channels(), 32U);
  EXPECT_EQ(expanded.model.layer(3).convolution().kernel(), 3U);
  EXPECT_TRUE(expanded.model.layer(3).set().empty());
  EXPECT_THAT(expanded.origins,
              ElementsAre("model.layer[0]", "model.block[0].layer[0]", "model.block[0].layer[1]",
                          "model.block[0].layer[2]", "model.block[0].layer[3]",
                          "model.block[0].layer[4]", "model.layer[2]", "model.layer[3]"));
}

TEST(BlocksTest, InputsOfUses) {
  const ExpandedModel expanded = Expand(R"(
    block { name: "r" layer { name: "r" relu {} } }
    layer { name: "a" use { block: "r" } }
    layer { name: "b" use { block: "r" } }
    layer { name: "c" input: "a" use { block: "r" } }
    layer { name: "d" input: "input" use { block: "r" } })");
  EXPECT_THAT(Wiring(expanded.model),
              ElementsAre("a/r(input)", "b/r(a/r)", "c/r(a/r)", "d/r(input)"));
}

TEST(BlocksTest, TimesRepeatsBlock) {
  const ExpandedModel expanded = Expand(R"(
    block { name: "res" layer { name: "f" relu {} }
            layer { name: "add" input: "f" input: "input" add {} } }
    layer { name: "s" use { block: "res" times: 3 } }
    layer { name: "end" input: "s" relu {} })");
  EXPECT_THAT(
      Wiring(expanded.model),
      ElementsAre("s1/f(input)", "s1/add(s1/f, input)", "s2/f(s1/add)", "s2/add(s2/f, s1/add)",
                  "s3/f(s2/add)", "s3/add(s3/f, s2/add)", "end(s3/add)"));
}

TEST(BlocksTest, BlocksUseBlocks) {
  const ExpandedModel expanded = Expand(R"(
    block { name: "fc" parameter: "out"
            layer { name: "fc" set: "out_features = out" fully_connected {} } }
    block { name: "two" parameter: "width"
            layer { name: "up" set: "out = 4 * width" use { block: "fc" } }
            layer { name: "act" gelu {} }
            layer { name: "down" set: "out = width" use { block: "fc" times: 2 } }
            layer { name: "sum" input: "down" input: "up/fc" input: "input" add {} } }
    layer { name: "x" use { block: "two" with { key: "width" value: 5 } } })");
  EXPECT_THAT(Wiring(expanded.model),
              ElementsAre("x/up/fc(input)", "x/act(x/up/fc)", "x/down1/fc(x/act)",
                          "x/down2/fc(x/down1/fc)", "x/sum(x/down2/fc, x/up/fc, input)"));
  EXPECT_EQ(expanded.model.layer(0).fully_connected().out_features(), 20U);
  EXPECT_EQ(expanded.model.layer(3).fully_connected().out_features(), 5U);
  EXPECT_EQ(expanded.origins[0], "model.block[0].layer[0]");
  EXPECT_EQ(expanded.origins[1], "model.block[1].layer[1]");
}

std::vector<Problem> ProblemsOf(const std::string& text) {
  std::vector<Problem> problems;
  ExpandBlocks(ParseModel(text), &problems);
  return problems;
}

// Expects one problem, of this field, whose message contains the text.
void ExpectProblem(const std::string& model, const std::string& field, const std::string& message) {
  SCOPED_TRACE(model.substr(0, 1000));
  const std::vector<Problem> problems = ProblemsOf(model);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].field, field);
  EXPECT_THAT(problems[0].message, HasSubstr(message));
}

// A model that uses a block once.
std::string Used(const std::string& block) {
  return absl::StrCat("block { name: 'b' ", block, " } layer { name: 'u' use { block: 'b' } }");
}

// A model, and the field and message of its problem.
using InvalidBlock = std::array<std::string, 3>;

TEST(BlocksTest, InvalidModels) {
  const InvalidBlock cases[] = {
      {"block { layer { name: 'r' relu {} } }", "model.block[0].name", "no name"},
      {"block { name: 'b' layer { name: 'r' relu {} } }block { name: 'b' layer { name: 'r' relu {} "
       "} }",
       "model.block[1].name", "'b' is the name of an earlier block"},
      {"block { name: 'b' }", "model.block[0]", "has no layers"},
      {"block { name: 'b' parameter: 'w2' layer { name: 'r' relu {} } }",
       "model.block[0].parameter[0]", "'w2' is not a parameter name; use only [a-z_]"},
      {"block { name: 'b' parameter: 'w' parameter: 'w' layer { name: 'r' relu {} } }",
       "model.block[0].parameter[1]", "'w' is already a parameter of the block"},
      {"block { name: 'b' layer { name: 'r' relu {} } }layer { name: 'u' use { block: 'c' } }",
       "model.layer[0].use.block", "layer 'u': unknown block 'c'; the model has b"},
      {"layer { name: 'u' use {} }", "model.layer[0].use.block",
       "unknown block ''; the model has no blocks"},
      {"block { name: 'b' layer { name: 'r' relu {} } } layer { use { block: 'b' } }",
       "model.layer[0].name", "no name"},
      {Used("layer { relu {} }"), "model.block[0].layer[0].name", "no name"},
      {"block { name: 'b' layer { name: 'r' relu {} } } layer { name: 'a' relu {} }layer { name: "
       "'u' input: 'a' input: 'input' use { block: 'b' } }",
       "model.layer[1].input[1]", "layer 'u': a block takes one input, not 2"},
      {Used("parameter: 'w' layer { name: 'r' relu {} }"), "model.layer[0].use",
       "block 'b' requires a value for 'w'"},
      {"block { name: 'b' parameter: 'w' layer { name: 'r' relu {} } }layer { name: 'u' use { "
       "block: 'b' with { key: 'w' value: 1 }  with { key: 'v' value: 1 } } }",
       "model.layer[0].use", "block 'b' has no parameter 'v'; it has w"},
      {Used("layer { name: 'r' input: 'outside' relu {} } }layer { name: 'outside' relu {}"),
       "model.block[0].layer[0].input[0]",
       "layer 'u/r': the block has no layer 'outside' before this one"},
      {Used("layer { name: 'r' input: 's' relu {} } layer { name: 's' relu {} }"),
       "model.block[0].layer[0].input[0]", "no layer 's' before this one"},
      {"block { name: 'a' layer { name: 'x' use { block: 'b' } } }block { name: 'b' layer { name: "
       "'y' use { block: 'a' } } }layer { name: 'u' use { block: 'a' } }",
       "model.block[1].layer[0].use.block", "layer 'u/x/y': block 'a' uses itself: a -> b -> a"},
      // Problems of a block are reported once, however often it is used.
      {"block { name: 'b' layer { name: 'c' input: 'x' relu {} } }layer { name: 'u' use { block: "
       "'b' times: 4000000000 } }",
       "model.block[0].layer[0].input[0]", "no layer 'x'"},
      {"block { name: 'b' layer { name: 'c' relu {} } }layer { name: 'u' use { block: 'b' times: "
       "4000000000 } }",
       "model.block[0].layer[0]", "more than 16384 layers"},
  };
  for (const auto& [model, field, message] : cases) ExpectProblem(model, field, message);
}

TEST(BlocksTest, InvalidFormulas) {
  const InvalidBlock cases[] = {
      {"block { name: 'b' parameter: 'w' layer { name: 'r' relu {} } }layer { name: 'u' set: 'w = "
       "1' use { block: 'b' } }",
       "model.layer[0].set[0]", "is only valid in layers of blocks; set the field directly"},
      {Used("layer { name: 'c' set: 'kernel 3' convolution {} }"), "model.block[0].layer[0].set[0]",
       "'kernel 3' must be 'field = formula'"},
      {"block { name: 'b' parameter: 'w'  layer { name: 'c' set: 'kernel = w / 2' convolution {} } "
       "}layer { name: 'u' use { block: 'b' with { key: 'w' value: 3 } } }",
       "model.block[0].layer[0].set[0]", "layer 'u/c': 'w / 2' divides 3 by 2"},
      {Used("layer { name: 'c' set: 'channels = 1' attention {} }"),
       "model.block[0].layer[0].set[0]", "Attention has no integer field 'channels'; it has heads"},
      {Used("layer { name: 'c' set: 'rate = 1' dropout {} }"), "model.block[0].layer[0].set[0]",
       "Dropout has no integer field 'rate'; it has none"},
      {Used("layer { name: 'c' set: 'kernel = 1' convolution { kernel: 1 } }"),
       "model.block[0].layer[0].set[0]", "'kernel' is given twice"},
      {"block { name: 'a' parameter: 'w' layer { name: 'r' relu {} } }block { name: 'b' layer { "
       "name: 'x' set: 'w = 1'  use { block: 'a' with { key: 'w' value: 1 } } } }layer { name: 'u' "
       "use { block: 'b' } }",
       "model.block[1].layer[0].set[0]", "'w' is given twice"},
      {Used("layer { name: 'c' set: 'kernel = 1 - 2' convolution {} }"),
       "model.block[0].layer[0].set[0]", "kernel becomes -1; it must be between 0 and"},
      {Used("layer { name: 'c' set: 'kernel = 4294967296' convolution {} }"),
       "model.block[0].layer[0].set[0]", "kernel becomes 4294967296"},
      {Used("layer { name: 'c' set: 'kernel = 1' }"), "model.block[0].layer[0].set[0]",
       "has no operation"},
  };
  for (const auto& [model, field, message] : cases) ExpectProblem(model, field, message);
}

// Each block uses the next one twice, which would make 2^40 layers.
TEST(BlocksTest, LimitsNesting) {
  std::string model = "block { name: 'b0' layer { name: 'r' relu {} } }";
  for (int i = 1; i <= 40; ++i) {
    absl::StrAppend(&model, "block { name: 'b", i, "' layer { name: 'x' use { block: 'b", i - 1,
                    "' times: 2 } } }");
  }
  std::vector<Problem> problems = ProblemsOf(model + "layer { name: 'u' use { block: 'b40' } }");
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_THAT(problems[0].message, HasSubstr("more than 32 nested blocks"));
  problems = ProblemsOf(model + "layer { name: 'u' use { block: 'b30' } }");
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_THAT(problems[0].message, HasSubstr("more than 16384 layers"));
}

TEST(BlocksTest, ExpandedNamesInErrors) {
  const ExpandedModel expanded = Expand(
      absl::StrCat("input { channels: 3 height: 8 width: 8 }", kFire,
                   "layer { name: 'a' use { block: 'fire' with { key: 'width' value: 16 } } }"
                   "layer { name: 'pool' global_average_pool {} } layer { name: 'l' "
                   "softmax_cross_entropy {} }"));
  // The kernel of 3 has no padding.
  EXPECT_THAT(std::string(Graph::FromModel(expanded.model).status().message()),
              HasSubstr("layer 'a/sum': add: adds [8, 8, 32] and [6, 6, 32]"));
}

// The expansion would repeat each text thousands of times. Error messages do not contain the texts.
TEST(BlocksTest, LongTextsFailBeforeExpansion) {
  const std::string large(1 << 20, 'a');
  const std::string block = "block { name: 'b' layer { name: 'r' relu {} } }";
  const std::string use = "layer { name: 'u' use { block: 'b' times: 4000 } }";
  const struct {
    std::string model, field, message;
  } cases[] = {
      {"block { name: 'b' layer { name: '" + large + "' relu {} } }" + use,
       "model.block[0].layer[0].name", "has 1048576 characters; at most 200"},
      {"block { name: '" + large + "' layer { name: 'r' relu {} } }" + use, "model.block[0].name",
       "at most 200"},
      {block + "layer { name: '" + large + "' use { block: 'b' times: 4000 } }",
       "model.layer[0].name", "at most 200"},
      {block + "layer { name: '" + large + "' relu {} }" + use, "model.layer[0].name",
       "at most 1000"},
      {block + "layer { name: 'u' input: '" + large + "' use { block: 'b' times: 4000 } }",
       "model.layer[0].input[0]", "at most 1000"},
      {"block { name: 'b' layer { name: 'r' set: '" + large + "' relu {} } }" + use,
       "model.block[0].layer[0].set[0]", "at most 1000"},
      {"block { name: 'b' parameter: '" + large + "' layer { name: 'r' relu {} } }" + use,
       "model.block[0].parameter[0]", "at most 200"},
      {"layer { name: 'u' use { block: '" + large + "' } }", "model.layer[0].use.block",
       "at most 200"},
  };
  for (const auto& invalid : cases) {
    SCOPED_TRACE(invalid.field);
    const std::vector<Problem> problems = ProblemsOf(invalid.model);
    ASSERT_GE(problems.size(), 1U);
    EXPECT_EQ(problems[0].field, invalid.field);
    EXPECT_THAT(problems[0].message, HasSubstr(invalid.message));
    for (const Problem& problem : problems) EXPECT_LT(problem.message.size(), 3000U);
  }
}

TEST(BlocksTest, LongestNamesAreLegal) {
  const std::string name(200, 'a');
  const std::string own(1000, 'b');
  const ExpandedModel expanded = Expand(
      "block { name: '" + name + "' layer { name: '" + name + "' relu {} } } layer { name: '" +
      own + "' relu {} } layer { name: '" + name + "' use { block: '" + name + "' } }");
  EXPECT_THAT(Wiring(expanded.model), ElementsAre(own + "()", name + "/" + name + "(" + own + ")"));
}

// Five names of 200 characters and their slashes are more than 1,000.
TEST(BlocksTest, LimitsExpandedNames) {
  const std::string name(200, 'a');
  std::string model = "block { name: 'b0' layer { name: '" + name + "' relu {} } }";
  for (int i = 1; i < 4; ++i) {
    absl::StrAppend(&model, "block { name: 'b", i, "' layer { name: '", name, "' use { block: 'b",
                    i - 1, "' } } }");
  }
  ExpectProblem(model + "layer { name: '" + name + "' use { block: 'b3' } }",
                "model.block[0].layer[0].name", "it has 1004 characters; at most 1000");
}

TEST(BlocksTest, LimitsExpandedBytes) {
  // A layer of 1,024 inputs of 200 characters, 16,000 times.
  std::string layer = "layer { name: 'r' add {}";
  for (int i = 0; i < 1024; ++i) absl::StrAppend(&layer, " input: '", std::string(200, 'f'), "'");
  const std::string first = "layer { name: '" + std::string(200, 'f') + "' relu {} }";
  ExpectProblem("block { name: 'b' " + first + layer + " } }" +
                    "layer { name: 'u' use { block: 'b' times: 8000 } }",
                "model.block[0].layer[1]", "take more than 67108864 bytes");
  // The same with one more input is too large.
  ExpectProblem("block { name: 'b' " + first + layer + " input: 'input' } }" +
                    "layer { name: 'u' use { block: 'b' } }",
                "model.block[0].layer[1].input", "takes 1025 inputs; at most 1024");
  std::string many;
  for (int i = 0; i < 1001; ++i) absl::StrAppend(&many, "block { name: 'b", i, "' }");
  ExpectProblem(many, "model.block", "the model has 1001 blocks; at most 1000 are possible");
}

TEST(BlocksTest, LimitsProblems) {
  std::string model;
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&model, "layer { name: 'u", i, "' use {} }");
  EXPECT_EQ(ProblemsOf(model).size(), 100U);
}

}  // namespace
}  // namespace cadre
