#include "model/run_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "model/validate.h"
#include "tests/base/expect.h"
#include "tests/base/temporary_folder.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  const auto file = ParseRunSpec("run.textproto", text);
  EXPECT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(file.status().message());
}

// The error for problem "m" of the field.
std::string Located(const RunSpecFile& file, const std::string& field) {
  return std::string(file.Refuse({{field, "m"}}).message());
}

TEST(RunFileTest, ReadsTheDemo) {
  const auto file = ReadRunSpec(testing::DemoPath());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->locations.path(), testing::DemoPath());
  EXPECT_EQ(file->spec.name(), "fashion-mnist-demo");
  EXPECT_EQ(file->spec.model().layer_size(), 10);
}

TEST(RunFileTest, ParsesEmptyText) {
  const auto file = ParseRunSpec("empty", "# nothing\n");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->spec.ByteSizeLong(), 0U);
}

TEST(RunFileTest, ReportsMissingFile) {
  const TemporaryFolder folder;
  EXPECT_THAT(ReadRunSpec(folder / "missing"),
              IsError(absl::StatusCode::kNotFound, folder / "missing"));
}

TEST(RunFileTest, SuggestsSimilarFieldNames) {
  EXPECT_EQ(ErrorOf("name: 'a'\nmodel {\n  layer { convolution { kernal: 3 } }\n}\n"),
            "run.textproto:3:25: Convolution has no field 'kernal'; did you mean 'kernel'?");
  EXPECT_EQ(ErrorOf("batchpergroup: 64"),
            "run.textproto:1:1: RunSpec has no field 'batchpergroup'; did you mean "
            "'batch_per_group'?");
  EXPECT_EQ(ErrorOf("stop { EPOCHS: 1 }"),
            "run.textproto:1:8: Stop has no field 'EPOCHS'; did you mean 'epochs'?");
}

TEST(RunFileTest, UnknownFieldsListKnownOnes) {
  EXPECT_EQ(ErrorOf("\nstop { until_bored: true }"),
            "run.textproto:2:8: Stop has no field 'until_bored'; it has epochs, steps, "
            "test_accuracy");
  EXPECT_EQ(ErrorOf("model { layer { relu { leak: 1 } } }"),
            "run.textproto:1:24: Relu has no field 'leak'; it has no fields");
}

TEST(RunFileTest, FindsAllUnknownFields) {
  EXPECT_EQ(ErrorOf("nam: 'a'\nmodle { layer { relu {} } }\nstop {\n  epoch\n: 1\n}\nsede: 1\n"),
            "run.textproto:1:1: RunSpec has no field 'nam'; did you mean 'name'?\n"
            "run.textproto:2:1: RunSpec has no field 'modle'; did you mean 'model'?\n"
            "run.textproto:4:3: Stop has no field 'epoch'; did you mean 'epochs'?\n"
            "run.textproto:7:1: RunSpec has no field 'sede'; did you mean 'seed'?");
}

// Columns are those of protobuf's tokenizer, with tab stops every eight characters.
TEST(RunFileTest, CountsTabsAsColumns) {
  EXPECT_THAT(ErrorOf("stop {\n\tepoch : 1\n}"), HasSubstr("run.textproto:2:9: Stop has no"));
  EXPECT_THAT(ErrorOf("stop {\n  \tepochs: x }"), HasSubstr("run.textproto:2:17: "));
}

TEST(RunFileTest, LocatesSyntaxErrors) {
  EXPECT_THAT(ErrorOf("name: 'a'\nseed: x\n"), HasSubstr("run.textproto:2:7: "));
  EXPECT_THAT(ErrorOf("name: 'a\n"), HasSubstr("run.textproto:1:9: "));
  EXPECT_THAT(ErrorOf("stop {\n  epochs: 1\n"), HasSubstr("run.textproto:3:1: "));
  EXPECT_THAT(ErrorOf("seed: -1"), HasSubstr("run.textproto:1:7: "));
  EXPECT_THAT(ErrorOf("batch_per_group: 4294967296"), HasSubstr("run.textproto:1:18: "));
  EXPECT_THAT(ErrorOf("seed: 1\nseed: 2\n"), HasSubstr("run.textproto:2:5: "));
  EXPECT_THAT(ErrorOf("data { idx {} synthetic {} }"), HasSubstr("run.textproto:1:25: "));
  EXPECT_THAT(ErrorOf("data { synthetic { exact: perhaps } }"), HasSubstr("run.textproto:1:35: "));
  EXPECT_THAT(ErrorOf("schedule { base_rate: fast }"), HasSubstr("run.textproto:1:23: "));
}

