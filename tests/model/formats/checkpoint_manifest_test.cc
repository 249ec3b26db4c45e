#include "model/formats/checkpoint_manifest.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/formats/checkpoint_folder.h"
#include "tests/base/expect.h"
#include "tests/base/temporary_folder.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ParameterIndex SmallIndex() {
  const v1::RunSpec spec = testing::SpecOf(R"(model {
    input { channels: 1 height: 4 width: 4 }
    layer { name: "conv" convolution { out_channels: 2 kernel: 3 no_bias: true } }
    layer { name: "norm" batch_norm {} }
    layer { name: "fc" fully_connected { out_features: 2 } }
    layer { name: "loss" softmax_cross_entropy {} } })");
  return *ParameterIndex::FromModel(spec.model());
}

TEST(CheckpointManifest, WritesAndReads) {
  const TemporaryFolder folder;
  const ParameterIndex index = SmallIndex();
  v1::CheckpointManifest manifest;
  manifest.set_format_version(kCheckpointFormat);
  manifest.mutable_spec()->set_name("demo");
  manifest.set_step(7);
  manifest.mutable_cursor()->set_position(123456789012);
  manifest.set_weights_digest(~uint64_t{0});
  DescribeParameters(index, &manifest);
  ASSERT_TRUE(WriteManifest(folder / "m", manifest).ok());
  const auto read = ReadManifest(folder / "m");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*read, manifest));
  EXPECT_TRUE(SameOrder(*read, index));
}

TEST(CheckpointManifest, OrderConsistsOfNamesAndShapes) {
  const ParameterIndex index = SmallIndex();
  v1::CheckpointManifest manifest;
  EXPECT_FALSE(SameOrder(manifest, index));
  DescribeParameters(index, &manifest);
  EXPECT_TRUE(SameOrder(manifest, index));
  manifest.mutable_parameter()->SwapElements(0, 1);
  EXPECT_FALSE(SameOrder(manifest, index));
  DescribeParameters(index, &manifest);
  manifest.mutable_parameter(0)->set_extent(0, 99);
  EXPECT_FALSE(SameOrder(manifest, index));
}

TEST(CheckpointManifest, LocatesErrors) {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& text) {
    return ReadManifest(folder.Write("m", text)).status();
  };
  EXPECT_EQ(ReadManifest(folder / "missing").status().code(), absl::StatusCode::kNotFound);
  absl::Status status = read("format_version: 1\nstep: \"x\"\n");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith(folder / "m:2:"));
  EXPECT_EQ(read("format_ver").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(read("step: 3").code(), absl::StatusCode::kInvalidArgument);
  for (const char* states : {"averaging_state {}", "optimizer { state {} }"}) {
    EXPECT_THAT(read(absl::StrCat("format_version: 1 ", states)),
                IsError(absl::StatusCode::kInvalidArgument, "a state without a name"));
  }
  status = read("format_version: 2 new_field { what: 1 }");
  EXPECT_THAT(status, IsError(absl::StatusCode::kUnimplemented, folder / "m" + ": format 2"));
  EXPECT_THAT(status, IsError(absl::StatusCode::kUnimplemented, "reads up to 1"));
}

TEST(CheckpointManifest, TensorsOfBothFiles) {
  const ParameterIndex index = SmallIndex();
  const std::vector<NamedShape> weights = WeightTensors(index);
  ASSERT_EQ(weights.size(), 7U);
  EXPECT_EQ(weights[0], (NamedShape{"conv/weight", Shape({2, 1, 3, 3})}));
  const std::vector<NamedShape> states = StateTensors(index, {"m", "v"});
  // Without the two running statistics.
  ASSERT_EQ(states.size(), 10U);
  EXPECT_EQ(states[0], (NamedShape{"conv/weight@m", Shape({2, 1, 3, 3})}));
  EXPECT_EQ(states[5], (NamedShape{"conv/weight@v", Shape({2, 1, 3, 3})}));
}

