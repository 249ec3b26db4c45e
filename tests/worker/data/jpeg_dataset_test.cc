// Folders and tar shards of JPEG files: classes, order, pixels, and replacement of corrupt samples.
#include "worker/data/jpeg_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/testing.h"
#include "worker/data/open_dataset.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;

constexpr int64_t kSide = 8;

// A JPEG of the model's size whose pixels all have one value.
std::string Plain(int value) { return PlainJpeg(kSide, kSide, value); }

// The value of a sample's pixels, which must all be equal.
int ValueOf(const Samples& samples, size_t i) {
  const size_t elements = samples.inputs.size() / samples.labels.size();
  const float first = samples.inputs[i * elements];
  for (size_t k = 0; k < elements; ++k) {
    EXPECT_NEAR(samples.inputs[i * elements + k], first, 0.02F);
  }
  return std::lround(first * 255);
}

std::vector<int> ValuesOf(const Samples& samples) {
  std::vector<int> values;
  for (size_t i = 0; i < samples.labels.size(); ++i) values.push_back(ValueOf(samples, i));
  return values;
}

class ImageFolderTest : public ::testing::Test {
 protected:
  ImageFolderTest() {
    // Not written in the order of names.
    folder_.Write("train/b/2.jpg", Plain(50));
    folder_.Write("train/b/10.JPEG", Plain(40));
    folder_.Write("train/c/x.jpeg", Plain(60));
    folder_.Write("train/a/1.jpg", Plain(10));
    folder_.Write("train/a/notes.txt", "text");
    folder_.Write("train/readme", "text");
    folder_.Write("test/c/1.jpg", Plain(200));
    folder_.Write("test/a/1.jpg", Plain(100));
    data().set_train(folder_.At("train"));
    data().set_test(folder_.At("test"));
  }
  v1::ImageFolder& data() { return *spec_.mutable_data()->mutable_image_folder(); }

