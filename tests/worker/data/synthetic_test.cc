// Synthetic images and sequences are functions of the seed, and learnable.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/worker/data/testing.h"
#include "worker/data/open_dataset.h"

namespace cadre::testing {
namespace {

class SyntheticImagesTest : public ::testing::Test {
 protected:
  void Use(bool exact) {
    v1::SyntheticData& data = *spec_.mutable_data()->mutable_synthetic();
    data.set_train_samples(300);
    data.set_test_samples(100);
    data.set_classes(4);
    data.set_noise(0.5F);
    data.set_exact(exact);
  }

  v1::RunSpec spec_ = ImageSpec(2, 3, 1, 4);
};

// EveryDatasetTest checks that a sample depends on its index only.
TEST_F(SyntheticImagesTest, SampleDependsOnSeed) {
  Use(false);
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 300);
  const Samples sample = Get(**dataset, {{7}});
  spec_.mutable_data()->mutable_synthetic()->set_train_samples(250);
  EXPECT_EQ(Get(**OpenDataset(spec_, Split::kTrain), {{7}}), sample);
  spec_.set_seed(12);
  EXPECT_NE(Get(**OpenDataset(spec_, Split::kTrain), {{7}}).inputs, sample.inputs);
}

// Samples scatter around the center of their class with the specified deviation, so a model can
// learn the classes, and the centers are the same in both splits.
TEST_F(SyntheticImagesTest, ClassesAreSeparable) {
  Use(false);
  const auto train = OpenDataset(spec_, Split::kTrain);
  const auto test = OpenDataset(spec_, Split::kTest);
  const Samples seen = GetAll(**train);
  std::vector<double> centers(4 * 6);
  std::vector<double> counts(4);
  for (size_t i = 0; i < seen.labels.size(); ++i) {
    const int label = seen.labels[i];
    ASSERT_LT(label, 4);
    ++counts[label];
    for (size_t k = 0; k < 6; ++k) centers[label * 6 + k] += seen.inputs[i * 6 + k];
  }
  double squares = 0;
  for (size_t label = 0; label < 4; ++label) {
    // 300 samples over 4 classes: 75 each, up to five standard deviations of 7.5.
    EXPECT_NEAR(counts[label], 75, 38);
    for (size_t k = 0; k < 6; ++k) centers[label * 6 + k] /= counts[label];
  }
  for (size_t i = 0; i < seen.inputs.size(); ++i) {
    const int label = seen.labels[i / 6];
    squares += std::pow(seen.inputs[i] - centers[label * 6 + i % 6], 2);
  }
  // The standard deviation of 1800 values is accurate to about 2 percent.
  EXPECT_NEAR(std::sqrt(squares / 1800), 0.5, 0.05);
  const Samples fresh = GetAll(**test);
  int correct = 0;
  for (size_t i = 0; i < fresh.labels.size(); ++i) {
    std::vector<double> distance(4);
    for (size_t label = 0; label < 4; ++label) {
      for (size_t k = 0; k < 6; ++k) {
        distance[label] += std::pow(fresh.inputs[i * 6 + k] - centers[label * 6 + k], 2);
      }
    }
    correct +=
        std::min_element(distance.begin(), distance.end()) - distance.begin() == fresh.labels[i];
  }
  // The distance of centers of unit variance in 6 dimensions is sqrt(12), seven times the noise, so
  // most samples are classified correctly; by chance 25 would be.
  EXPECT_GE(correct, 80);
  EXPECT_NE(fresh.inputs[0], seen.inputs[0]);
}

TEST_F(SyntheticImagesTest, ExactSamplesAreEighths) {
  Use(true);
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  const Samples all = GetAll(**dataset);
  int inside = 0;
  for (const float value : all.inputs) {
    ASSERT_LE(std::abs(value), 1.0F);
    ASSERT_EQ(value * 8.0F, std::nearbyint(value * 8.0F));
    inside += std::abs(value) < 1.0F;
  }
  // Most values are not clamped.
  EXPECT_GT(inside, 1800 * 6 / 10);
}

TEST_F(SyntheticImagesTest, RejectsInvalidSpecs) {
  Use(false);
  for (const uint32_t classes : {0, 5}) {
    spec_.mutable_data()->mutable_synthetic()->set_classes(classes);
    EXPECT_THAT(OpenDataset(spec_, Split::kTrain), IsError(kInvalidArgument, "classes is"));
  }
}

class SyntheticTokensTest : public ::testing::Test {
 protected:
  SyntheticTokensTest() {
    v1::SyntheticData& data = *spec_.mutable_data()->mutable_synthetic();
    data.set_train_samples(400);
    data.set_test_samples(100);
    data.set_classes(5);
    data.set_noise(0.2F);
  }

