// Data sets: right values, and every way in which files can be wrong.
#include "worker/data/dataset.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// An IDX file: two zeros, type 8 (bytes), number of dimensions, big-endian extents, the bytes.
std::string Idx(const std::vector<uint32_t>& dims, const std::string& bytes) {
  std::string out = {'\0', '\0', '\x08', static_cast<char>(dims.size())};
  for (const uint32_t dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(dim >> shift));
  }
  return out + bytes;
}

class DatasetTest : public ::testing::Test {
 protected:
  DatasetTest() {
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"pb(
          model {
            input { channels: 1 height: 2 width: 3 }
            layer {
              name: "fc"
              fully_connected { out_features: 4 }
            }
            layer {
              name: "loss"
              softmax_cross_entropy {}
            }
          }
          seed: 11
        )pb",
        &spec_));
  }

  std::string Path(const std::string& name) { return ::testing::TempDir() + "/data_" + name; }
  std::string Write(const std::string& name, const std::string& bytes) {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }

  // Three images with pixels 0, 1, 2, ... and labels 3, 0, 1.
  void UseIdx() {
    std::string pixels;
    for (int i = 0; i < 18; ++i) pixels.push_back(static_cast<char>(i * 15));
    v1::IdxFiles& idx = *spec_.mutable_data()->mutable_idx();
    idx.set_train_images(Write("images", Idx({3, 2, 3}, pixels)));
    idx.set_train_labels(Write("labels", Idx({3}, std::string("\3\0\1", 3))));
    idx.set_test_images(Write("t_images", Idx({1, 2, 3}, std::string(6, '\xff'))));
    idx.set_test_labels(Write("t_labels", Idx({1}, std::string("\2", 1))));
    idx.set_mean(0.25F);
    idx.set_stddev(0.5F);
  }
  v1::IdxFiles& idx() { return *spec_.mutable_data()->mutable_idx(); }

  void UseSynthetic(bool exact) {
    v1::SyntheticData& data = *spec_.mutable_data()->mutable_synthetic();
    data.set_train_samples(300);
    data.set_test_samples(100);
    data.set_classes(4);
    data.set_noise(0.5F);
    data.set_exact(exact);
  }

  // Expects an error that names `file` and says `what`.
  void ExpectBad(const std::string& file, const std::string& what,
                 absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const auto dataset = OpenDataset(spec_, Split::kTrain);
    EXPECT_EQ(dataset.status().code(), code) << dataset.status();
    EXPECT_THAT(std::string(dataset.status().message()), HasSubstr(Path(file)));
    EXPECT_THAT(std::string(dataset.status().message()), HasSubstr(what));
  }

  v1::RunSpec spec_;
};

struct Samples {
  std::vector<float> images;
  std::vector<int32_t> labels;
};

Samples Get(const Dataset& dataset, const std::vector<int64_t>& indices) {
  const auto elements = static_cast<size_t>(dataset.sample_shape().elements());
  Samples samples{std::vector<float>(indices.size() * elements),
                  std::vector<int32_t>(indices.size())};
  EXPECT_TRUE(dataset.Get(indices, samples.images, samples.labels).ok());
  std::vector<int32_t> labels_alone(indices.size());
  EXPECT_TRUE(dataset.GetLabels(indices, labels_alone).ok());
  EXPECT_EQ(labels_alone, samples.labels);
  return samples;
}

TEST_F(DatasetTest, IdxIsNormalised) {
  UseIdx();
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 3);
  EXPECT_EQ((*dataset)->sample_shape(), (Shape{1, 2, 3}));
  const Samples samples = Get(**dataset, {2, 0, 2});
  EXPECT_EQ(samples.labels, (std::vector<int32_t>{1, 3, 1}));
  for (int i = 0; i < 18; ++i) {
    const int pixel = 15 * (i < 6 || i >= 12 ? 12 + i % 6 : i - 6);
    const float expected = (static_cast<float>(pixel) / 255.0F - 0.25F) / 0.5F;
    EXPECT_EQ(samples.images[static_cast<size_t>(i)], expected) << i;
  }
}

TEST_F(DatasetTest, AStddevOfZeroMeansOne) {
  UseIdx();
  idx().set_mean(0);
  idx().set_stddev(0);
  const auto dataset = OpenDataset(spec_, Split::kTest);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const Samples samples = Get(**dataset, {0});
  EXPECT_EQ(samples.images, std::vector<float>(6, 1.0F));
  EXPECT_EQ(samples.labels, std::vector<int32_t>{2});
}

