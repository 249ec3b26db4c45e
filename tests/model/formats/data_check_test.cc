#include "model/formats/data_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::IdxBytes;
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
  // Two images to train on, one to be tested on, all as they should be.
  DataCheckTest() : spec_(testing::SpecOf(kModel)) {
    Train("two", IdxBytes({2, 2, 3}, std::string(12, 'x')), IdxBytes({2}, Labels({0, 3})));
    idx().set_test_images(
        folder_.WriteGzip("t-images.gz", IdxBytes({1, 2, 3}, std::string(6, 'x'))));
    idx().set_test_labels(folder_.WriteGzip("t-labels.gz", IdxBytes({1}, Labels({1}))));
  }

  v1::IdxFiles& idx() { return *spec_.mutable_data()->mutable_idx(); }

  static std::string Labels(std::initializer_list<int> labels) {
    std::string bytes;
    for (const int label : labels) bytes.push_back(static_cast<char>(label));
    return bytes;
  }

  void Train(const std::string& name, const std::string& images, const std::string& labels) {
    idx().set_train_images(folder_.Write(name + "-images", images));
    idx().set_train_labels(folder_.Write(name + "-labels", labels));
  }

  // The one problem there is.
  void ExpectProblem(const std::string& field, const std::string& path, const std::string& words) {
    const std::vector<Problem> problems = FindDataProblems(spec_);
    ASSERT_EQ(problems.size(), 1U);
    EXPECT_EQ(problems[0].field, field);
    EXPECT_THAT(problems[0].message, HasSubstr(path));
    EXPECT_THAT(problems[0].message, HasSubstr(words));
  }

  const testing::TemporaryFolder folder_;
  v1::RunSpec spec_;
};

TEST_F(DataCheckTest, GoodFilesHaveNoProblems) { EXPECT_THAT(FindDataProblems(spec_), IsEmpty()); }

TEST_F(DataCheckTest, SyntheticDataHasNoFiles) {
  spec_.mutable_data()->mutable_synthetic()->set_classes(99);
  EXPECT_THAT(FindDataProblems(spec_), IsEmpty());
}

TEST_F(DataCheckTest, MissingFiles) {
  idx().set_test_labels(folder_.At("nowhere"));
  ExpectProblem("data.idx.test_labels", folder_.At("nowhere"), "cannot open");
}

TEST_F(DataCheckTest, CutShort) {
  Train("cut", IdxBytes({2, 2, 3}, std::string(11, 'x')), IdxBytes({2}, Labels({0, 3})));
  ExpectProblem("data.idx.train_images", folder_.At("cut-images"), "ends after 11 bytes of the 12");
}

TEST_F(DataCheckTest, OtherCounts) {
  Train("three", IdxBytes({3, 2, 3}, std::string(18, 'x')), IdxBytes({2}, Labels({0, 3})));
  ExpectProblem("data.idx.train_labels", folder_.At("three-labels"),
                "holds 2 labels; " + folder_.At("three-images") + " holds 3 images");
}

TEST_F(DataCheckTest, OtherImages) {
  Train("wide", IdxBytes({2, 2, 4}, std::string(16, 'x')), IdxBytes({2}, Labels({0, 3})));
  ExpectProblem(
      "data.idx.train_images", folder_.At("wide-images"),
      "holds [2, 2, 4]; the model's input is [1, 2, 3] (channels, height, width) a sample");
  Train("flat", IdxBytes({2, 6}, std::string(12, 'x')), IdxBytes({2}, Labels({0, 3})));
  ExpectProblem("data.idx.train_images", folder_.At("flat-images"), "holds [2, 6]");
}

TEST_F(DataCheckTest, ChannelsMayBeWrittenOut) {
  Train("written", IdxBytes({2, 1, 2, 3}, std::string(12, 'x')), IdxBytes({2}, Labels({0, 3})));
  EXPECT_THAT(FindDataProblems(spec_), IsEmpty());
  spec_.mutable_model()->mutable_input()->set_channels(2);
  EXPECT_EQ(FindDataProblems(spec_).size(), 2U) << "neither split has two channels";
  Train("two", IdxBytes({1, 2, 2, 3}, std::string(12, 'x')), IdxBytes({1}, Labels({0})));
  EXPECT_EQ(FindDataProblems(spec_).size(), 1U) << "the test split has not";
}

