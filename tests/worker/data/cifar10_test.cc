// CIFAR-10's files become images with channels last; files that are cut short are named.
#include "worker/data/cifar10.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/testing.h"
#include "worker/data/dataset.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseCifar10Test, AddsRecordsWithChannelsLast) {
  CifarImages images;
  ASSERT_TRUE(ParseCifar10("a", AsBytes(CifarBytes(0, {3, 9})), images).ok());
  ASSERT_TRUE(ParseCifar10("b", AsBytes(CifarBytes(2, {0})), images).ok());
  EXPECT_THAT(images.labels, ElementsAre(3, 9, 0));
  ASSERT_EQ(images.pixels.size(), 3U * 32 * 32 * 3);
  size_t at = 0;
  for (int64_t n = 0; n < 3; ++n) {
    for (int64_t y = 0; y < 32; ++y) {
      for (int64_t x = 0; x < 32; ++x) {
        for (int64_t c = 0; c < 3; ++c) ASSERT_EQ(images.pixels[at++], CifarPixel(n, c, y, x));
      }
    }
  }
}

TEST(ParseCifar10Test, RefusesWhatIsCutShort) {
  const std::string whole = CifarBytes(0, {1, 2});
  CifarImages images;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{3072}, size_t{3074}, whole.size() - 1}) {
    const absl::Status status = ParseCifar10("batch", AsBytes(whole.substr(0, size)), images);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("batch: has ", size)));
  }
  EXPECT_TRUE(images.labels.empty() && images.pixels.empty());
}

TEST(ParseCifar10Test, RefusesLabelsThatAreNone) {
  CifarImages images;
  const absl::Status status = ParseCifar10("batch", AsBytes(CifarBytes(0, {1, 10})), images);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("label 10 of record 1 at offset 3073"));
  EXPECT_TRUE(images.labels.empty() && images.pixels.empty());
}

class Cifar10DatasetTest : public ::testing::Test {
 protected:
  Cifar10DatasetTest() {
    for (int i = 1; i <= 5; ++i) {
      folder_.Write(absl::StrCat("data_batch_", i, ".bin"), CifarBytes(i * 2, {i, i + 4}));
    }
    folder_.Write("test_batch.bin", CifarBytes(77, {8}));
    data().set_directory(folder_.At(""));
  }
  v1::Cifar10& data() { return *spec_.mutable_data()->mutable_cifar10(); }

  DataFolder folder_;
  v1::RunSpec spec_ = ImageSpec(32, 32, 3, 10);
};

TEST_F(Cifar10DatasetTest, ReadsItsFilesInOrder) {
  const auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  const Samples all = GetAll(**train);
  EXPECT_THAT(all.labels, ElementsAre(1, 5, 2, 6, 3, 7, 4, 8, 5, 9));
  const auto test = OpenDataset(spec_, Split::kTest);
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_THAT(GetAll(**test).labels, ElementsAre(8));
}

// An image of the model's size is not resized, also in the test split.
TEST_F(Cifar10DatasetTest, PixelsAreNormalisedByChannel) {
  for (const float mean : {0.5F, 0.4F, 0.3F}) data().mutable_augmentation()->add_mean(mean);
  for (const float stddev : {0.2F, 0.25F, 1.0F}) data().mutable_augmentation()->add_stddev(stddev);
  for (const auto& [split, number] : {std::pair{Split::kTrain, 2}, {Split::kTest, 77}}) {
    const Samples samples = Get(**OpenDataset(spec_, split), {{0}});
    for (int64_t at = 0; at < 32 * 32 * 3; ++at) {
      const int64_t c = at % 3;
      const float value = CifarPixel(number, c, at / 96, at / 3 % 32) / 255.0F;
      const float expected = (value - data().augmentation().mean(static_cast<int>(c))) /
                             data().augmentation().stddev(static_cast<int>(c));
      ASSERT_NEAR(samples.inputs[at], expected, 1e-5F);
    }
  }
}

TEST_F(Cifar10DatasetTest, NamesTheFileThatIsWrong) {
  const std::string third = folder_.Write("data_batch_3.bin", CifarBytes(0, {1}).substr(0, 3000));
  absl::Status status = OpenDataset(spec_, Split::kTrain).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("data_batch_3.bin: has 3000 bytes"));
  std::filesystem::remove(third);
  status = OpenDataset(spec_, Split::kTrain).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("data_batch_3.bin"));
  EXPECT_TRUE(OpenDataset(spec_, Split::kTest).ok());
}

TEST_F(Cifar10DatasetTest, RefusesModelsThatItDoesNotFit) {
  spec_ = ImageSpec(32, 32, 1, 10);
  data().set_directory(folder_.At(""));
  EXPECT_EQ(OpenDataset(spec_, Split::kTrain).status().code(), absl::StatusCode::kInvalidArgument);
  spec_ = ImageSpec(32, 32, 3, 9);
  data().set_directory(folder_.At(""));
  EXPECT_EQ(OpenDataset(spec_, Split::kTrain).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cadre::testing
