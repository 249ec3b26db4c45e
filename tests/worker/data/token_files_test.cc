// Token files: sample i is tokens [i L, i L + L], the labels one further; every width of token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/testing.h"
#include "worker/data/dataset.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string TokenBytes(const std::vector<uint32_t>& tokens, int width) {
  std::string bytes;
  for (const uint32_t token : tokens) {
    for (int b = 0; b < width; ++b) bytes.push_back(static_cast<char>(token >> (8 * b)));
  }
  return bytes;
}

class TokenFilesTest : public ::testing::Test {
 protected:
  v1::TokenFiles& data() { return *spec_.mutable_data()->mutable_token_files(); }
  void Train(const std::string& bytes) { data().set_train(folder_.Write("train.bin", bytes)); }
  absl::Status Open() { return OpenDataset(spec_, Split::kTrain).status(); }

  DataFolder folder_;
  v1::RunSpec spec_ = TokenSpec(3, 100'000, 100'000);
};

TEST_F(TokenFilesTest, EveryWidth) {
  for (const uint32_t width : {1, 2, 4}) {
    // The largest has a byte set in every place that the vocabulary reaches.
    const uint32_t large = width == 1 ? 200 : width == 2 ? 60'001 : 99'999;
    Train(TokenBytes({1, 2, large, 4, 5, 6, 7, 8}, static_cast<int>(width)));
    data().set_bytes_per_token(width);
    const auto dataset = OpenDataset(spec_, Split::kTrain);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    // Eight tokens: the seventh is the last label, the eighth has no sample.
    EXPECT_EQ((*dataset)->size(), 2);
    EXPECT_EQ((*dataset)->sample_shape(), (Shape{3}));
    EXPECT_EQ((*dataset)->labels_per_sample(), 3);
    const Samples samples = Get(**dataset, {{1}, {0, 4}});
    EXPECT_THAT(samples.inputs, ElementsAre(4, 5, 6, 1, 2, static_cast<float>(large)));
    EXPECT_THAT(samples.labels, ElementsAre(5, 6, 7, 2, static_cast<int32_t>(large), 4));
  }
}

TEST_F(TokenFilesTest, TwoBytesAreTheDefault) {
  Train(TokenBytes({1, 2, 3, 400}, 2));
  data().set_test(folder_.Write("test.bin", TokenBytes({9, 8, 7, 6, 5, 4, 3}, 2)));
  EXPECT_THAT(GetAll(**OpenDataset(spec_, Split::kTrain)).labels, ElementsAre(2, 3, 400));
  EXPECT_THAT(GetAll(**OpenDataset(spec_, Split::kTest)).inputs, ElementsAre(9, 8, 7, 6, 5, 4));
}

TEST_F(TokenFilesTest, FilesThatAreWrong) {
  Train(TokenBytes({1, 2, 3, 4}, 2) + "x");
  EXPECT_EQ(Open().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(Open().message()), HasSubstr("train.bin: has 9 bytes"));
  Train(TokenBytes({1, 2, 3}, 2));
  EXPECT_EQ(Open().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Open().message()), HasSubstr("train.bin: holds 3 tokens"));
  Train("");
  EXPECT_EQ(Open().code(), absl::StatusCode::kInvalidArgument);
  data().set_train(folder_.At("missing"));
  EXPECT_EQ(Open().code(), absl::StatusCode::kNotFound);
  Train(TokenBytes({1, 2, 3, 4}, 2));
  data().set_bytes_per_token(3);
  EXPECT_EQ(Open().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TokenFilesTest, TokensThatTheModelDoesNotKnow) {
  spec_ = TokenSpec(3, 10, 20);
  Train(TokenBytes({1, 2, 3, 15, 1, 1, 1, 25, 1, 1, 1}, 2));
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::vector<float> inputs(3);
  std::vector<int32_t> labels(3);
  const auto get = [&](int64_t index) {
    return (*dataset)->Get(std::vector<SampleRef>{{index}}, inputs, labels);
  };
  // 15 is a label, but no token that can be embedded.
  EXPECT_TRUE(get(0).ok());
  absl::Status status = get(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("token number 3, at offset 6, is 15; the model knows tokens below 10"));
  status = (*dataset)->GetLabels(std::vector<SampleRef>{{2}}, labels);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("token number 7, at offset 14, is 25"));
}

TEST_F(TokenFilesTest, AFileThatShrinksIsDataLoss) {
  Train(TokenBytes(std::vector<uint32_t>(100, 1), 2));
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  std::filesystem::resize_file(data().train(), 100);
  std::vector<float> inputs(3);
  EXPECT_TRUE((*dataset)->Get(std::vector<SampleRef>{{15}}, inputs, {}).ok());
  EXPECT_EQ((*dataset)->Get(std::vector<SampleRef>{{20}}, inputs, {}).code(),
            absl::StatusCode::kDataLoss);
}

// An epoch's order is kept in numbers of 32 bits. The file is nothing but a hole, which no disk
// holds.
TEST_F(TokenFilesTest, MoreSamplesThanAnEpochCanOrder) {
  spec_ = TokenSpec(1, 10, 10);
  data().set_bytes_per_token(1);
  Train("");
  std::filesystem::resize_file(data().train(), static_cast<uint64_t>(kMaxSamples) + 1);
  const auto most = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_EQ((*most)->size(), kMaxSamples);
  std::filesystem::resize_file(data().train(), static_cast<uint64_t>(kMaxSamples) + 2);
  EXPECT_EQ(Open().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(Open().message()),
            "the training data hold 4294967296 samples; at most 4294967295 are possible");
}

}  // namespace
}  // namespace cadre::testing