TEST_F(DataCheckTest, NoSamples) {
  Train("none", IdxBytes({0, 2, 3}, ""), IdxBytes({0}, ""));
  ExpectProblem("data.idx.train_images", folder_.At("none-images"), "holds no samples");
}

TEST_F(DataCheckTest, LabelsOutOfRange) {
  Train("labels", IdxBytes({2, 2, 3}, std::string(12, 'x')), IdxBytes({2}, Labels({3, 4})));
  ExpectProblem("data.idx.train_labels", folder_.At("labels-labels"),
                "label 4 of sample 1 is out of range; the model has 4 classes, 0 to 3");
}

TEST_F(DataCheckTest, ImagesInPlaceOfLabels) {
  idx().set_train_labels(idx().train_images());
  ExpectProblem("data.idx.train_labels", idx().train_images(), "labels are a list");
}

TEST_F(DataCheckTest, AllAtOnce) {
  idx().set_train_images(folder_.At("a"));
  idx().set_train_labels(folder_.At("b"));
  idx().set_test_images(folder_.At("c"));
  idx().set_test_labels(folder_.At("d"));
  std::vector<std::string> fields;
  for (const Problem& problem : FindDataProblems(spec_)) fields.push_back(problem.field);
  EXPECT_THAT(fields, ::testing::ElementsAre("data.idx.train_images", "data.idx.train_labels",
                                             "data.idx.test_images", "data.idx.test_labels"));
}

// What FindProblems reports is not reported again.
TEST_F(DataCheckTest, SkipsInvalidModel) {
  spec_.mutable_model()->mutable_layer(0)->mutable_fully_connected()->set_out_features(0);
  Train("labels", IdxBytes({2, 9, 9}, std::string(162, 'x')), IdxBytes({2}, Labels({99, 4})));
  EXPECT_THAT(FindDataProblems(spec_), IsEmpty());
  idx().clear_train_images();
  idx().clear_train_labels();
  EXPECT_THAT(FindDataProblems(spec_), IsEmpty());
}

class OtherSourcesTest : public ::testing::Test {
 protected:
  // The one problem there is.
  static void ExpectProblem(const v1::RunSpec& spec, const std::string& field,
                            const std::string& words) {
    const std::vector<Problem> problems = FindDataProblems(spec);
    ASSERT_EQ(problems.size(), 1U);
    EXPECT_EQ(problems[0].field, field);
    EXPECT_THAT(problems[0].message, HasSubstr(words));
  }

  const testing::TemporaryFolder folder_;
};

TEST_F(OtherSourcesTest, Cifar10) {
  v1::RunSpec spec;
  spec.mutable_data()->mutable_cifar10()->set_directory(folder_.At(""));
  EXPECT_EQ(FindDataProblems(spec).size(), 6U) << "none of the files is there";
  const std::string record(3073, '\1');
  for (int i = 1; i <= 5; ++i) {
    folder_.Write("data_batch_" + std::to_string(i) + ".bin", record + record);
  }
  ExpectProblem(spec, "data.cifar10.directory", "test_batch.bin");
  folder_.Write("test_batch.bin", record);
  EXPECT_THAT(FindDataProblems(spec), IsEmpty());
  folder_.Write("data_batch_3.bin", record + "x");
  ExpectProblem(spec, "data.cifar10.directory",
                "data_batch_3.bin: has 3074 bytes; it must have a multiple of 3073");
  folder_.Write("data_batch_3.bin", "");
  ExpectProblem(spec, "data.cifar10.directory", "has 0 bytes");
}