TEST_F(DatasetTest, ImagesMayHaveChannels) {
  UseIdx();
  idx().set_train_images(Write("4d", Idx({3, 1, 2, 3}, std::string(18, '\0'))));
  EXPECT_TRUE(OpenDataset(spec_, Split::kTrain).ok());
  spec_.mutable_model()->mutable_input()->set_channels(2);
  ExpectBad("4d", "[3, 1, 2, 3]");
  idx().set_train_images(Write("4d", Idx({3, 2, 2, 3}, std::string(36, '\0'))));
  EXPECT_TRUE(OpenDataset(spec_, Split::kTrain).ok());
}

TEST_F(DatasetTest, GzipIsReadToo) {
  UseIdx();
  const auto plain = OpenDataset(spec_, Split::kTrain);
  const std::string path = Path("images.gz");
  gzFile file = gzopen(path.c_str(), "wb");
  const std::string bytes =
      Idx({3, 2, 3}, std::string("\0\1\2\3\4\5\6\7\x08\x09\0\0\0\0\0\0\0\xff", 18));
  ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
            static_cast<int>(bytes.size()));
  gzclose(file);
  idx().set_train_images(path);
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(Get(**dataset, {2}).images[5], (1.0F - 0.25F) / 0.5F);
}

TEST_F(DatasetTest, IndicesOutOfRangeAreAnError) {
  UseIdx();
  const auto check = [](const Dataset& dataset) {
    std::vector<float> image(6);
    std::vector<int32_t> label(1);
    for (const int64_t index : {int64_t{-1}, dataset.size()}) {
      const std::vector<int64_t> indices = {index};
      EXPECT_EQ(dataset.Get(indices, image, label).code(), absl::StatusCode::kOutOfRange);
      EXPECT_EQ(dataset.GetLabels(indices, label).code(), absl::StatusCode::kOutOfRange);
    }
  };
  check(**OpenDataset(spec_, Split::kTrain));
  UseSynthetic(false);
  check(**OpenDataset(spec_, Split::kTrain));
}

TEST_F(DatasetTest, AMissingFileIsNotFound) {
  UseIdx();
  idx().set_train_labels(Path("nowhere"));
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kNotFound) << dataset.status();
  EXPECT_THAT(std::string(dataset.status().message()), HasSubstr(Path("nowhere")));
  // The other split does not need it.
  EXPECT_TRUE(OpenDataset(spec_, Split::kTest).ok());
}

TEST_F(DatasetTest, TruncatedAndMalformedFiles) {
  UseIdx();
  const std::string whole = Idx({3, 2, 3}, std::string(18, '\1'));
  for (const size_t length : {size_t{0}, size_t{3}, size_t{9}, whole.size() - 1}) {
    idx().set_train_images(Write("cut", whole.substr(0, length)));
    ExpectBad("cut", "", absl::StatusCode::kDataLoss);
  }
  idx().set_train_images(Write("long", whole + "x"));
  ExpectBad("long", "", absl::StatusCode::kDataLoss);
  idx().set_train_images(Write("text", "this is not an IDX file at all, but long enough"));
  ExpectBad("text", "");
}

TEST_F(DatasetTest, FilesThatDoNotFitTheModel) {
  UseIdx();
  idx().set_train_images(Write("wide", Idx({3, 2, 4}, std::string(24, '\0'))));
  ExpectBad("wide", "[3, 2, 4]");
  idx().set_train_images(Write("empty", Idx({0, 2, 3}, "")));
  ExpectBad("empty", "no samples");
  UseIdx();
  idx().set_train_labels(Write("short", Idx({2}, std::string(2, '\0'))));
  ExpectBad("short", "holds 2 labels");
  idx().set_train_labels(Write("square", Idx({3, 1}, std::string(3, '\0'))));
  ExpectBad("square", "a list");
  idx().set_train_labels(Write("beyond", Idx({3}, std::string("\0\4\1", 3))));
  ExpectBad("beyond", "label 4 of sample 1");
}

