#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/testing.h"

namespace cadre {
namespace {

using Labels = std::vector<int32_t>;

// Maximum error of one row's loss. The loss is at most a few units, and exp() and log() may be
// computed in fp32, with a few roundings each.
constexpr double kRowError = 1e-6;

using LossTest = BackEndTest;
INSTANTIATE_TEST_SUITE_P(BackEnds, LossTest, ::testing::ValuesIn(BackEndsOfEverySize()), NameOf);

TEST_P(LossTest, EqualScoresCostTheLogarithmOfTheClasses) {
  Floats dx = Garbage(20);
  const auto sums =
      kernels_->pointwise().SoftmaxCrossEntropy(2, 10, 0, Floats(20, 3.0F), Labels{0, 4}, 0.5F, dx);
  EXPECT_NEAR(sums.loss, 2 * std::log(10.0), 2 * kRowError);
  // The first of equals counts as the largest.
  EXPECT_EQ(sums.correct, 1);
  for (size_t i = 0; i < dx.size(); ++i) {
    const bool is_label = i == 0 || i == 14;
    EXPECT_NEAR(dx[i], is_label ? -0.45 : 0.05, 1e-7) << i;
  }
}

TEST_P(LossTest, KnownProbabilities) {
  // Scores log 1, log 2, log 5: probabilities 1/8, 2/8, 5/8.
  const Floats x = {0, std::log(2.0F), std::log(5.0F)};
  Floats dx = Garbage(3);
  const auto sums = kernels_->pointwise().SoftmaxCrossEntropy(1, 3, 0, x, Labels{1}, 1, dx);
  EXPECT_NEAR(sums.loss, std::log(4.0), kRowError);
  EXPECT_EQ(sums.correct, 0);
  EXPECT_NEAR(dx[0], 0.125, 2e-7);
  EXPECT_NEAR(dx[1], -0.75, 2e-7);
  EXPECT_NEAR(dx[2], 0.625, 2e-7);
}

TEST_P(LossTest, LargeScoresDoNotOverflow) {
  const Floats x = {1e30F, -1e30F, 0, 88, 1000, -1000};
  Floats dx = Garbage(6);
  const auto sums = kernels_->pointwise().SoftmaxCrossEntropy(2, 3, 0, x, Labels{0, 2}, 1, dx);
  EXPECT_NEAR(sums.loss, 2000, 2000 * kRowError);
  EXPECT_EQ(sums.correct, 1);
  for (const float value : dx) EXPECT_TRUE(std::isfinite(value)) << value;
}

TEST_P(LossTest, NanScoresGiveANanLoss) {
  const Floats x = {std::numeric_limits<float>::quiet_NaN(), 1};
  const auto sums = kernels_->pointwise().SoftmaxCrossEntropy(1, 2, 0, x, Labels{1}, 1, {});
  EXPECT_TRUE(std::isnan(sums.loss));
}

TEST_P(LossTest, GradientIsOptional) {
  const Floats x = Uniform(70, 1);
  const Labels labels = {0, 1, 2, 3, 4, 5, 6};
  Floats dx = Garbage(70);
  const auto with = kernels_->pointwise().SoftmaxCrossEntropy(7, 10, 0, x, labels, 1, dx);
  const auto without = kernels_->pointwise().SoftmaxCrossEntropy(7, 10, 0, x, labels, 1, {});
  EXPECT_EQ(with.loss, without.loss);
  EXPECT_EQ(with.correct, without.correct);
}

// The label is at every position of a row, so that it is within the part of every thread.
TEST_P(LossTest, GradientMayOverwriteTheScores) {
  for (const int64_t classes : {1, 3, 10, 64, 1003}) {
    const int64_t rows = std::min<int64_t>(classes, 70);
    Labels labels;
    for (int64_t r = 0; r < rows; ++r) labels.push_back(r * (classes / rows));
    Floats x = Uniform(rows * classes, 1), dx = Garbage(rows * classes);
    const auto apart =
        kernels_->pointwise().SoftmaxCrossEntropy(rows, classes, 0.1F, x, labels, 0.5F, dx);
    const auto in_place =
        kernels_->pointwise().SoftmaxCrossEntropy(rows, classes, 0.1F, x, labels, 0.5F, x);
    EXPECT_EQ(in_place.loss, apart.loss);
    EXPECT_EQ(in_place.correct, apart.correct);
    EXPECT_EQ(x, dx);
  }
}

TEST_P(LossTest, NoRows) {
  const auto sums = kernels_->pointwise().SoftmaxCrossEntropy(0, 10, 0, {}, {}, 1, {});
  EXPECT_EQ(sums.loss, 0);
  EXPECT_EQ(sums.correct, 0);
}

// The probabilities are 1/8, 2/8 and 5/8, the targets 0.1, 0.8 and 0.1.
TEST_P(LossTest, SmoothingSpreadsTheTarget) {
  const Floats x = {0, std::log(2.0F), std::log(5.0F)};
  Floats dx = Garbage(3);
  const auto sums = kernels_->pointwise().SoftmaxCrossEntropy(1, 3, 0.3F, x, Labels{1}, 10, dx);
  const double want = 0.1 * std::log(8.0) + 0.8 * std::log(4.0) + 0.1 * std::log(1.6);
  EXPECT_NEAR(sums.loss, want, kRowError);
  EXPECT_EQ(sums.correct, 0);
  ExpectNear(dx, Floats{0.25F, -5.5F, 5.25F}, 2e-6);
}

TEST_P(LossTest, SampledScoresMaskTheLabel) {
  // Classes 4 and 7 are sampled; the labels are 7 and 2.
  const Floats ids = {4, 7, 7, 2}, offsets = {0.5F, -1, 0.25F, 2};
  Floats y = Garbage(6);
  kernels_->pointwise().SampledScores({.rows = 2, .channels = 2}, ids, offsets, Floats{10, 20},
                                      Floats{1, 2, 3, 4}, y);
  EXPECT_THAT(y, ::testing::ElementsAre(10.25F, 1.5F, kNoScore, 22, 3.5F, 3));
}

TEST_P(LossTest, SampledScoresAreThoseOfTheReference) {
  for (const auto& [rows, sampled] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {1, 1}, {5, 33}, {70, 17}}) {
    const int64_t all = sampled + rows;
    Floats ids;
    for (const int32_t label : RandomLabels(all, 20)) ids.push_back(label);
    const Floats offsets = Uniform(all, 1), label_scores = Uniform(rows, 2),
                 scores = Uniform(rows * sampled, 3);
    const RowsDims dims{.rows = rows, .channels = sampled};
    Floats got = Garbage(rows * (1 + sampled)), want = Garbage(rows * (1 + sampled));
    kernels_->pointwise().SampledScores(dims, ids, offsets, label_scores, scores, got);
    MakeReferenceBackend()->pointwise().SampledScores(dims, ids, offsets, label_scores, scores,
                                                      want);
    EXPECT_EQ(got, want);
  }
}

// Central differences of the loss: with a step of 2^-7 their error is the third derivative (below
// 1/8 for a softmax) times h^2 / 6, about 1.3e-6. An exponential in fp32 has an error of about
// 2^-23; in five rows, divided by 2^-6, this adds 4e-5.
TEST_P(LossTest, GradientMatchesDifferences) {
  constexpr float kStep = 0x1.0p-7F;
  const Labels labels = {0, 6, 3, 3, 2};
  const float scale = 1.0F / 5;
  for (const float smoothing : {0.0F, 0.1F, 0.5F}) {
    Floats x = Eighths(5 * 7, 1);
    for (float& value : x) value *= 3;
    Floats dx = Garbage(35);
    kernels_->pointwise().SoftmaxCrossEntropy(5, 7, smoothing, x, labels, scale, dx);
    const auto loss = [&] {
      return scale *
             kernels_->pointwise().SoftmaxCrossEntropy(5, 7, smoothing, x, labels, scale, {}).loss;
    };
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] += kStep;
      const double above = loss();
      x[i] -= 2 * kStep;
      const double below = loss();
      x[i] += kStep;
      EXPECT_NEAR((above - below) / (2 * kStep), dx[i], 5e-5) << i;
    }
  }
}

TEST_P(LossTest, IsNearTheReference) {
  for (const auto& [rows, classes] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 2}, {32, 10}, {64, 10}, {17, 17}, {3, 1000}}) {
    for (const float smoothing : {0.0F, 0.1F}) {
      const Floats x = Uniform(rows * classes, 1);
      const Labels labels = RandomLabels(rows, classes);
      Floats got = Garbage(rows * classes), want = Garbage(rows * classes);
      const auto sums =
          kernels_->pointwise().SoftmaxCrossEntropy(rows, classes, smoothing, x, labels, 0.5F, got);
      const auto reference = MakeReferenceBackend()->pointwise().SoftmaxCrossEntropy(
          rows, classes, smoothing, x, labels, 0.5F, want);
      EXPECT_NEAR(sums.loss, reference.loss, kRowError * rows);
      EXPECT_EQ(sums.correct, reference.correct);
      // The numbers are below a half.
      ExpectNear(got, want, 2e-7);
    }
  }
}

}  // namespace
}  // namespace cadre
