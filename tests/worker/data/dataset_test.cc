// Properties of every kind of data set.
#include "worker/data/open_dataset.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/base/temporary_folder.h"
#include "tests/worker/data/testing.h"

namespace cadre::testing {
namespace {

struct Kind {
  std::string name;
  // Writes the files and returns a spec that names them.
  std::function<v1::RunSpec(const DataFolder& folder)> make;
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

v1::RunSpec Idx(const DataFolder& folder) {
  v1::RunSpec spec = ImageSpec(4, 4, 1, 10);
  v1::IdxFiles& idx = *spec.mutable_data()->mutable_idx();
  const std::string pixels(16 * 16, 'p');
  idx.set_train_images(folder.Write("images", IdxBytes({16, 4, 4}, pixels)));
  idx.set_train_labels(folder.Write("labels", IdxBytes({16}, std::string(16, '\1'))));
  return spec;
}

v1::RunSpec Cifar10(const DataFolder& folder) {
  v1::RunSpec spec = ImageSpec(32, 32, 3, 10);
  v1::Cifar10& data = *spec.mutable_data()->mutable_cifar10();
  for (int i = 1; i <= 5; ++i) {
    folder.Write(absl::StrCat("data_batch_", i, ".bin"), CifarBytes(i * 4, {i, 2, 3, 9}));
  }
  data.set_directory(folder.At(""));
  data.mutable_augmentation()->set_flip(true);
  data.mutable_augmentation()->set_crop_padding(4);
  return spec;
}

v1::RunSpec ImageFolder(const DataFolder& folder) {
  v1::RunSpec spec = ImageSpec(16, 16, 3, 10);
  for (int i = 0; i < 12; ++i) {
    const TestImage image(20 + i, 30, 3, i);
    folder.Write(absl::StrCat("train/class", i % 3, "/", i, ".jpg"), JpegBytes(image.view()));
  }
  v1::ImageFolder& data = *spec.mutable_data()->mutable_image_folder();
  data.set_train(folder.At("train"));
  data.mutable_augmentation()->set_random_resized_crop(true);
  data.mutable_augmentation()->set_flip(true);
  return spec;
}

v1::RunSpec TarShards(const DataFolder& folder) {
  v1::RunSpec spec = ImageSpec(16, 16, 1, 10);
  for (int shard = 0; shard < 3; ++shard) {
    TarBuilder tar;
    for (int i = 0; i < 5; ++i) {
      const TestImage image(40, 30 + i, 1, shard * 5 + i);
      tar.Add(absl::StrCat(i, ".jpg"), JpegBytes(image.view()));
      tar.Add(absl::StrCat(i, ".cls"), absl::StrCat(i));
    }
    folder.Write(absl::StrCat("train-", shard, ".tar"), tar.Bytes());
  }
  v1::TarShards& data = *spec.mutable_data()->mutable_tar_shards();
  data.set_train(folder.At("train-{0..2}.tar"));
  data.mutable_augmentation()->set_random_resized_crop(true);
  return spec;
}

v1::RunSpec TokenFiles(const DataFolder& folder) {
  v1::RunSpec spec = TokenSpec(7, 256, 256);
  std::string bytes;
  for (int i = 0; i < 100; ++i) bytes.push_back(i * 17);
  v1::TokenFiles& data = *spec.mutable_data()->mutable_token_files();
  data.set_train(folder.Write("tokens", bytes));
  data.set_bytes_per_token(1);
  return spec;
}

v1::RunSpec Synthetic(v1::RunSpec spec) {
  spec.mutable_data()->mutable_synthetic()->set_train_samples(40);
  spec.mutable_data()->mutable_synthetic()->set_test_samples(10);
  spec.mutable_data()->mutable_synthetic()->set_classes(5);
  return spec;
}

class EveryDatasetTest : public ::testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Dataset> Open() {
    auto dataset = OpenDataset(spec_, Split::kTrain);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return std::move(dataset).value();
  }