TEST_F(OtherSourcesTest, ImageFolders) {
  const auto make = [this](const std::string& path) {
    ASSERT_TRUE(std::filesystem::create_directories(folder_.At(path)));
  };
  v1::RunSpec spec = testing::SpecOf(kModel);
  v1::ImageFolder& data = *spec.mutable_data()->mutable_image_folder();
  data.set_train(folder_.At("train"));
  data.set_test(folder_.At("test"));
  EXPECT_EQ(FindDataProblems(spec).size(), 2U) << "neither is there";
  make("train/cat");
  make("train/dog");
  make("test/dog");
  folder_.Write("test/cat", "not a folder");
  EXPECT_THAT(FindDataProblems(spec), IsEmpty()) << "the test split may lack a class";
  make("test/cow");
  ExpectProblem(spec, "data.image_folder.test",
                folder_.At("test") + ": has a class folder cow; " + folder_.At("train") +
                    " has none of that name");
  make("test2");
  data.set_test(folder_.At("test2"));
  ExpectProblem(spec, "data.image_folder.test", "holds no folders");
  make("test2/cat");
  make("test2/dog");
  EXPECT_THAT(FindDataProblems(spec), IsEmpty());
  for (const char* more : {"ant", "bee", "cow"}) {
    make(std::string("train/") + more);
    make(std::string("test2/") + more);
  }
  ExpectProblem(spec, "data.image_folder.train",
                "holds 5 folders, one for each class; the model has 4 classes");
}

TEST_F(OtherSourcesTest, TarShards) {
  v1::RunSpec spec;
  v1::TarShards& data = *spec.mutable_data()->mutable_tar_shards();
  data.set_train(folder_.At("train-{8..10}.tar"));
  data.set_test(folder_.Write("test.tar", std::string(1024, '\0')));
  folder_.Write("train-8.tar", std::string(512, '\0'));
  folder_.Write("train-10.tar", std::string(512, '\0'));
  ExpectProblem(spec, "data.tar_shards.train", "train-9.tar");
  folder_.Write("train-9.tar", std::string(511, '\0'));
  ExpectProblem(spec, "data.tar_shards.train", "has 511 bytes; it must have a multiple of 512");
  folder_.Write("train-9.tar", std::string(512, '\0'));
  EXPECT_THAT(FindDataProblems(spec), IsEmpty());
}

TEST_F(OtherSourcesTest, TokenFiles) {
  v1::RunSpec spec = testing::SpecOf(R"(model { tokens { length: 3 }
    layer { name: "e" embedding { vocabulary: 4 features: 2 } }
    layer { name: "fc" fully_connected { out_features: 4 } }
    layer { name: "loss" softmax_cross_entropy {} } })");
  v1::TokenFiles& data = *spec.mutable_data()->mutable_token_files();
  data.set_train(folder_.Write("train", std::string(8, '\1')));
  data.set_test(folder_.Write("test", std::string(7, '\1')));
  ExpectProblem(spec, "data.token_files.test", "has 7 bytes; it must have a multiple of 2");
  folder_.Write("test", std::string(6, '\1'));
  ExpectProblem(spec, "data.token_files.test", "holds 3 tokens; one sample and its labels are 4");
  data.set_bytes_per_token(1);
  EXPECT_THAT(FindDataProblems(spec), IsEmpty());
  data.set_train(folder_.At(""));
  ExpectProblem(spec, "data.token_files.train", "is not a file");
}

// What could not be done is said once.
TEST_F(OtherSourcesTest, ReportsMissingFiles) {
  v1::RunSpec spec = testing::SpecOf(kModel);
  spec.mutable_data()->mutable_cifar10()->set_directory(folder_.At("none"));
  const std::vector<Problem> files = FindDataProblems(spec);
  ASSERT_EQ(files.size(), 6U);
  EXPECT_EQ(files[0].message,
            "cannot open " + folder_.At("none/data_batch_1.bin") + ": No such file or directory");
  spec.mutable_data()->mutable_image_folder()->set_train(folder_.At("none"));
  const std::vector<Problem> folders = FindDataProblems(spec);
  ASSERT_EQ(folders.size(), 1U);
  EXPECT_EQ(folders[0].message,
            "cannot list " + folder_.At("none") + ": No such file or directory");
}

}  // namespace
}  // namespace cadre
