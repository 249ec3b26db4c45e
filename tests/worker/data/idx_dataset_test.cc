// Images and labels in IDX files: values, and errors of malformed files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <string>
#include <vector>

#include "tests/worker/data/testing.h"
#include "worker/data/open_dataset.h"

namespace cadre::testing {
namespace {

class IdxDatasetTest : public ::testing::Test {
 protected:
  // Three images with pixels 0, 15, 30, ... and labels 3, 0, 1.
  IdxDatasetTest() {
    std::string pixels;
    for (int i = 0; i < 18; ++i) pixels.push_back(i * 15);
    idx().set_train_images(folder_.Write("images", IdxBytes({3, 2, 3}, pixels)));
    idx().set_train_labels(folder_.Write("labels", IdxBytes({3}, std::string("\3\0\1", 3))));
    idx().set_test_images(folder_.Write("t_images", IdxBytes({1, 2, 3}, std::string(6, '\xff'))));
    idx().set_test_labels(folder_.Write("t_labels", IdxBytes({1}, std::string("\2", 1))));
    idx().set_mean(0.25F);
    idx().set_stddev(0.5F);
  }
  v1::IdxFiles& idx() { return *spec_.mutable_data()->mutable_idx(); }

  // Expects an error that names `file` and contains `what`.
  void ExpectBad(const std::string& file, const std::string& what,
                 absl::StatusCode code = kInvalidArgument) {
    const auto dataset = OpenDataset(spec_, Split::kTrain);
    EXPECT_THAT(dataset, IsError(code, folder_.At(file)));
    EXPECT_THAT(dataset, IsError(code, what));
  }

  DataFolder folder_;
  v1::RunSpec spec_ = ImageSpec(2, 3, 1, 4);
};

TEST_F(IdxDatasetTest, PixelsAreNormalized) {
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 3);
  EXPECT_EQ((*dataset)->sample_shape(), (Shape{2, 3, 1}));
  const Samples samples = Get(**dataset, {{2}, {0, 7}, {2}});
  EXPECT_EQ(samples.labels, (std::vector<int32_t>{1, 3, 1}));
  for (int i = 0; i < 18; ++i) {
    const int pixel = 15 * (i < 6 || i >= 12 ? 12 + i % 6 : i - 6);
    const float expected = (pixel / 255.0F - 0.25F) / 0.5F;
    EXPECT_EQ(samples.inputs[i], expected) << i;
  }
}

TEST_F(IdxDatasetTest, StddevOfZeroMeansOne) {
  idx().set_mean(0);
  idx().set_stddev(0);
  const auto dataset = OpenDataset(spec_, Split::kTest);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const Samples samples = Get(**dataset, {{0}});
  EXPECT_EQ(samples.inputs, std::vector<float>(6, 1.0F));
  EXPECT_EQ(samples.labels, std::vector<int32_t>{2});
}

// Files store a sample channels-first, memory channels-last.
TEST_F(IdxDatasetTest, ImagesMayHaveChannels) {
  idx().set_train_images(folder_.Write("4d", IdxBytes({3, 1, 2, 3}, std::string(18, '\0'))));
  EXPECT_TRUE(OpenDataset(spec_, Split::kTrain).ok());
  spec_.mutable_model()->mutable_input()->set_channels(2);
  ExpectBad("4d", "[3, 1, 2, 3]");
  std::string pixels;
  for (char i = 0; i < 36; ++i) pixels.push_back(i);
  idx().set_train_images(folder_.Write("4d", IdxBytes({3, 2, 2, 3}, pixels)));
  idx().set_mean(0);
  idx().set_stddev(1);
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->sample_shape(), (Shape{2, 3, 2}));
  const Samples samples = Get(**dataset, {{1}});
  for (size_t pixel = 0; pixel < 6; ++pixel) {
    for (size_t c = 0; c < 2; ++c) {
      EXPECT_EQ(samples.inputs[pixel * 2 + c], (12 + c * 6 + pixel) / 255.0F);
    }
  }
}

TEST_F(IdxDatasetTest, ReadsGzip) {
  const std::string path = folder_.At("images.gz");
  gzFile file = gzopen(path.c_str(), "wb");
  const std::string bytes =
      IdxBytes({3, 2, 3}, std::string("\0\1\2\3\4\5\6\7\x08\x09\0\0\0\0\0\0\0\xff", 18));
  ASSERT_EQ(gzwrite(file, bytes.data(), bytes.size()), std::ssize(bytes));
  gzclose(file);
  idx().set_train_images(path);
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(Get(**dataset, {{2}}).inputs[5], (1.0F - 0.25F) / 0.5F);
}

TEST_F(IdxDatasetTest, MissingFileIsNotFound) {
  idx().set_train_labels(folder_.At("nowhere"));
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  EXPECT_THAT(dataset, IsError(kNotFound, folder_.At("nowhere")));
  // The other split does not need it.
  EXPECT_TRUE(OpenDataset(spec_, Split::kTest).ok());
}

TEST_F(IdxDatasetTest, RejectsMalformedFiles) {
  const std::string whole = IdxBytes({3, 2, 3}, std::string(18, '\1'));
  for (const size_t length : {size_t{0}, size_t{3}, size_t{9}, whole.size() - 1}) {
    idx().set_train_images(folder_.Write("cut", whole.substr(0, length)));
    ExpectBad("cut", "", kDataLoss);
  }
  idx().set_train_images(folder_.Write("long", whole + "x"));
  ExpectBad("long", "", kDataLoss);
  idx().set_train_images(folder_.Write("text", "this is not an IDX file at all, but long enough"));
  ExpectBad("text", "");
}

TEST_F(IdxDatasetTest, RejectsFilesThatDoNotFitTheModel) {
  idx().set_train_images(folder_.Write("wide", IdxBytes({3, 2, 4}, std::string(24, '\0'))));
  ExpectBad("wide", "[3, 2, 4]");
  idx().set_train_images(folder_.Write("empty", IdxBytes({0, 2, 3}, "")));
  ExpectBad("empty", "no samples");
  idx().set_train_images(folder_.At("images"));
  idx().set_train_labels(folder_.Write("short", IdxBytes({2}, std::string(2, '\0'))));
  ExpectBad("short", "holds 2 labels");
  idx().set_train_labels(folder_.Write("square", IdxBytes({3, 1}, std::string(3, '\0'))));
  ExpectBad("square", "labels have one dimension");
  idx().set_train_labels(folder_.Write("beyond", IdxBytes({3}, std::string("\0\4\1", 3))));
  ExpectBad("beyond", "label 4 of sample 1");
}

}  // namespace
}  // namespace cadre::testing
