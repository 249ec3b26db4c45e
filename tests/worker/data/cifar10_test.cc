// CIFAR-10 files become images with channels last; errors name the file.
#include "worker/data/cifar10.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/testing.h"
#include "worker/data/open_dataset.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;

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

TEST(ParseCifar10Test, RejectsTruncatedFiles) {
  const std::string whole = CifarBytes(0, {1, 2});
  CifarImages images;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{3072}, size_t{3074}, whole.size() - 1}) {
    const absl::Status status = ParseCifar10("batch", AsBytes(whole.substr(0, size)), images);
    EXPECT_THAT(status, IsError(kDataLoss, absl::StrCat("batch: has ", size)));
  }
  EXPECT_TRUE(images.labels.empty() && images.pixels.empty());
}

TEST(ParseCifar10Test, RejectsInvalidLabels) {
  CifarImages images;
  const absl::Status status = ParseCifar10("batch", AsBytes(CifarBytes(0, {1, 10})), images);
  EXPECT_THAT(status, IsError(kInvalidArgument, "label 10 of record 1 at offset 3073"));
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

TEST_F(Cifar10DatasetTest, ReadsFilesInOrder) {
  const auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  const Samples all = GetAll(**train);
  EXPECT_THAT(all.labels, ElementsAre(1, 5, 2, 6, 3, 7, 4, 8, 5, 9));
  const auto test = OpenDataset(spec_, Split::kTest);
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_THAT(GetAll(**test).labels, ElementsAre(8));
}

// The images have the model's size, so they are not resized in either split.
TEST_F(Cifar10DatasetTest, PixelsAreNormalizedByChannel) {
  for (const float mean : {0.5F, 0.4F, 0.3F}) data().mutable_augmentation()->add_mean(mean);
  for (const float stddev : {0.2F, 0.25F, 1.0F}) data().mutable_augmentation()->add_stddev(stddev);
  for (const auto& [split, number] : {std::pair{Split::kTrain, 2}, {Split::kTest, 77}}) {
    const Samples samples = Get(**OpenDataset(spec_, split), {{0}});
    for (int64_t at = 0; at < 32 * 32 * 3; ++at) {
      const int64_t c = at % 3;
      const float value = CifarPixel(number, c, at / 96, at / 3 % 32) / 255.0F;
      const float expected =
          (value - data().augmentation().mean(c)) / data().augmentation().stddev(c);
      ASSERT_NEAR(samples.inputs[at], expected, 1e-5F);
    }
  }
}

TEST_F(Cifar10DatasetTest, ErrorsNameTheFile) {
  const std::string third = folder_.Write("data_batch_3.bin", CifarBytes(0, {1}).substr(0, 3000));
  EXPECT_THAT(OpenDataset(spec_, Split::kTrain),
              IsError(kDataLoss, "data_batch_3.bin: has 3000 bytes"));
  std::filesystem::remove(third);
  EXPECT_THAT(OpenDataset(spec_, Split::kTrain), IsError(kNotFound, "data_batch_3.bin"));
  EXPECT_TRUE(OpenDataset(spec_, Split::kTest).ok());
}

TEST_F(Cifar10DatasetTest, RejectsModelsThatDoNotFit) {
  spec_ = ImageSpec(32, 32, 1, 10);
  data().set_directory(folder_.At(""));
  EXPECT_THAT(OpenDataset(spec_, Split::kTrain), IsError(kInvalidArgument, "CIFAR-10 has"));
  spec_ = ImageSpec(32, 32, 3, 9);
  data().set_directory(folder_.At(""));
  EXPECT_THAT(OpenDataset(spec_, Split::kTrain), IsError(kInvalidArgument, "CIFAR-10 has"));
}

}  // namespace
}  // namespace cadre::testing
