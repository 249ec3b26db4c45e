// Batches in order, from any step, without stale ones, and errors as Status.
#include "worker/data/batch_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tensor/layout.h"
#include "worker/data/sampler.h"

namespace cadre {
namespace {

// Sample i is an image of value i with label i + 1. Counts what is asked of it, and can be told to
// fail at a sample.
class FakeDataset final : public Dataset {
 public:
  explicit FakeDataset(int64_t size) : size_(size) {}

  int64_t size() const override { return size_; }
  const Shape& sample_shape() const override { return shape_; }
  absl::Status Get(std::span<const int64_t> indices, std::span<float> images,
                   std::span<int32_t> labels) const override {
    ++gets_;
    EXPECT_EQ(images.size(), indices.size() * 4);
    EXPECT_EQ(labels.size(), indices.size());
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] == bad_sample_) return absl::DataLossError("a bad sample");
      std::fill_n(images.begin() + static_cast<std::ptrdiff_t>(i * 4), 4,
                  static_cast<float>(indices[i]));
      labels[i] = static_cast<int32_t>(indices[i]) + 1;
    }
    return absl::OkStatus();
  }

  absl::Status GetLabels(std::span<const int64_t>, std::span<int32_t>) const override {
    return absl::UnimplementedError("the loader wants images too");
  }

  void FailAt(int64_t sample) { bad_sample_ = sample; }
  int gets() const { return gets_; }

 private:
  const int64_t size_;
  const Shape shape_{1, 2, 2};
  std::atomic<int64_t> bad_sample_{-1};
  mutable std::atomic<int> gets_{0};
};

void ExpectBatch(const Batch& batch, int64_t step, const std::vector<int64_t>& samples) {
  EXPECT_EQ(batch.step, step);
  EXPECT_EQ(batch.samples, samples);
  ASSERT_EQ(batch.labels.size(), samples.size());
  EXPECT_EQ(batch.images.shape(), (Shape{static_cast<int64_t>(samples.size()), 1, 2, 2}));
  for (size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(batch.labels[i], samples[i] + 1);
    for (size_t k = 0; k < 4; ++k) {
      EXPECT_EQ(batch.images.span()[i * 4 + k], static_cast<float>(samples[i]));
    }
  }
}

// Samples step * n, step * n + 1, ...
SampleSource Counting() {
  return [](int64_t step, std::span<int64_t> samples) {
    std::iota(samples.begin(), samples.end(), step * static_cast<int64_t>(samples.size()));
  };
}

std::vector<int64_t> CountingSamples(int64_t step, int64_t n) {
  std::vector<int64_t> samples(static_cast<size_t>(n));
  Counting()(step, samples);
  return samples;
}

TEST(BatchLoaderTest, StepsInOrder) {
  const FakeDataset dataset(1000);
  BatchLoader loader(dataset, Counting(), {.samples = 3});
  for (int64_t step = 5; step < 60; ++step) {
    const auto batch = loader.Next(step);
    ASSERT_TRUE(batch.ok()) << batch.status();
    ExpectBatch(**batch, step, CountingSamples(step, 3));
  }
}

TEST(BatchLoaderTest, StartsAfreshAtAnyStepWithoutStaleBatches) {
  const FakeDataset dataset(1000);
  BatchLoader loader(dataset, Counting(), {.samples = 2, .prefetch = 4});
  // Back, forth, the same again, and into what is loaded ahead already.
  for (const int64_t step : {10, 11, 3, 4, 5, 5, 6, 100, 7, 9, 10, 0, 1, 2, 2, 2, 50, 51}) {
    const auto batch = loader.Next(step);
    ASSERT_TRUE(batch.ok()) << batch.status();
    ExpectBatch(**batch, step, CountingSamples(step, 2));
  }
}

TEST(BatchLoaderTest, LoadsAheadButNotWithoutEnd) {
  const FakeDataset dataset(1'000'000);
  BatchLoader loader(dataset, Counting(), {.samples = 1, .prefetch = 3});
  EXPECT_EQ(dataset.gets(), 0);
  ASSERT_TRUE(loader.Next(0).ok());
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (dataset.gets() < 4 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(dataset.gets(), 4);
  // The queue is full: whatever time passes, nothing more is loaded.
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(dataset.gets(), 4);
}

TEST(BatchLoaderTest, AnErrorComesAtItsStepAndMayPass) {
  FakeDataset dataset(1000);
  dataset.FailAt(8);
  BatchLoader loader(dataset, Counting(), {.samples = 2});
  for (int64_t step = 2; step < 4; ++step) ASSERT_TRUE(loader.Next(step).ok());
  EXPECT_EQ(loader.Next(4).status(), absl::DataLossError("a bad sample"));
  EXPECT_EQ(loader.Next(4).status(), absl::DataLossError("a bad sample"));
  const auto other = loader.Next(5);
  ASSERT_TRUE(other.ok());
  ExpectBatch(**other, 5, {10, 11});
  dataset.FailAt(-1);
  const auto batch = loader.Next(4);
  ASSERT_TRUE(batch.ok());
  ExpectBatch(**batch, 4, {8, 9});
}

TEST(BatchLoaderTest, ARankMayHaveNothingToDo) {
  const FakeDataset dataset(10);
  BatchLoader loader(dataset, Counting(), {.samples = 0});
  const auto batch = loader.Next(3);
  ASSERT_TRUE(batch.ok()) << batch.status();
  ExpectBatch(**batch, 3, {});
}

TEST(BatchLoaderTest, EndsWhileItLoads) {
  const FakeDataset dataset(1000);
  for (int i = 0; i < 50; ++i) {
    BatchLoader loader(dataset, Counting(), {.samples = 2});
    if (i % 2 == 0) {
      ASSERT_TRUE(loader.Next(i).ok());
    }
  }
}

// The ranks' parts of a step are the group's batch, and the groups' batches are the sequence.
TEST(TrainingSamplesTest, PartsAreTheSequence) {
  constexpr int64_t kSize = 50;
  constexpr int64_t kBatch = 7;
  constexpr int64_t kGroups = 2;
  Sampler sampler(4, kSize);
  int64_t position = 0;
  for (int64_t step = 0; step < 12; ++step) {
    for (int64_t group = 0; group < kGroups; ++group) {
      for (int64_t rank = 0; rank < 3; ++rank) {
        const int64_t begin = PartBegin(kBatch, rank, 3);
        const int64_t end = PartBegin(kBatch, rank + 1, 3);
        const SampleSource source = TrainingSamples({.seed = 4,
                                                     .dataset_size = kSize,
                                                     .group = group,
                                                     .groups = kGroups,
                                                     .batch = kBatch,
                                                     .begin = begin,
                                                     .end = end});
        std::vector<int64_t> samples(static_cast<size_t>(end - begin));
        source(step, samples);
        for (const int64_t sample : samples) EXPECT_EQ(sample, sampler.SampleAt(position++));
      }
    }
  }
}

}  // namespace
}  // namespace cadre
