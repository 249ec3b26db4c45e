#include "model/formats/data_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/base/temporary_folder.h"
#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::IdxBytes;
using ::cadre::testing::WriteGzip;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kModel[] = R"(
model {
  input { channels: 1 height: 2 width: 3 }
  layer { name: "fc" fully_connected { out_features: 4 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

class DataCheckTest : public ::testing::Test {
 protected:
  void ExpectOneProblem(const std::string& field, const std::string& path,
                        const std::string& message) const {
    const std::vector<Problem> problems = FindDataProblems(spec_);
    ASSERT_EQ(problems.size(), 1U);
    EXPECT_EQ(problems[0].field, field);
    EXPECT_THAT(problems[0].message, AllOf(HasSubstr(path), HasSubstr(message)));
  }

  const TemporaryFolder folder_;
  v1::RunSpec spec_ = testing::SpecOf(kModel);
};

// Two images for training and one for testing, all of them valid.
class IdxDataCheckTest : public DataCheckTest {
 protected:
  IdxDataCheckTest() {
    Train({2, 2, 3}, 12, {0, 3});
    idx().set_test_images(
        WriteGzip(folder_ / "t-images.gz", IdxBytes({1, 2, 3}, std::string(6, 'x'))));
    idx().set_test_labels(WriteGzip(folder_ / "t-labels.gz", IdxBytes({1}, "\1")));
  }

  v1::IdxFiles& idx() { return *spec_.mutable_data()->mutable_idx(); }

  void Train(const std::vector<uint32_t>& dims, int elements, const std::vector<char>& labels) {
    idx().set_train_images(folder_.Write("images", IdxBytes(dims, std::string(elements, 'x'))));
    const uint32_t count = labels.size();
    idx().set_train_labels(folder_.Write(
        "labels", IdxBytes({count}, absl::string_view(labels.data(), labels.size()))));
  }
};

TEST_F(IdxDataCheckTest, AcceptsValidFiles) {
  EXPECT_THAT(FindDataProblems(spec_), IsEmpty());
  Train({2, 1, 2, 3}, 12, {0, 3});
  EXPECT_THAT(FindDataProblems(spec_), IsEmpty()) << "one channel may be a separate dimension";
}

TEST_F(IdxDataCheckTest, SkipsSyntheticData) {
  spec_.mutable_data()->mutable_synthetic()->set_classes(99);
  EXPECT_THAT(FindDataProblems(spec_), IsEmpty());
}

TEST_F(IdxDataCheckTest, RefusesInvalidTrainingFiles) {
  struct Case {
    std::vector<uint32_t> dims;
    int elements;
    std::vector<char> labels;
    // "images" or "labels": the file with the problem.
    const char* file;
    std::string message;
  };
  for (const Case& c : {
           Case{{2, 2, 3}, 11, {0, 3}, "images", "ends after 11 bytes of the 12"},
           Case{{3, 2, 3},
                18,
                {0, 3},
                "labels",
                "holds 2 labels; " + folder_ / "images" + " holds 3 images"},
           Case{{2, 2, 4},
                16,
                {0, 3},
                "images",
                "holds [2, 2, 4]; the model's input is [1, 2, 3] (channels, height, width)"},
           Case{{2, 6}, 12, {0, 3}, "images", "holds [2, 6]"},
           Case{{0, 2, 3}, 0, {}, "images", "holds no samples"},
           Case{{2, 2, 3},
                12,
                {3, 4},
                "labels",
                "label 4 of sample 1 is out of range; the model has 4 classes, 0 to 3"},
       }) {
    SCOPED_TRACE(c.message);
    Train(c.dims, c.elements, c.labels);
    ExpectOneProblem(absl::StrCat("data.idx.train_", c.file), folder_ / c.file, c.message);
  }
}

TEST_F(IdxDataCheckTest, ChecksChannelsOfBothSplits) {
  spec_.mutable_model()->mutable_input()->set_channels(2);
  EXPECT_EQ(FindDataProblems(spec_).size(), 2U) << "both splits have one channel";
  Train({1, 2, 2, 3}, 12, {0});
  EXPECT_EQ(FindDataProblems(spec_).size(), 1U) << "the test split has one channel";
}

TEST_F(IdxDataCheckTest, RefusesImagesAsLabels) {
  idx().set_train_labels(idx().train_images());
  ExpectOneProblem("data.idx.train_labels", idx().train_images(), "labels are a list");
}

TEST_F(IdxDataCheckTest, ReportsAllProblems) {
  idx().set_train_images(folder_ / "a");
  idx().set_train_labels(folder_ / "b");
  idx().set_test_images(folder_ / "c");
  idx().set_test_labels(folder_ / "d");
  const std::vector<Problem> problems = FindDataProblems(spec_);
  std::vector<std::string> fields;
  for (const Problem& problem : problems) {
    fields.push_back(problem.field);
    EXPECT_THAT(problem.message, HasSubstr("cannot open"));
  }
  EXPECT_THAT(fields, ::testing::ElementsAre("data.idx.train_images", "data.idx.train_labels",
                                             "data.idx.test_images", "data.idx.test_labels"));
}

// FindProblems reports the model's problem.
TEST_F(IdxDataCheckTest, SkipsInvalidModel) {
  spec_.mutable_model()->mutable_layer(0)->mutable_fully_connected()->set_out_features(0);
  Train({2, 9, 9}, 162, {99, 4});
  EXPECT_THAT(FindDataProblems(spec_), IsEmpty());
  idx().clear_train_images();
  idx().clear_train_labels();
  EXPECT_THAT(FindDataProblems(spec_), IsEmpty());
}

TEST_F(DataCheckTest, Cifar10) {
  spec_.mutable_data()->mutable_cifar10()->set_directory(folder_.path());
  const std::vector<Problem> missing = FindDataProblems(spec_);
  ASSERT_EQ(missing.size(), 6U);
  EXPECT_EQ(missing[0].message,
            "cannot open " + folder_ / "data_batch_1.bin" + ": No such file or directory");
  const std::string record(3073, '\1');
  for (int i = 1; i <= 5; ++i) {
    folder_.Write("data_batch_" + std::to_string(i) + ".bin", record + record);
  }
  ExpectOneProblem("data.cifar10.directory", "", "test_batch.bin");
  folder_.Write("test_batch.bin", record);
  EXPECT_THAT(FindDataProblems(spec_), IsEmpty());
  folder_.Write("data_batch_3.bin", record + "x");
  ExpectOneProblem("data.cifar10.directory", "",
                   "data_batch_3.bin: has 3074 bytes; it must have a multiple of 3073");
  folder_.Write("data_batch_3.bin", std::string("\x80\x04\x95\x10\0\0\0\0\0\0\0\x7d", 12));
  ExpectOneProblem("data.cifar10.directory", "", "one or more records: it is a pickle");
  folder_.Write("data_batch_3.bin", "");
  ExpectOneProblem("data.cifar10.directory", "", "has 0 bytes");
}

TEST_F(DataCheckTest, ImageFolders) {
  const auto make = [this](const std::string& path) {
    ASSERT_TRUE(std::filesystem::create_directories(folder_ / path));
  };
  v1::ImageFolder& data = *spec_.mutable_data()->mutable_image_folder();
  data.set_train(folder_ / "train");
  data.set_test(folder_ / "test");
  const std::vector<Problem> missing = FindDataProblems(spec_);
  ASSERT_EQ(missing.size(), 2U);
  EXPECT_EQ(missing[0].message, "cannot list " + folder_ / "train" + ": No such file or directory");
  make("train/cat");
  make("train/dog");
  make("test/dog");
  folder_.Write("test/cat", "not a folder");
  EXPECT_THAT(FindDataProblems(spec_), IsEmpty()) << "the test split may lack a class";
  make("test/cow");
  ExpectOneProblem("data.image_folder.test", "",
                   folder_ / "test" + ": has a class folder cow; " + folder_ / "train" +
                       " has none of that name");
  // A class that is missing would change the numbers of those after it.
  std::filesystem::create_symlink("nowhere", folder_ / "train/bee");
  ExpectOneProblem("data.image_folder.train", "",
                   "cannot tell whether this is a class folder: " + folder_ / "train/bee");
  std::filesystem::remove(folder_ / "train/bee");
  make("test2");
  data.set_test(folder_ / "test2");
  ExpectOneProblem("data.image_folder.test", "", "holds no folders");
  make("test2/cat");
  make("test2/dog");
  EXPECT_THAT(FindDataProblems(spec_), IsEmpty());
  for (const char* more : {"ant", "bee", "cow"}) {
    make(std::string("train/") + more);
    make(std::string("test2/") + more);
  }
  ExpectOneProblem("data.image_folder.train", "",
                   "holds 5 folders, one for each class; the model has 4 classes");
}

TEST_F(DataCheckTest, TarShards) {
  v1::TarShards& data = *spec_.mutable_data()->mutable_tar_shards();
  data.set_train(folder_ / "train-{8..10}.tar");
  data.set_test(folder_.Write("test.tar", std::string(1024, '\0')));
  folder_.Write("train-8.tar", std::string(512, '\0'));
  folder_.Write("train-10.tar", std::string(512, '\0'));
  ExpectOneProblem("data.tar_shards.train", "", "train-9.tar");
  folder_.Write("train-9.tar", std::string(511, '\0'));
  ExpectOneProblem("data.tar_shards.train", "", "has 511 bytes; it must have a multiple of 512");
  const std::string gzip("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10);
  for (const size_t size : {200, 512}) {
    folder_.Write("train-9.tar", gzip + std::string(size - gzip.size(), '\1'));
    ExpectOneProblem("data.tar_shards.train", "",
                     "train-9.tar: is not a tar archive: it is compressed (gzip); decompress it");
  }
  folder_.Write("train-9.tar", std::string(512, '\0'));
  EXPECT_THAT(FindDataProblems(spec_), IsEmpty());
}

TEST_F(DataCheckTest, TokenFiles) {
  spec_ = testing::SpecOf(R"(model { tokens { length: 3 }
    layer { name: "e" embedding { vocabulary: 4 features: 2 } }
    layer { name: "fc" fully_connected { out_features: 4 } }
    layer { name: "loss" softmax_cross_entropy {} } })");
  v1::TokenFiles& data = *spec_.mutable_data()->mutable_token_files();
  data.set_train(folder_.Write("train", std::string(8, '\1')));
  data.set_test(folder_.Write("test", std::string(7, '\1')));
  ExpectOneProblem("data.token_files.test", "", "has 7 bytes; it must have a multiple of 2");
  folder_.Write("test", std::string(6, '\1'));
  ExpectOneProblem("data.token_files.test", "", "holds 3 tokens; one sample and its labels are 4");
  data.set_bytes_per_token(1);
  EXPECT_THAT(FindDataProblems(spec_), IsEmpty());
  folder_.Write("test", std::string("\x93NUMPY\x01\0", 8));
  ExpectOneProblem("data.token_files.test", "", "is not a file of tokens: it is a NumPy array");
  folder_.Write("test", std::string(6, '\1'));
  data.set_train(folder_.path());
  ExpectOneProblem("data.token_files.train", "", "is not a file");
}

}  // namespace
}  // namespace cadre