  void ExpectBad(Split split, absl::StatusCode code, const std::string& what) {
    EXPECT_THAT(OpenDataset(spec_, split), IsError(code, what));
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
  // A class that is missing in the test split keeps its number.
  const auto test = OpenDataset(spec_, Split::kTest);
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_THAT(GetAll(**test).labels, ElementsAre(0, 2));
}

TEST_F(ImageFolderTest, RejectsFoldersThatDoNotFit) {
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
  // The shorter side of 480 is scaled to round(8 * 256 / 224) = 9 pixels; 8 of them are kept.
  const double step = 480.0 / 9;
  for (int64_t y = 0; y < kSide; ++y) {
    for (int64_t x = 0; x < kSide; ++x) {
      const int64_t at_y = 320 + (y - 3.5) * step;
      const int64_t at_x = 240 + (x - 3.5) * step;
      // The decoder scales to an eighth, where a pixel is a mean over 8 x 8 pixels.
      ASSERT_NEAR(samples.inputs[(y * kSide + x) * 3] * 255, image.at(at_y, at_x, 0), 25);
    }
  }
}

TEST_F(ImageFolderTest, CorruptSampleIsReplacedByNextOfItsClass) {
  folder_.Write("train/b/10.JPEG", Plain(40).substr(0, 300));
  spec_.mutable_data()->set_corrupt_samples_allowed(1);
  const auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ((*train)->size(), 4);
  EXPECT_EQ((*train)->corrupt_samples(), 0);
  const Samples samples = GetAll(**train);
  EXPECT_THAT(samples.labels, ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(ValuesOf(samples), ElementsAre(10, 50, 50, 60));
  // Repeated requests count once.
  EXPECT_EQ(GetAll(**train), samples);
  EXPECT_EQ((*train)->corrupt_samples(), 1);
}

TEST_F(ImageFolderTest, ImagesOfOtherFormatsAreCorruptSamples) {
  const std::string path = folder_.Write("train/b/3.PNG", "PNG");
  ExpectBad(Split::kTrain, kDataLoss, path + ": it is not a JPEG file");
  spec_.mutable_data()->set_corrupt_samples_allowed(1);
  const auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ((*train)->corrupt_samples(), 1);
  EXPECT_THAT(ValuesOf(GetAll(**train)), ElementsAre(10, 40, 50, 60));
}

TEST_F(ImageFolderTest, LastSampleIsReplacedByFirst) {
  folder_.Write("train/b/2.jpg", "not a JPEG");
  spec_.mutable_data()->set_corrupt_samples_allowed(1);
  EXPECT_THAT(ValuesOf(GetAll(**OpenDataset(spec_, Split::kTrain))), ElementsAre(10, 40, 40, 60));
}

TEST_F(ImageFolderTest, TooManyCorruptSamplesAreDataLoss) {
  folder_.Write("train/b/11.jpg", Plain(45));
  folder_.Write("train/b/10.JPEG", "not a JPEG");
  const std::string second = folder_.Write("train/b/2.jpg", Plain(50).substr(0, 200));
  for (const uint32_t allowed : {0, 1, 2}) {
    spec_.mutable_data()->set_corrupt_samples_allowed(allowed);
    const auto train = OpenDataset(spec_, Split::kTrain);
    ASSERT_TRUE(train.ok()) << train.status();
    EXPECT_TRUE(TryGet(**train, 0).ok());
    EXPECT_EQ(TryGet(**train, 1).code(),
              allowed >= 1 ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss);
    const absl::Status status = TryGet(**train, 3);
    if (allowed == 2) {
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ((*train)->corrupt_samples(), 2);
    } else {
      EXPECT_THAT(status,
                  AllOf(IsError(kDataLoss, second), IsError(kDataLoss, "JPEG: "),
                        IsError(kDataLoss, absl::StrCat("corrupt_samples_allowed is ", allowed))));
    }
  }
}

TEST_F(ImageFolderTest, ClassWithoutReadableSampleIsDataLoss) {
  const std::string path = folder_.Write("train/c/x.jpeg", "not a JPEG");
  spec_.mutable_data()->set_corrupt_samples_allowed(100);
  const auto train = OpenDataset(spec_, Split::kTrain);
  const absl::Status status = TryGet(**train, 3);
  EXPECT_THAT(status, AllOf(IsError(kDataLoss, path), IsError(kDataLoss, "its class")));
}

TEST_F(ImageFolderTest, MissingFileIsCorruptSample) {
  const auto train = OpenDataset(spec_, Split::kTrain);
  std::filesystem::remove(folder_.At("train/a/1.jpg"));
  const absl::Status status = TryGet(**train, 0);
  EXPECT_THAT(status, IsError(kDataLoss, "train/a/1.jpg"));
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

TEST_F(TarShardsTest, PairsHaveTheOrderOfShardsAndMembers) {
  const auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  const Samples samples = GetAll(**train);
  EXPECT_THAT(samples.labels, ElementsAre(2, 0, 1, 2));
  EXPECT_THAT(ValuesOf(samples), ElementsAre(30, 20, 70, 80));
  const auto test = OpenDataset(spec_, Split::kTest);
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_THAT(ValuesOf(GetAll(**test)), ElementsAre(120));
}

// Image and label need not be adjacent, and names may be long.
TEST_F(TarShardsTest, PairsNeedNotBeAdjacent) {
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

TEST_F(TarShardsTest, IncompletePairsAreSkippedAndCounted) {
  folder_.Write("train-09.tar", TarBuilder()
                                    .Add("lone.jpg", Plain(1))
                                    .Add("word.jpg", Plain(2))
                                    .Add("word.cls", "cat")
                                    .Add("good.jpg", Plain(40))
                                    .Add("good.cls", "0")
                                    .Bytes());
  absl::Status status = OpenDataset(spec_, Split::kTrain).status();
  EXPECT_THAT(status, IsError(kDataLoss, "train-09.tar: lone: it has no member .cls"));
  spec_.mutable_data()->set_corrupt_samples_allowed(1);
  status = OpenDataset(spec_, Split::kTrain).status();
  EXPECT_THAT(status, IsError(kDataLoss, "train-09.tar: word: its label is not a number"));
  spec_.mutable_data()->set_corrupt_samples_allowed(2);
  const auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ((*train)->corrupt_samples(), 2);
  EXPECT_THAT(ValuesOf(GetAll(**train)), ElementsAre(30, 20, 40, 70, 80));
}

// Another program would take either of the two.
TEST_F(TarShardsTest, RepeatedKeysAreRefused) {
  spec_.mutable_data()->set_corrupt_samples_allowed(100);
  const auto expect_bad = [this](TarBuilder& tar, const std::string& what) {
    folder_.Write("train-09.tar", tar.Bytes());
    EXPECT_THAT(OpenDataset(spec_, Split::kTrain),
                AllOf(IsError(kInvalidArgument, "train-09.tar: key n/a has two " + what),
                      IsError(kInvalidArgument, "must be unique")));
  };
  TarBuilder labels;
  expect_bad(labels.Add("n/a.jpg", Plain(1)).Add("n/a.cls", "0").Add("./n/a.cls", "0"),
             "labels: members n/a.cls and ./n/a.cls");
  TarBuilder images;
  expect_bad(images.Add("n/a.jpg", Plain(1)).Add("n/a.cls", "0").AddLink("n/a.jpg", "n/b.jpg", '1'),
             "images: members n/a.jpg and n/a.jpg");
  TarBuilder endings;
  expect_bad(endings.Add("n/a.jpg", Plain(1)).Add("n/a.JPEG", Plain(1)), "images");
}

// An archive stores a file with several names once; its other names are links.
TEST_F(TarShardsTest, LinksAreFollowedWithinTheArchive) {
  folder_.Write("test.tar", TarBuilder()
                                .AddLink("n/early.jpg", "../blobs/7", '2')
                                .Add("n/early.cls", "1")
                                .Add("./n/a.jpg", Plain(90))
                                .Add("n/a.cls", "2")
                                .AddLink("n/b.jpg", "n/a.jpg", '1')
                                .AddLink("n/b.cls", "a.cls", '2')
                                .AddLink("chain.jpg", "/n/b.jpg", '1')
                                .AddLink("chain.cls", "n/b.cls", '1')
                                .Add("blobs/7", Plain(130))
                                .Bytes());
  const auto test = OpenDataset(spec_, Split::kTest);
  ASSERT_TRUE(test.ok()) << test.status();
  const Samples samples = GetAll(**test);
  EXPECT_THAT(samples.labels, ElementsAre(1, 2, 2, 2));
  EXPECT_THAT(ValuesOf(samples), ElementsAre(130, 90, 90, 90));
  EXPECT_EQ((*test)->corrupt_samples(), 0);
}

TEST_F(TarShardsTest, SamplesAreNeverLeftOutSilently) {
  const auto expect_bad = [this](TarBuilder& tar, const std::string& what) {
    folder_.Write("train-09.tar", tar.Bytes());
    spec_.mutable_data()->set_corrupt_samples_allowed(0);
    EXPECT_THAT(OpenDataset(spec_, Split::kTrain), IsError(kDataLoss, "train-09.tar: a: " + what));
    spec_.mutable_data()->set_corrupt_samples_allowed(1);
    const auto train = OpenDataset(spec_, Split::kTrain);
    ASSERT_TRUE(train.ok()) << train.status();
    EXPECT_EQ((*train)->corrupt_samples(), 1);
    EXPECT_THAT(ValuesOf(GetAll(**train)), ElementsAre(30, 20, 70, 80));
  };
  const auto with_image = [&](const std::string& target, char type, const std::string& what) {
    TarBuilder tar;
    tar.Add("a.cls", "0").AddLink("a.jpg", target, type).Add("twice", "1").Add("twice", "2");
    expect_bad(tar, "its member a.jpg " + what);
  };
  with_image("gone.jpg", '1', "is a link to gone.jpg, which is not in the archive");
  with_image("/n/gone.jpg", '2', "is a link to /n/gone.jpg, which is not in the archive");
  with_image("../a.cls", '2', "is a link to ../a.cls, which is not in the archive");
  with_image("a.jpg", '2', "is a link to a.jpg, which is one of too many links");
  with_image("twice", '1', "is a link to twice, which is in the archive more than once");
  with_image("", '3', "is not a file");
  TarBuilder label;
  expect_bad(label.Add("a.jpg", Plain(1)).AddLink("a.cls", "b.cls", '1'),
             "its member a.cls is a link to b.cls, which is not in the archive");
  TarBuilder lone;
  expect_bad(lone.Add("a.cls", "0"), "it has a label, but no member .jpg, .jpeg, .jpe or .jfif");
  TarBuilder png;
  expect_bad(png.Add("a.png", "PNG").Add("a.cls", "0"), "its image a.png is not a JPEG");
}

TEST_F(TarShardsTest, CorruptSampleIsNamedByShardAndMember) {
  folder_.Write("train-10.tar", TarBuilder()
                                    .Add("n01/bad.jpg", Plain(7).substr(0, 250))
                                    .Add("n01/bad.cls", "2")
                                    .Add("n01/good.jpg", Plain(70))
                                    .Add("n01/good.cls", "2")
                                    .Bytes());
  auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  const absl::Status status = TryGet(**train, 2);
  EXPECT_THAT(status,
              AllOf(IsError(kDataLoss, "train-10.tar: n01/bad.jpg"), IsError(kDataLoss, "JPEG: ")));
  spec_.mutable_data()->set_corrupt_samples_allowed(1);
  train = OpenDataset(spec_, Split::kTrain);
  const Samples samples = GetAll(**train);
  EXPECT_THAT(samples.labels, ElementsAre(2, 0, 2, 2));
  EXPECT_THAT(ValuesOf(samples), ElementsAre(30, 20, 70, 70));
}

TEST_F(TarShardsTest, RejectsMalformedShards) {
  const auto expect_bad = [this](absl::StatusCode code, const std::string& what) {
    EXPECT_THAT(OpenDataset(spec_, Split::kTrain), IsError(code, what));
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

// Storage whose error is not specific to a sample.
class OverloadedImages final : public EncodedImages {
 public:
  const std::vector<int32_t>& labels() const override { return labels_; }
  std::string Name(int64_t index) const override { return absl::StrCat("image ", index); }
  absl::StatusOr<std::string> Read(int64_t) const override {
    return absl::ResourceExhaustedError("too many open files");
  }

 private:
  const std::vector<int32_t> labels_ = {0, 0};
};

TEST(JpegDatasetTest, OtherErrorsAreReturned) {
  const auto dataset =
      MakeJpegDataset(std::make_unique<OverloadedImages>(),
                      *ImageTransform::Make({}, {kSide, kSide, 3}, Split::kTrain, 1),
                      std::make_unique<CorruptSamples>(10));
  EXPECT_EQ(TryGet(*dataset, 1), absl::ResourceExhaustedError("image 1: too many open files"));
  EXPECT_EQ(dataset->corrupt_samples(), 0);
}

}  // namespace
}  // namespace cadre::testing