// What a program saves of a model of which it trains only `head`.
TEST(OpenWeights, AcceptsFrozenParametersOfTheModel) {
  const TemporaryFolder folder;
  const v1::RunSpec spec = testing::SpecOf(R"(model { opaque {
    parameter { name: "body" shape: 2 shape: 3 frozen_digest: "x" }
    parameter { name: "head" shape: 2 } } })");
  const NamedShape body = {"body", Shape({2, 3})}, head = {"head", Shape({2})};
  const auto open = [&](const std::vector<NamedShape>& tensors) {
    int64_t elements = 0;
    for (const NamedShape& tensor : tensors) elements += tensor.shape.elements();
    const std::string path = folder / "model.safetensors";
    EXPECT_TRUE(WriteSafetensors(path, tensors, std::vector<float>(elements, 1.0F)).ok());
    return OpenWeights(path, spec.model());
  };
  EXPECT_TRUE(open({head}).ok());
  const auto both = open({body, head});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_NE(both->Find("head"), nullptr);
  EXPECT_THAT(open({{"body", Shape({3, 2})}, head}).status(),
              IsError(absl::StatusCode::kInvalidArgument,
                      "'body' is [3, 2] in the file, [2, 3] in the model"));
  EXPECT_THAT(open({body}).status(),
              IsError(absl::StatusCode::kInvalidArgument, "'head' [2] is not in the file"));
  EXPECT_THAT(open({{"tail", Shape({1})}, head}).status(),
              IsError(absl::StatusCode::kInvalidArgument, "'tail' [1] is not in the model"));
}

// PyTorch's batch norm counts its batches in an integer buffer, which a run does not exchange.
TEST(OpenWeights, IgnoresOtherTypesThatAreNotInTheModel) {
  const TemporaryFolder folder;
  const v1::RunSpec spec =
      testing::SpecOf(R"(model { opaque { parameter { name: "norm.weight" shape: 1 } } })");
  const auto open = [&](absl::string_view name, absl::string_view type, int bytes) {
    const std::string header = absl::StrCat(
        R"({"norm.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},")", name,
        R"(":{"dtype":")", type, R"(","shape":[],"data_offsets":[4,)", 4 + bytes, "]}}");
    const std::string length = {static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
    const std::string one("\x00\x00\x80\x3f", 4);
    return OpenWeights(folder.Write("model.safetensors",
                                    absl::StrCat(length, header, one, std::string(bytes, '\1'))),
                       spec.model());
  };
  auto file = open("norm.num_batches_tracked", "I64", 8);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<float> weight(1);
  ASSERT_TRUE(file->Read(*file->Find("norm.weight"), 0, weight).ok());
  EXPECT_EQ(weight[0], 1.0F);
  EXPECT_TRUE(open("mask", "BOOL", 1).ok());
  // Types that came after this reader.
  for (const char* type : {"F4", "F6_E2M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "NEW"}) {
    EXPECT_TRUE(open("base", type, 3).ok()) << type;
  }
  // Types that it knows, but from which it reads no weights.
  for (const char* type : {"F8_E4M3", "F8_E5M2", "F8_E8M0"}) {
    EXPECT_TRUE(open("base", type, 1).ok()) << type;
  }
  for (const auto& [type, bytes] :
       {std::pair{"F32", 4}, std::pair{"F16", 2}, std::pair{"BF16", 2}, std::pair{"F64", 8}}) {
    EXPECT_THAT(
        open("norm.running_mean", type, bytes).status(),
        IsError(absl::StatusCode::kInvalidArgument, "'norm.running_mean' [] is not in the model"));
  }
}

