// Models that Graph::FromModel refuses, with the layer, the field and the message.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/graph.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

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
           {"LARGE", "input { channels: 1 height: 262144 width: 262144 }"},
           {"EMBEDDED", tokens + " layer { name: 'e' embedding { vocabulary: 5 features: 6 } }"},
           {"LOSS", "layer { name: 'loss' softmax_cross_entropy {} }"}}),
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

TEST(GraphErrorsTest, Models) {
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

TEST(GraphErrorsTest, Windows) {
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

TEST(GraphErrorsTest, Layers) {
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

TEST(GraphErrorsTest, LayersOfSequences) {
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

TEST(GraphErrorsTest, Sampling) {
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
  v1::Model unknown = ModelOf(with("sampling { classes: 2 }"));
  v1::ClassSampling& sampling =
      *unknown.mutable_layer(2)->mutable_softmax_cross_entropy()->mutable_sampling();
  sampling.set_distribution(static_cast<v1::ClassSampling::Distribution>(7));
  EXPECT_THAT(std::string(Graph::FromModel(unknown).status().message()),
              HasSubstr("layer 'l': softmax_cross_entropy.sampling.distribution: is "
                        "7; give LOG_UNIFORM or UNIFORM"));
}

TEST(GraphErrorsTest, SizesThatOverflow) {
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
      {"input { channels: 65536 height: 1024 width: 1024 }layer { name: 'a' input: 'input' input: "
       "'input' concat {} } LOSS",
       0, "concat", "more than"},
      {"LARGE layer { name: 'a' convolution { out_channels: 1 kernel: 65536 } } LOSS", 0,
       "convolution", "more operations"},
      {"LARGE layer { name: 'a' max_pool { kernel: 32768 stride: 1 } } LOSS", 0, "max_pool",
       "more operations"},
      {"LARGE layer { name: 't' to_tokens {} }layer { name: 'a' attention { heads: 1 } } LOSS", 1,
       "attention", "more operations"},
  });
}

TEST(GraphErrorsTest, LimitsLayers) {
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
TEST(GraphErrorsTest, EscapesNames) {
  v1::Model model = ModelOf("input { channels: 1 height: 1 width: 1 } layer { relu {} }");
  model.mutable_layer(0)->set_name("\xff\n");
  EXPECT_THAT(std::string(Graph::FromModel(model).status().message()), HasSubstr("'\\xff\\n'"));
}

// Models from other programs have not been checked by the reader of run files.
TEST(GraphErrorsTest, LimitsNamesAndInputs) {
  const auto message = [](const std::string& name, int inputs) {
    v1::Model model = ModelOf(
        "input { channels: 1 height: 1 width: 2 }"
        "layer { name: 'a' relu {} } layer { add {} } LOSS");
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
