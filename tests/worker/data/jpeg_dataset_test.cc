// Folders and tar shards of JPEG files: classes, order, pixels; and samples that cannot be read.
#include "worker/data/jpeg_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/testing.h"
#include "worker/data/dataset.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kSide = 8;

// A JPEG of the model's size, all of one value.
std::string Plain(int value) { return PlainJpeg(kSide, kSide, static_cast<uint8_t>(value)); }

// The value of which a sample's image is, if it is of one.
int ValueOf(const Samples& samples, size_t i) {
  const size_t elements = samples.inputs.size() / samples.labels.size();
  const float first = samples.inputs[i * elements];
  for (size_t k = 0; k < elements; ++k) {
    EXPECT_NEAR(samples.inputs[i * elements + k], first, 0.02F);
  }
  return static_cast<int>(std::lround(first * 255));
}

std::vector<int> ValuesOf(const Samples& samples) {
  std::vector<int> values;
  for (size_t i = 0; i < samples.labels.size(); ++i) values.push_back(ValueOf(samples, i));
  return values;
}

class ImageFolderTest : public ::testing::Test {
 protected:
  ImageFolderTest() {
    // Written in another order than names have.
    folder_.Write("train/b/2.jpg", Plain(50));
    folder_.Write("train/b/10.JPEG", Plain(40));
    folder_.Write("train/c/x.jpeg", Plain(60));
    folder_.Write("train/a/1.jpg", Plain(10));
    folder_.Write("train/a/notes.txt", "not an image");
    folder_.Write("train/readme", "not a class");
    folder_.Write("test/c/1.jpg", Plain(200));
    folder_.Write("test/a/1.jpg", Plain(100));
    data().set_train(folder_.At("train"));
    data().set_test(folder_.At("test"));
  }
  v1::ImageFolder& data() { return *spec_.mutable_data()->mutable_image_folder(); }

  void ExpectBad(Split split, absl::StatusCode code, const std::string& what) {
    const auto dataset = OpenDataset(spec_, split);
    EXPECT_EQ(dataset.status().code(), code) << dataset.status();
    EXPECT_THAT(std::string(dataset.status().message()), HasSubstr(what));
  }

  DataFolder folder_;
  v1::RunSpec spec_ = ImageSpec(kSide, kSide, 3, 3);
};

TEST_F(ImageFolderTest, ClassesAndFilesAreSortedByName) {
  const auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  const Samples samples = GetAll(**train);
  EXPECT_THAT(samples.labels, ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(ValuesOf(samples), ElementsAre(10, 40, 50, 60));
  // A class that the test split lacks keeps its number.
  const auto test = OpenDataset(spec_, Split::kTest);
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_THAT(GetAll(**test).labels, ElementsAre(0, 2));
}

TEST_F(ImageFolderTest, FoldersThatDoNotFit) {
  folder_.Write("test/d/1.jpg", Plain(1));
  ExpectBad(Split::kTest, absl::StatusCode::kInvalidArgument, "class folder d");
  folder_.Write("train/d/1.jpg", Plain(1));
  ExpectBad(Split::kTrain, absl::StatusCode::kInvalidArgument, "4 class folders");
  data().set_train(folder_.At("missing"));
  ExpectBad(Split::kTrain, absl::StatusCode::kNotFound, "missing");
  data().set_train(folder_.At("train/a"));
  ExpectBad(Split::kTrain, absl::StatusCode::kInvalidArgument, "holds no JPEG files");
}

TEST_F(ImageFolderTest, LargeImagesAreScaledDown) {
  const TestImage image(640, 480, 3);
  const std::string path = folder_.Write("train/a/1.jpg", JpegBytes(image.view()));
  const auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  const Samples samples = Get(**train, {{0}});
  // 8 pixels of round(8 * 256 / 224) = 9 over the shorter side of 480.
  const double step = 480.0 / 9;
  for (int64_t y = 0; y < kSide; ++y) {
    for (int64_t x = 0; x < kSide; ++x) {
      const auto at_y = static_cast<int64_t>(320 + (static_cast<double>(y) - 3.5) * step);
      const auto at_x = static_cast<int64_t>(240 + (static_cast<double>(x) - 3.5) * step);
      // A pixel of an eighth of the size is a mean over 8 x 8: some off the one in the middle.
      ASSERT_NEAR(samples.inputs[(y * kSide + x) * 3] * 255, image.at(at_y, at_x, 0), 25);
    }
  }
}

TEST_F(ImageFolderTest, ACorruptSampleIsReplacedByTheNextOfItsClass) {
  folder_.Write("train/b/10.JPEG", Plain(40).substr(0, 300));
  spec_.mutable_data()->set_corrupt_samples_allowed(1);
  const auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ((*train)->size(), 4);
  EXPECT_EQ((*train)->corrupt_samples(), 0);
  const Samples samples = GetAll(**train);
  EXPECT_THAT(samples.labels, ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(ValuesOf(samples), ElementsAre(10, 50, 50, 60));
  // However often it is asked for, it counts once.
  EXPECT_EQ(GetAll(**train), samples);
  EXPECT_EQ((*train)->corrupt_samples(), 1);
}

TEST_F(ImageFolderTest, TheNextOfTheLastIsTheFirst) {
  folder_.Write("train/b/2.jpg", "rubbish");
  spec_.mutable_data()->set_corrupt_samples_allowed(1);
  EXPECT_THAT(ValuesOf(GetAll(**OpenDataset(spec_, Split::kTrain))), ElementsAre(10, 40, 40, 60));
}

TEST_F(ImageFolderTest, OneMoreThanAllowedEndsIt) {
  folder_.Write("train/b/11.jpg", Plain(45));
  folder_.Write("train/b/10.JPEG", "rubbish");
  const std::string second = folder_.Write("train/b/2.jpg", Plain(50).substr(0, 200));
  std::vector<float> inputs(kSide * kSide * 3);
  std::vector<int32_t> labels(1);
  for (const uint32_t allowed : {0, 1, 2}) {
    spec_.mutable_data()->set_corrupt_samples_allowed(allowed);
    const auto train = OpenDataset(spec_, Split::kTrain);
    ASSERT_TRUE(train.ok()) << train.status();
    const auto get = [&](int64_t index) {
      return (*train)->Get(std::vector<SampleRef>{{index}}, inputs, labels);
    };
    EXPECT_TRUE(get(0).ok());
    EXPECT_EQ(get(1).code(), allowed >= 1 ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss);
    const absl::Status status = get(3);
    if (allowed == 2) {
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ((*train)->corrupt_samples(), 2);
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(second), HasSubstr("JPEG: "),
                        HasSubstr(absl::StrCat("corrupt_samples_allowed is ", allowed))));
    }
  }
}