// Binary files result in an error with a bounded number of lines, not in a crash.
TEST(RunFileTest, RefusesBinaryFiles) {
  std::string bytes;
  for (int i = 0; i < 20'000; ++i) bytes.push_back(static_cast<char>(i * 37 >> 3));
  EXPECT_LT(ErrorOf(bytes).size(), 20'000U);
  EXPECT_THAT(ErrorOf("{\"name\": \"json\"}"), HasSubstr("run.textproto:1:"));
  std::string fields;
  for (int i = 0; i < 1000; ++i) fields += "x: 1\n";
  EXPECT_THAT(ErrorOf(fields), ::testing::Not(HasSubstr("run.textproto:100:")));
}

TEST(RunFileTest, NamesOtherFormats) {
  const std::string text = "name: 'a'\n";
  std::string utf16("\xff\xfe", 2);
  for (const char c : text) utf16 += {c, '\0'};
  EXPECT_THAT(ErrorOf(utf16),
              HasSubstr("run.textproto:1:1: is not a run spec in text format: it is text in "
                        "UTF-16; save it as UTF-8"));
  EXPECT_THAT(ErrorOf(utf16.substr(2)), HasSubstr("it is text in UTF-16"));
  EXPECT_THAT(ErrorOf("<!doctype html>"), HasSubstr("it is a page of HTML"));
  EXPECT_THAT(ErrorOf(std::string("PK\x03\x04\0\0", 6)), HasSubstr("it is a zip archive"));
  // The mark is no error, and does not replace other errors.
  EXPECT_TRUE(ParseRunSpec("run.textproto", "\xef\xbb\xbf" + text).ok());
  EXPECT_THAT(ErrorOf("\xef\xbb\xbf" + text + "seed: x\n"), HasSubstr("run.textproto:2:7: "));
}

constexpr char kFaulty[] = R"(name: "Upper"
model {
  input { channels: 1 height: 4 width: 4 }
  layer { name: "a" relu {} }
  layer {
    name: "b"
    convolution { out_channels: 1
      kernel: 9 }
  }
}
data { synthetic { train_samples: 10 classes: 2 } }
batch_per_group: 8
optimizer { sgd { momentum: 1 } }
schedule {}
)";

TEST(RunFileTest, LocatesProblems) {
  const auto file = ParseRunSpec("run.textproto", kFaulty);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status status = file->Refuse(FindProblems(file->spec));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            "run.textproto:1:1: name: 'Upper' has a character other than [a-z0-9-]\n"
            "run.textproto:8:7: model.layer[1].convolution.kernel: layer 'b': is 9, larger than "
            "the padded input of 4 x 4; at most 4 fits\n"
            "run.textproto:11:8: data.synthetic.test_samples: is 0; it must be at least 1\n"
            "run.textproto:13:19: optimizer.sgd.momentum: is 1; it must be at least 0 and below 1\n"
            "run.textproto:14:1: schedule.base_rate: is 0; it must be a number above 0\n"
            "run.textproto:1:1: stop: has no rule to end the run; give epochs, steps "
            "or test_accuracy");
  EXPECT_EQ(file->Refuse({}), absl::OkStatus());
}

TEST(RunFileTest, LocatesFields) {
  auto file = ParseRunSpec("f", kFaulty);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto located = [&](const std::string& field) { return Located(*file, field); };
  EXPECT_EQ(located("model.layer[0]"), "f:4:3: model.layer[0]: m");
  EXPECT_EQ(located("model.layer[0].name"), "f:4:11: model.layer[0].name: m");
  EXPECT_EQ(located("model.layer[7].name"), "f:2:1: model.layer[7].name: m") << "no such layer";
  EXPECT_EQ(located("model.layer"), "f:2:1: model.layer: m") << "the layers as a whole";
  EXPECT_EQ(located("model.layer[x].name"), "f:2:1: model.layer[x].name: m");
  EXPECT_EQ(located("cluster.groups"), "f:1:1: cluster.groups: m");
  EXPECT_EQ(located("nonsense[3].here"), "f:1:1: nonsense[3].here: m");
  EXPECT_EQ(located(""), "f:1:1: : m");
  EXPECT_EQ(located("batch_per_group.x"), "f:12:1: batch_per_group.x: m");
  // Changes of the spec do not change the locations.
  file->spec.mutable_cluster()->set_groups(3);
  EXPECT_EQ(located("cluster.groups"), "f:1:1: cluster.groups: m");
  const RunSpecFile moved = std::move(*file);
  EXPECT_EQ(Located(moved, "schedule"), "f:14:1: schedule: m");
}