  static constexpr int64_t kLength = 16;
  v1::RunSpec spec_ = TokenSpec(kLength, 6, 5);
};

TEST_F(SyntheticTokensTest, LabelIsNextToken) {
  const auto dataset = OpenDataset(spec_, Split::kTrain);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 400);
  EXPECT_EQ((*dataset)->sample_shape(), (Shape{kLength}));
  EXPECT_EQ((*dataset)->labels_per_sample(), kLength);
  const Samples all = GetAll(**dataset);
  for (int64_t i = 0; i < std::ssize(all.labels); ++i) {
    ASSERT_GE(all.labels[i], 0);
    ASSERT_LT(all.labels[i], 5);
    if (i % kLength + 1 < kLength) {
      ASSERT_EQ(all.inputs[i + 1], all.labels[i]);
    }
  }
}

TEST_F(SyntheticTokensTest, SequenceDependsOnSeedAndSplit) {
  const Samples sequence = Get(**OpenDataset(spec_, Split::kTrain), {{37}});
  EXPECT_NE(Get(**OpenDataset(spec_, Split::kTest), {{37}}), sequence);
  spec_.set_seed(12);
  EXPECT_NE(Get(**OpenDataset(spec_, Split::kTrain), {{37}}), sequence);
}

// A pair of tokens has the same most frequent successor in both splits, with the frequency that
// follows from the noise.
TEST_F(SyntheticTokensTest, NextTokenIsPredictable) {
  std::map<std::pair<float, float>, std::map<int32_t, int>> seen;
  const Samples train = GetAll(**OpenDataset(spec_, Split::kTrain));
  for (int64_t i = 1; i < std::ssize(train.labels); ++i) {
    if (i % kLength != 0) ++seen[{train.inputs[i - 1], train.inputs[i]}][train.labels[i]];
  }
  EXPECT_EQ(seen.size(), 25U);
  std::map<std::pair<float, float>, int32_t> rule;
  std::set<int32_t> followers;
  for (const auto& [pair, labels] : seen) {
    rule[pair] = std::max_element(labels.begin(), labels.end(), [](auto a, auto b) {
                   return a.second < b.second;
                 })->first;
    followers.insert(rule[pair]);
  }
  EXPECT_GE(followers.size(), 3U);
  const Samples test = GetAll(**OpenDataset(spec_, Split::kTest));
  int correct = 0;
  int all = 0;
  for (int64_t i = 1; i < std::ssize(test.labels); ++i) {
    if (i % kLength == 0) continue;
    ++all;
    correct += rule[{test.inputs[i - 1], test.inputs[i]}] == test.labels[i];
  }
  // 80 % follow the rule, and a fifth of the others by chance: 84 % of 1500, with a standard
  // deviation of 1 %.
  EXPECT_NEAR(1.0 * correct / all, 0.84, 0.05);
}

TEST_F(SyntheticTokensTest, RejectsInvalidSpecs) {
  spec_.mutable_data()->mutable_synthetic()->set_noise(1.5F);
  EXPECT_EQ(OpenDataset(spec_, Split::kTrain).status().code(), absl::StatusCode::kInvalidArgument);
  spec_.mutable_data()->mutable_synthetic()->clear_noise();
  EXPECT_TRUE(OpenDataset(spec_, Split::kTrain).ok());
  spec_.mutable_data()->mutable_synthetic()->set_classes(7);
  EXPECT_EQ(OpenDataset(spec_, Split::kTrain).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cadre::testing