TEST_F(ImageFolderTest, AClassWithoutAnyGoodSampleIsAnError) {
  const std::string path = folder_.Write("train/c/x.jpeg", "rubbish");
  spec_.mutable_data()->set_corrupt_samples_allowed(100);
  const auto train = OpenDataset(spec_, Split::kTrain);
  std::vector<float> inputs(kSide * kSide * 3);
  std::vector<int32_t> labels(1);
  const absl::Status status = (*train)->Get(std::vector<SampleRef>{{3}}, inputs, labels);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path), HasSubstr("its class")));
}

TEST_F(ImageFolderTest, AFileThatIsGoneIsACorruptSample) {
  const auto train = OpenDataset(spec_, Split::kTrain);
  std::filesystem::remove(folder_.At("train/a/1.jpg"));
  std::vector<float> inputs(kSide * kSide * 3);
  std::vector<int32_t> labels(1);
  const absl::Status status = (*train)->Get(std::vector<SampleRef>{{0}}, inputs, labels);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("train/a/1.jpg"));
}

class TarShardsTest : public ::testing::Test {
 protected:
  TarShardsTest() {
    data().set_train(folder_.At("train-{08..10}.tar"));
    data().set_test(folder_.At("test.tar"));
    Shard("train-08.tar", {{"n01/b", 30, "2"}, {"n01/a", 20, "0\n"}});
    Shard("train-09.tar", {});
    Shard("train-10.tar", {{"n01/a", 70, " 1"}, {"n01/z", 80, "2"}});
    Shard("test.tar", {{"t", 120, "1"}});
  }
  v1::TarShards& data() { return *spec_.mutable_data()->mutable_tar_shards(); }

  struct Pair {
    std::string key;
    int value;
    std::string label;
  };
  void Shard(const std::string& name, const std::vector<Pair>& pairs) {
    TarBuilder tar;
    for (const Pair& pair : pairs) {
      tar.Add(pair.key + ".jpg", Plain(pair.value)).Add(pair.key + ".cls", pair.label);
      tar.Add(pair.key + ".json", "{}");
    }
    folder_.Write(name, tar.Bytes());
  }

  DataFolder folder_;
  v1::RunSpec spec_ = ImageSpec(kSide, kSide, 3, 3);
};

TEST_F(TarShardsTest, PairsInTheOrderOfShardsAndMembers) {
  const auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  const Samples samples = GetAll(**train);
  EXPECT_THAT(samples.labels, ElementsAre(2, 0, 1, 2));
  EXPECT_THAT(ValuesOf(samples), ElementsAre(30, 20, 70, 80));
  const auto test = OpenDataset(spec_, Split::kTest);
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_THAT(ValuesOf(GetAll(**test)), ElementsAre(120));
}