TEST(OpenWeights, NamesWeightsOfTypesThatAreNotRead) {
  const TemporaryFolder folder;
  const v1::RunSpec spec =
      testing::SpecOf(R"(model { opaque { parameter { name: "w" shape: 2 } } })");
  for (const std::string type : {"F4", "F8_E4M3", "I8", "F8_E4M3FNUZ"}) {
    const std::string header =
        absl::StrCat(R"({"w":{"dtype":")", type, R"(","shape":[2],"data_offsets":[0,2]}})");
    const std::string length = {static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
    const std::string path = folder.Write("model.safetensors", absl::StrCat(length, header, "xx"));
    EXPECT_THAT(OpenWeights(path, spec.model()).status(),
                IsError(absl::StatusCode::kInvalidArgument,
                        absl::StrCat(path, ": tensor 'w' has type '", type, "'")));
  }
}

// Files of weights that other programs write, with an ending that promises safetensors or not.
TEST(OpenWeights, NamesOtherFormats) {
  const TemporaryFolder folder;
  const v1::RunSpec spec =
      testing::SpecOf(R"(model { opaque { parameter { name: "w" shape: 2 } } })");
  const std::string zip("PK\x03\x04\0\0\x08\x08", 8);
  for (const auto& [bytes, what] :
       {std::pair<std::string, std::string>{"version https://git-lfs.github.com/spec/v1\n",
                                            "it is a Git LFS pointer"},
        {zip, "it is a zip archive, as torch.save"},
        {"<!DOCTYPE html>", "it is a page of HTML"},
        {"Entry not found", "it is text"}}) {
    const std::string path = folder.Write("model.safetensors", bytes);
    EXPECT_THAT(
        OpenWeights(path, spec.model()).status(),
        IsError(absl::StatusCode::kInvalidArgument, path + ": is not a safetensors file: " + what));
  }
  for (const auto& [name, what] :
       {std::pair<std::string, std::string>{"model.pt", "it is a zip archive"},
        {"model.safetensors.index.json", "an index of several files"}}) {
    const std::string path = folder.Write(name, name == "model.pt" ? zip : "{\"weight_map\": {}}");
    const absl::Status status = OpenWeights(path, spec.model()).status();
    EXPECT_THAT(status,
                IsError(absl::StatusCode::kInvalidArgument, path + ": is not a checkpoint"));
    EXPECT_THAT(status, IsError(absl::StatusCode::kInvalidArgument, what));
    EXPECT_THAT(status, IsError(absl::StatusCode::kInvalidArgument, "a *.safetensors file"));
  }
}

TEST(CheckTensors, IgnoresOrder) {
  const NamedShape a = {"a", Shape({1})}, b = {"b", Shape({2})};
  EXPECT_TRUE(CheckTensors("f", {a, b}, {b, a}).ok());
  EXPECT_TRUE(CheckTensors("f", {}, {}).ok());
}

TEST(CheckTensors, ListsDifferences) {
  const absl::Status status = CheckTensors(
      "the file", {{"same", Shape({1})}, {"other", Shape({2, 3})}, {"old", Shape({4})}},
      {{"same", Shape({1})}, {"other", Shape({3, 2})}, {"new", Shape()}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(StartsWith("the file is of another model"),
            HasSubstr("'other' is [2, 3] in the file, [3, 2] in the model"),
            HasSubstr("'new' [] is not in the file"), HasSubstr("'old' [4] is not in the model"),
            Not(HasSubstr("same")), Not(HasSubstr("more"))));
}

TEST(CheckTensors, LimitsList) {
  std::vector<NamedShape> in_file, in_model;
  for (int i = 0; i < 7; ++i) {
    in_file.push_back({absl::StrCat("old", i), Shape()});
    in_model.push_back({absl::StrCat("new", i), Shape()});
  }
  const std::string message(CheckTensors("f", in_file, in_model).message());
  EXPECT_THAT(message, AllOf(HasSubstr("'new6'"), HasSubstr("'old2'"), Not(HasSubstr("'old3'")),
                             HasSubstr("; and 4 more")));
}

}  // namespace
}  // namespace cadre