constexpr char kBlocks[] = R"(model {
  input { channels: 1 height: 4 width: 4 }
  block {
    name: "conv"
    parameter: "size"
    layer { name: "conv" set: "kernel = size + 1" convolution { out_channels: 2 } }
    layer { name: "relu" relu {} }
  }
  layer { name: "a" use { block: "conv" with { key: "size" value: 1 } } }
  layer { name: "b" relu {} }
  layer { name: "c" input: "a" use { block: "conv" with { key: "size" value: 8 } } }
  layer { name: "loss" softmax_cross_entropy {} }
}
)";

TEST(RunFileTest, ExpandsBlocks) {
  const auto file = ParseRunSpec("f", kBlocks);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->spec.model().block().empty());
  std::vector<std::string> names;
  for (const v1::Layer& layer : file->spec.model().layer()) names.push_back(layer.name());
  EXPECT_THAT(names, ::testing::ElementsAre("a/conv", "a/relu", "b", "c/conv", "c/relu", "loss"));
  EXPECT_EQ(file->layer_paths[0], "model.block[0].layer[0]");
  EXPECT_EQ(file->layer_paths[2], "model.layer[1]");
}

// The message names the layer; the location is that of the field in the block.
TEST(RunFileTest, LocatesProblemsInBlocks) {
  const auto file = ParseRunSpec("f", kBlocks);
  ASSERT_TRUE(file.ok()) << file.status();
  std::string lines(file->Refuse(FindProblems(file->spec)).message());
  EXPECT_THAT(lines, HasSubstr("f:6:51: model.block[0].layer[0].convolution.kernel: layer "
                               "'c/conv': is 9, larger than the padded input of 3 x 3"));
  EXPECT_EQ(Located(*file, "model.layer[2].relu"), "f:10:21: model.layer[1].relu: m");
  EXPECT_EQ(Located(*file, "model.layer[5].name"), "f:12:11: model.layer[3].name: m");
  EXPECT_EQ(Located(*file, "model.layer[6].name"), "f:1:1: model.layer[6].name: m");
}

TEST(RunFileTest, LocatesInvalidBlocks) {
  EXPECT_EQ(ErrorOf("model {\n  block { name: 'b' layer { name: 'r'\n set: 'kernel' relu {} } }\n"
                    "  layer { name: 'u' use { block: 'b' } }\n"
                    "  layer { name: 'v' use {\n block: 'c' } } }"),
            "run.textproto:3:2: model.block[0].layer[0].set[0]: 'kernel' must be 'field = "
            "formula'\n"
            "run.textproto:6:2: model.layer[1].use.block: layer 'v': unknown block 'c'; the "
            "model has b");
}

// Known and unknown fields, in every syntax of nested messages.
TEST(RunFileTest, RefusesDeepNesting) {
  for (const std::string level : {"model { ", "a {", "a <", "model { layer { a { ", "a [{ b: "}) {
    std::string text;
    for (int i = 0; i < 400'000; ++i) text += level;
    EXPECT_FALSE(ParseRunSpec("f", text).ok()) << level;
  }
  std::string deep;
  for (int i = 0; i < 400'000; ++i) deep += "a {";
  EXPECT_THAT(std::string(ParseRunSpec("f", deep).status().message()), HasSubstr("too deep"));
}

TEST(RunFileTest, LimitsFileSize) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("large", "");
  std::filesystem::resize_file(path, (32 << 20) + 1);
  EXPECT_THAT(ReadRunSpec(path),
              IsError(absl::StatusCode::kInvalidArgument, "more than the 33554432 bytes"));
}

}  // namespace
}  // namespace cadre