// Halves of a pair need not be neighbours, and names may be long.
TEST_F(TarShardsTest, PairsMayBeApart) {
  const std::string key(150, 'k');
  folder_.Write("test.tar", TarBuilder()
                                .Add("x.cls", "2")
                                .AddPax({{"path", key + ".jpg"}}, "k", Plain(90))
                                .Add("x.jpeg", Plain(130))
                                .AddLongName(key + ".cls", "1")
                                .Bytes());
  const auto test = OpenDataset(spec_, Split::kTest);
  ASSERT_TRUE(test.ok()) << test.status();
  const Samples samples = GetAll(**test);
  EXPECT_THAT(samples.labels, ElementsAre(1, 2));
  EXPECT_THAT(ValuesOf(samples), ElementsAre(90, 130));
}

TEST_F(TarShardsTest, PairsThatAreNoneAreLeftOutAndCounted) {
  folder_.Write("train-09.tar", TarBuilder()
                                    .Add("lone.jpg", Plain(1))
                                    .Add("word.jpg", Plain(2))
                                    .Add("word.cls", "cat")
                                    .Add("good.jpg", Plain(40))
                                    .Add("good.cls", "0")
                                    .Bytes());
  absl::Status status = OpenDataset(spec_, Split::kTrain).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("train-09.tar: lone: it has no member .cls"));
  spec_.mutable_data()->set_corrupt_samples_allowed(1);
  status = OpenDataset(spec_, Split::kTrain).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("train-09.tar: word: its label is \"cat\""));
  spec_.mutable_data()->set_corrupt_samples_allowed(2);
  const auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ((*train)->corrupt_samples(), 2);
  EXPECT_THAT(ValuesOf(GetAll(**train)), ElementsAre(30, 20, 40, 70, 80));
}

TEST_F(TarShardsTest, ABrokenJpegIsNamedByShardAndMember) {
  folder_.Write("train-10.tar", TarBuilder()
                                    .Add("n01/bad.jpg", Plain(7).substr(0, 250))
                                    .Add("n01/bad.cls", "2")
                                    .Add("n01/good.jpg", Plain(70))
                                    .Add("n01/good.cls", "2")
                                    .Bytes());
  auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  std::vector<float> inputs(kSide * kSide * 3);
  const absl::Status status = (*train)->Get(std::vector<SampleRef>{{2}}, inputs, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("train-10.tar: n01/bad.jpg"), HasSubstr("JPEG: ")));
  spec_.mutable_data()->set_corrupt_samples_allowed(1);
  train = OpenDataset(spec_, Split::kTrain);
  const Samples samples = GetAll(**train);
  EXPECT_THAT(samples.labels, ElementsAre(2, 0, 2, 2));
  EXPECT_THAT(ValuesOf(samples), ElementsAre(30, 20, 70, 70));
}

TEST_F(TarShardsTest, ShardsThatAreWrong) {
  const auto expect_bad = [this](absl::StatusCode code, const std::string& what) {
    const absl::Status status = OpenDataset(spec_, Split::kTrain).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  Shard("train-09.tar", {{"a", 1, "3"}});
  expect_bad(absl::StatusCode::kInvalidArgument, "train-09.tar: a: label 3 is out of range");
  folder_.Write("train-09.tar", TarBuilder().Add("a.jpg", Plain(1)).Bytes(false).substr(0, 700));
  expect_bad(absl::StatusCode::kDataLoss, "train-09.tar: at offset 0 of 700: member a.jpg has");
  std::filesystem::remove(folder_.At("train-09.tar"));
  expect_bad(absl::StatusCode::kNotFound, "train-09.tar");
  data().set_train(folder_.At("train-{1..x}.tar"));
  expect_bad(absl::StatusCode::kInvalidArgument, "train-{1..x}.tar");
  data().set_train(folder_.Write("none.tar", TarBuilder().Add("a.txt", "x").Bytes()));
  expect_bad(absl::StatusCode::kInvalidArgument, "holds no pairs");
  data().set_train(folder_.At(""));
  expect_bad(absl::StatusCode::kInvalidArgument, "is not a regular file");
}

// A reader that fails for a reason that another sample would share.
class OverloadedImages final : public EncodedImages {
 public:
  const std::vector<int32_t>& labels() const override { return labels_; }
  std::string Name(int64_t index) const override { return absl::StrCat("image ", index); }
  absl::Status Read(int64_t, std::vector<std::byte>&) const override {
    return absl::ResourceExhaustedError("too many open files");
  }

 private:
  const std::vector<int32_t> labels_ = {0, 0};
};

TEST(JpegDatasetTest, WhatIsNoFaultOfTheSampleIsPassedOn) {
  const auto dataset =
      MakeJpegDataset(std::make_unique<OverloadedImages>(),
                      *ImageTransform::Make({}, {kSide, kSide, 3}, Split::kTrain, 1),
                      std::make_unique<CorruptSamples>(10));
  std::vector<float> inputs(kSide * kSide * 3);
  const absl::Status status = dataset->Get(std::vector<SampleRef>{{1}}, inputs, {});
  EXPECT_EQ(status, absl::ResourceExhaustedError("image 1: too many open files"));
  EXPECT_EQ(dataset->corrupt_samples(), 0);
}

}  // namespace
}  // namespace cadre::testing
