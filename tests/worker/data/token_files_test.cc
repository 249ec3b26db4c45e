// Token files: the inputs of sample i are tokens [i L, i L + L), and the label of each token is the
// token after it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/testing.h"
#include "worker/data/open_dataset.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;

std::string TokenBytes(const std::vector<uint32_t>& tokens, int width) {
  std::string bytes;
  for (const uint32_t token : tokens) {
    for (int b = 0; b < width; ++b) bytes.push_back(token >> (8 * b));
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

TEST_F(TokenFilesTest, ReadsEveryWidth) {
  for (const uint32_t width : {1, 2, 4}) {
    // The large token uses every byte that the vocabulary needs.
    const uint32_t large = width == 1 ? 200 : width == 2 ? 60'001 : 99'999;
    Train(TokenBytes({1, 2, large, 4, 5, 6, 7, 8}, width));
    data().set_bytes_per_token(width);
    const auto dataset = OpenDataset(spec_, Split::kTrain);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    // The seventh of eight tokens is the last label, and the eighth is not used.
    EXPECT_EQ((*dataset)->size(), 2);
    EXPECT_EQ((*dataset)->sample_shape(), (Shape{3}));
    EXPECT_EQ((*dataset)->labels_per_sample(), 3);
    const Samples samples = Get(**dataset, {{1}, {0, 4}});
    EXPECT_THAT(samples.inputs, ElementsAre(4, 5, 6, 1, 2, large));
    EXPECT_THAT(samples.labels, ElementsAre(5, 6, 7, 2, large, 4));
  }
}

// Any bytes are tokens, so a header or a compressed file would be trained on.
TEST_F(TokenFilesTest, RefusesFilesOfOtherFormats) {
  const std::string npy("\x93NUMPY\x01\0v\0{'descr': '<u2'}", 25);
  const std::string gzip("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10);
  for (const auto& [first, what] :
       {std::pair<std::string, std::string>{npy, "it is a NumPy array (.npy)"},
        {gzip, "it is compressed (gzip); decompress it"},
        {std::string("PK\x03\x04", 4), "it is a zip archive"},
        {"version https://git-lfs.github.com/spec/v1\n", "it is a Git LFS pointer"}}) {
    Train(first + std::string(101 - first.size() % 2, '\1'));
    for (const uint32_t width : {1, 2, 4}) {
      data().set_bytes_per_token(width);
      EXPECT_THAT(Open(), IsError(kInvalidArgument,
                                  "train.bin: is not a file of tokens, which has "
                                  "no header: " +
                                      what));
    }
  }
  // Tokens of bytes may be text, and two bytes may be any token.
  data().set_bytes_per_token(1);
  Train("<html>text of a byte-level model");
  EXPECT_THAT(Open(), IsOk());
  data().set_bytes_per_token(2);
  Train("<html>not found</html>");
  EXPECT_THAT(Open(), IsError(kInvalidArgument, "it is a page of HTML"));
  Train("{\"text\": \"a line\"}\n");
  EXPECT_THAT(Open(), IsError(kInvalidArgument, "it is text"));
  Train(TokenBytes({0xfeff, 0xd8ff, 0xe0ff, 1, 2, 3, 4}, 2));
  EXPECT_THAT(Open(), IsOk());
}

TEST_F(TokenFilesTest, TwoBytesAreTheDefault) {
  Train(TokenBytes({1, 2, 3, 400}, 2));
  data().set_test(folder_.Write("test.bin", TokenBytes({9, 8, 7, 6, 5, 4, 3}, 2)));
  EXPECT_THAT(GetAll(**OpenDataset(spec_, Split::kTrain)).labels, ElementsAre(2, 3, 400));
  EXPECT_THAT(GetAll(**OpenDataset(spec_, Split::kTest)).inputs, ElementsAre(9, 8, 7, 6, 5, 4));
}

// The loss takes the scores of the last two of three tokens.
TEST_F(TokenFilesTest, LossOfLastTokensHasTheirLabels) {
  v1::Model& model = *spec_.mutable_model();
  v1::Layer& target = *model.add_layer();
  target.set_name("target");
  target.mutable_take_token()->set_token(1);
  target.mutable_take_token()->set_count(2);
  for (int i = model.layer_size() - 1; i > 1; --i) model.mutable_layer()->SwapElements(i, i - 1);
  Train(TokenBytes({1, 2, 3, 4, 5, 6, 7}, 2));
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->labels_per_sample(), 2);
  const Samples samples = GetAll(**dataset);
  EXPECT_THAT(samples.inputs, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(samples.labels, ElementsAre(3, 4, 6, 7));
}

TEST_F(TokenFilesTest, RejectsMalformedFiles) {
  Train(TokenBytes({1, 2, 3, 4}, 2) + "x");
  EXPECT_THAT(Open(), IsError(kDataLoss, "train.bin: has 9 bytes"));
  Train(TokenBytes({1, 2, 3}, 2));
  EXPECT_THAT(Open(), IsError(kInvalidArgument, "train.bin: holds 3 tokens"));
  Train("");
  EXPECT_THAT(Open(), IsError(kInvalidArgument, "holds 0 tokens"));
  data().set_train(folder_.At("missing"));
  EXPECT_EQ(Open().code(), absl::StatusCode::kNotFound);
  Train(TokenBytes({1, 2, 3, 4}, 2));
  data().set_bytes_per_token(3);
  EXPECT_EQ(Open().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TokenFilesTest, RejectsTokensOutsideTheVocabulary) {
  spec_ = TokenSpec(3, 10, 20);
  Train(TokenBytes({1, 2, 3, 15, 1, 1, 1, 25, 1, 1, 1}, 2));
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::vector<int32_t> labels(3);
  // 15 is a valid label, but not in the vocabulary of the embedding.
  EXPECT_TRUE(TryGet(**dataset, 0).ok());
  absl::Status status = TryGet(**dataset, 1);
  EXPECT_THAT(status,
              IsError(kInvalidArgument,
                      "token number 3, at offset 6, is 15; the model accepts tokens below 10"));
  status = (*dataset)->GetLabels(std::vector<SampleRef>{{2}}, labels);
  EXPECT_THAT(status, IsError(kInvalidArgument, "token number 7, at offset 14, is 25"));
}

TEST_F(TokenFilesTest, FileThatShrinksIsDataLoss) {
  Train(TokenBytes(std::vector<uint32_t>(100, 1), 2));
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  std::filesystem::resize_file(data().train(), 100);
  EXPECT_TRUE(TryGet(**dataset, 15).ok());
  EXPECT_THAT(TryGet(**dataset, 20), IsError(kDataLoss, "train.bin"));
}

// The order of an epoch is stored in 32 bits. The file is sparse, so it takes no space.
TEST_F(TokenFilesTest, RejectsTooManySamples) {
  spec_ = TokenSpec(1, 10, 10);
  data().set_bytes_per_token(1);
  Train("");
  std::filesystem::resize_file(data().train(), kMaxSamples + 1);
  const auto largest = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(largest.ok()) << largest.status();
  EXPECT_EQ((*largest)->size(), kMaxSamples);
  std::filesystem::resize_file(data().train(), kMaxSamples + 2);
  EXPECT_EQ(Open().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(Open().message()),
            "the training data hold 4294967296 samples; at most 4294967295 are possible");
}

}  // namespace
}  // namespace cadre::testing