  DataFolder folder_;
  v1::RunSpec spec_ = GetParam().make(folder_);
};

TEST_P(EveryDatasetTest, RejectsIndicesOutOfRange) {
  const auto dataset = Open();
  std::vector<float> inputs(2 * dataset->sample_shape().elements());
  std::vector<int32_t> labels(2 * dataset->labels_per_sample());
  for (const int64_t index : {int64_t{-1}, dataset->size()}) {
    const std::vector<SampleRef> samples = {{0}, {index}};
    EXPECT_EQ(dataset->Get(samples, inputs, labels).code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(dataset->Get(samples, inputs, {}).code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(dataset->GetLabels(samples, labels).code(), absl::StatusCode::kOutOfRange);
  }
}

TEST_P(EveryDatasetTest, GetOfNoSamplesIsLegal) { EXPECT_EQ(Get(*Open(), {}), Samples()); }

// The result does not depend on earlier calls, on the other samples of a call or on the object.
TEST_P(EveryDatasetTest, SampleDependsOnIndexAndEpoch) {
  const auto dataset = Open();
  const auto again = Open();
  const int64_t elements = dataset->sample_shape().elements();
  const Samples all = GetAll(*dataset, 3);
  for (int64_t i = dataset->size(); i-- > 0;) {
    const Samples one = Get(*again, {{.index = i, .epoch = 3}});
    const auto begin = all.inputs.begin() + i * elements;
    ASSERT_EQ(one.inputs, std::vector<float>(begin, begin + elements));
  }
}

TEST_P(EveryDatasetTest, IsThreadSafe) {
  const auto dataset = Open();
  const Samples expected = GetAll(*dataset, 1);
  const std::vector<SampleRef> samples = AllOf(*dataset, 1);
  std::vector<Samples> got(8, Samples{std::vector<float>(expected.inputs.size()),
                                      std::vector<int32_t>(expected.labels.size())});
  std::vector<absl::Status> status(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 3; ++round) {
        status[i].Update(dataset->Get(samples, got[i].inputs, got[i].labels));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(status[i].ok()) << status[i];
    EXPECT_EQ(got[i], expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, EveryDatasetTest,
    ::testing::Values(Kind{"idx", Idx}, Kind{"cifar10", Cifar10}, Kind{"image_folder", ImageFolder},
                      Kind{"tar_shards", TarShards}, Kind{"token_files", TokenFiles},
                      Kind{"synthetic_images",
                           [](const DataFolder&) { return Synthetic(ImageSpec(6, 5, 3, 10)); }},
                      Kind{"synthetic_tokens",
                           [](const DataFolder&) { return Synthetic(TokenSpec(9, 8, 8)); }}),
    [](const auto& info) { return info.param.name; });

TEST(OpenDatasetTest, RejectsInvalidSpecs) {
  const DataFolder folder;
  EXPECT_THAT(OpenDataset(ImageSpec(4, 4, 1, 10), Split::kTrain),
              IsError(kInvalidArgument, "no source"));
  // Images for a model of tokens, and vice versa.
  v1::RunSpec spec = TokenSpec(8, 10, 10);
  *spec.mutable_data() = Cifar10(folder).data();
  EXPECT_THAT(OpenDataset(spec, Split::kTrain),
              IsError(kInvalidArgument, "the model takes tokens"));
  spec = ImageSpec(4, 4, 1, 10);
  *spec.mutable_data() = TokenFiles(folder).data();
  EXPECT_THAT(OpenDataset(spec, Split::kTrain),
              IsError(kInvalidArgument, "the model takes images"));
}

// No file is opened beyond the roots; the message names the field.
TEST(OpenDatasetTest, StaysBeneathRoots) {
  const TemporaryFolder folder;
  const RootedFiles files = RootedFiles::Open("--data-root", {folder.path()}).value();
  for (const auto& [source, data] : {
           std::pair{"idx", "idx { train_images: '/etc/passwd' train_labels: '/etc/passwd' }"},
           {"cifar10", "cifar10 { directory: '/proc/self' }"},
           {"image_folder", "image_folder { train: '/etc' test: '/etc' }"},
           {"tar_shards", "tar_shards { train: '/etc/passwd{000000..999999}' }"},
       }) {
    v1::RunSpec spec = ImageSpec(32, 32, 3, 10);
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(data, spec.mutable_data()));
    EXPECT_THAT(OpenDataset(spec, Split::kTrain, files),
                IsError(absl::StatusCode::kPermissionDenied, absl::StrCat("data.", source, ": ")))
        << source;
  }
  v1::RunSpec tokens = TokenSpec(3, 256, 256);
  tokens.mutable_data()->mutable_token_files()->set_bytes_per_token(1);
  tokens.mutable_data()->mutable_token_files()->set_train("/proc/self/environ");
  EXPECT_THAT(OpenDataset(tokens, Split::kTrain, files),
              IsError(absl::StatusCode::kPermissionDenied, "data.token_files: "));
}

}  // namespace
}  // namespace cadre::testing