TEST_F(DatasetTest, SpecsThatCannotBe) {
  EXPECT_EQ(OpenDataset(spec_, Split::kTrain).status().code(), absl::StatusCode::kInvalidArgument);
  UseSynthetic(false);
  for (const uint32_t classes : {0, 5}) {
    spec_.mutable_data()->mutable_synthetic()->set_classes(classes);
    EXPECT_EQ(OpenDataset(spec_, Split::kTrain).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

std::vector<int64_t> All(const Dataset& dataset) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < dataset.size(); ++i) indices.push_back(i);
  return indices;
}

TEST_F(DatasetTest, SyntheticSamplesAreAFunctionOfSeedAndIndex) {
  UseSynthetic(false);
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 300);
  const Samples all = Get(**dataset, All(**dataset));
  // Another object, another order, other neighbours, another number of samples.
  spec_.mutable_data()->mutable_synthetic()->set_train_samples(250);
  const auto again = OpenDataset(spec_, Split::kTrain);
  const Samples some = Get(**again, {249, 7, 7});
  for (size_t k = 0; k < 6; ++k) {
    EXPECT_EQ(some.images[k], all.images[249 * 6 + k]);
    EXPECT_EQ(some.images[6 + k], all.images[7 * 6 + k]);
    EXPECT_EQ(some.images[12 + k], all.images[7 * 6 + k]);
  }
  EXPECT_EQ(some.labels, (std::vector<int32_t>{all.labels[249], all.labels[7], all.labels[7]}));
  spec_.set_seed(12);
  EXPECT_NE(Get(**OpenDataset(spec_, Split::kTrain), {7}).images,
            std::vector<float>(some.images.begin() + 6, some.images.begin() + 12));
}

// Samples lie around their class's centre, at the given distance: so they can be learnt, and what
// is learnt on one split holds on the other.
TEST_F(DatasetTest, SyntheticClassesCanBeToldApart) {
  UseSynthetic(false);
  const auto train = OpenDataset(spec_, Split::kTrain);
  const auto test = OpenDataset(spec_, Split::kTest);
  const Samples seen = Get(**train, All(**train));
  std::vector<double> centres(4 * 6);
  std::vector<double> counts(4);
  for (size_t i = 0; i < seen.labels.size(); ++i) {
    const auto label = static_cast<size_t>(seen.labels[i]);
    ASSERT_LT(label, 4U);
    ++counts[label];
    for (size_t k = 0; k < 6; ++k) centres[label * 6 + k] += seen.images[i * 6 + k];
  }
  double spread = 0;
  for (size_t label = 0; label < 4; ++label) {
    // 300 samples over 4 classes: 75 each, give or take five standard deviations of 7.5.
    EXPECT_NEAR(counts[label], 75, 38);
    for (size_t k = 0; k < 6; ++k) centres[label * 6 + k] /= counts[label];
  }
  for (size_t i = 0; i < seen.images.size(); ++i) {
    const auto label = static_cast<size_t>(seen.labels[i / 6]);
    spread += std::pow(seen.images[i] - centres[label * 6 + i % 6], 2);
  }
  // 1800 deviations: their standard deviation is known to about 2 per cent.
  EXPECT_NEAR(std::sqrt(spread / 1800), 0.5, 0.05);
  const Samples fresh = Get(**test, All(**test));
  int right = 0;
  for (size_t i = 0; i < fresh.labels.size(); ++i) {
    std::vector<double> distance(4);
    for (size_t label = 0; label < 4; ++label) {
      for (size_t k = 0; k < 6; ++k) {
        distance[label] += std::pow(fresh.images[i * 6 + k] - centres[label * 6 + k], 2);
      }
    }
    right +=
        std::min_element(distance.begin(), distance.end()) - distance.begin() == fresh.labels[i];
  }
  // Centres of unit variance in 6 dimensions are sqrt(12) apart, seven times the noise: most are
  // right; chance is 25.
  EXPECT_GE(right, 80);
  EXPECT_NE(fresh.images[0], seen.images[0]);
}

TEST_F(DatasetTest, ExactSyntheticSamplesAreEighths) {
  UseSynthetic(true);
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  const Samples all = Get(**dataset, All(**dataset));
  int inside = 0;
  for (const float value : all.images) {
    ASSERT_LE(std::abs(value), 1.0F);
    ASSERT_EQ(value * 8.0F, std::nearbyint(value * 8.0F));
    inside += std::abs(value) < 1.0F;
  }
  // Most are not cut off.
  EXPECT_GT(inside, 1800 * 6 / 10);
}

}  // namespace
}  // namespace cadre
