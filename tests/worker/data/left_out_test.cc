// What of the files of a data set is not a sample: counted and reported, or refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/testing.h"
#include "worker/data/open_dataset.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::Not;

std::string Jpeg(int value) { return PlainJpeg(8, 8, value); }

class LeftOutTest : public ::testing::Test {
 protected:
  LeftOutTest() {
    folder_.Write("train/a/1.jpg", Jpeg(10));
    folder_.Write("train/b/1.jpg", Jpeg(20));
    folder_.Write("test/b/1.jpg", Jpeg(30));
    v1::ImageFolder& folders = *spec_.mutable_data()->mutable_image_folder();
    folders.set_train(folder_.At("train"));
    folders.set_test(folder_.At("test"));
  }

  void UseTar(const TarBuilder& tar) {
    v1::TarShards& shards = *spec_.mutable_data()->mutable_tar_shards();
    shards.set_train(folder_.Write("train.tar", tar.Bytes()));
    shards.set_test(shards.train());
  }

  // Opens the split, which must be readable.
  std::string LeftOut(Split split) {
    const auto dataset = OpenDataset(spec_, split);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return dataset.ok() ? (*dataset)->left_out() : "";
  }

  DataFolder folder_;
  v1::RunSpec spec_ = ImageSpec(8, 8, 3, 3);
};

TEST_F(LeftOutTest, NothingIfEveryFileIsASample) {
  EXPECT_EQ(LeftOut(Split::kTrain), "");
  EXPECT_EQ(LeftOut(Split::kTest), "");
  UseTar(TarBuilder().Add("n", "", '5').Add("n/a.jpg", Jpeg(1)).Add("n/a.cls", "0"));
  EXPECT_EQ(LeftOut(Split::kTrain), "") << "folders of an archive are no data";
}

TEST_F(LeftOutTest, ImagesOutsideOfClassFoldersAreCounted) {
  folder_.Write("train/a/more/2.jpg", Jpeg(1));
  folder_.Write("train/a/more/deep/3.png", "PNG");
  folder_.Write("train/b/more/4.JPEG", Jpeg(1));
  folder_.Write("train/b/notes/text.txt", "text");
  folder_.Write("train/5.jpeg", Jpeg(1));
  folder_.Write("train/6.heic", "HEIC");
  folder_.Write("train/classes.txt", "a\nb\n");
  EXPECT_EQ(LeftOut(Split::kTrain),
            "images in folders of class folders (3), images beside the class folders (2), "
            "folders in class folders (1)");
  EXPECT_EQ(LeftOut(Split::kTest), "");
}

// A link may lead out of the folders that a worker may read.
TEST_F(LeftOutTest, LinkedFoldersAreCountedButNotListed) {
  std::filesystem::create_directory_symlink(folder_.At("train/b"), folder_.At("train/a/link"));
  EXPECT_EQ(LeftOut(Split::kTrain), "folders in class folders (1)");
}

TEST_F(LeftOutTest, OtherFilesAreCountedByEnding) {
  for (const char* name : {"1.xml", "2.xml", "3.raw", "README"}) {
    folder_.Write(absl::StrCat("test/b/", name), "text");
  }
  EXPECT_EQ(LeftOut(Split::kTest), ".xml (2), .raw (1), without an ending (1)");
}

TEST_F(LeftOutTest, TextIsShortAndValid) {
  for (int i = 0; i < 20; ++i) folder_.Write(absl::StrCat("train/a/file.", i), "text");
  folder_.Write("train/a/x.\xff", "text");
  folder_.Write("train/a/y.\xff", "text");
  EXPECT_EQ(LeftOut(Split::kTrain),
            ".\\xff (2), .0 (1), .1 (1), .10 (1), .11 (1), .12 (1), .13 (1), .14 (1), "
            "others (13)");
}

TEST_F(LeftOutTest, JpegFilesHaveFourEndings) {
  folder_.Write("train/a/2.jfif", Jpeg(30));
  folder_.Write("train/a/3.JPE", Jpeg(40));
  const auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ((*train)->size(), 4);
  EXPECT_EQ((*train)->left_out(), "");
  EXPECT_THAT(GetAll(**train).labels, ::testing::ElementsAre(0, 0, 0, 1));
  UseTar(TarBuilder()
             .Add("a.jfif", Jpeg(1))
             .Add("a.cls", "0")
             .Add("b.jpe", Jpeg(2))
             .Add("b.cls", "1"));
  const auto shards = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(shards.ok()) << shards.status();
  EXPECT_EQ((*shards)->size(), 2);
}

TEST_F(LeftOutTest, ImagesOfOtherFormatsAreRefusedOrCounted) {
  const std::string path = folder_.Write("train/a/2.HEIC", "HEIC");
  EXPECT_THAT(OpenDataset(spec_, Split::kTrain), IsError(kDataLoss, path));
  spec_.mutable_data()->set_corrupt_samples_allowed(1);
  EXPECT_EQ(LeftOut(Split::kTrain), "samples that cannot be read (1)");
}

// As in a clone without its large files.
TEST_F(LeftOutTest, FormatOfAFileThatIsNoJpegIsNamed) {
  folder_.Write("train/a/1.jpg",
                "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
  const auto train = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_THAT(TryGet(**train, 0), IsError(kDataLoss,
                                          "it is a Git LFS pointer; fetch the file "
                                          "itself with 'git lfs pull'"));
  folder_.Write("train/a/1.jpg", Jpeg(10).substr(0, 300));
  EXPECT_THAT(TryGet(**train, 0),
              AllOf(IsError(kDataLoss, "JPEG: "), Not(IsError(kDataLoss, "it is a JPEG"))));
}

TEST_F(LeftOutTest, ClassFolderWithoutImagesIsRefused) {
  folder_.Write("train/c/more/1.jpg", Jpeg(1));
  EXPECT_THAT(OpenDataset(spec_, Split::kTrain),
              IsError(kInvalidArgument, absl::StrCat("class folder ", folder_.At("train/c"),
                                                     " holds no JPEG files, but images in folders "
                                                     "of class folders (1); remove it")));
  std::filesystem::create_directory(folder_.At("test/a"));
  const std::string empty = folder_.At("test/a");
  EXPECT_THAT(
      OpenDataset(spec_, Split::kTest),
      IsError(kInvalidArgument, absl::StrCat("class folder ", empty, " holds no JPEG files;")));
}

TEST_F(LeftOutTest, MembersOfShardsAreCounted) {
  spec_.mutable_data()->set_corrupt_samples_allowed(2);
  UseTar(TarBuilder()
             .Add("a.jpg", Jpeg(1))
             .Add("a.cls", "0")
             .Add("a.json", "{}")
             .Add("lone.jpg", Jpeg(2))
             .Add("word.jpg", Jpeg(2))
             .Add("word.cls", "cat")
             .Add("b.png", "PNG")
             .Add("c.png", "PNG"));
  EXPECT_EQ(LeftOut(Split::kTrain), ".png (2), samples that cannot be read (2), .json (1)");
}

}  // namespace
}  // namespace cadre::testing
