// Batches are returned in order, from any step, and never stale batches after a restart; errors are
// returned once per request.
#include "worker/data/batch_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/base/expect.h"
#include "worker/data/batch_rows.h"

namespace cadre {
namespace {

// Sample i is an image of value i with labels i + 1 and -i. Counts the calls of Get, and can fail
// at a sample.
class FakeDataset final : public Dataset {
 public:
  explicit FakeDataset(int64_t size) : size_(size) {}

  int64_t size() const override { return size_; }
  const Shape& sample_shape() const override { return shape_; }
  int64_t labels_per_sample() const override { return 2; }
  absl::Status Get(std::span<const SampleRef> samples, std::span<float> inputs,
                   std::span<int32_t> labels) const override {
    ++gets_;
    EXPECT_EQ(inputs.size(), samples.size() * 4);
    for (size_t i = 0; i < samples.size(); ++i) {
      if (samples[i].index == bad_sample_) {
        return absl::DataLossError(absl::StrCat("bad sample ", samples[i].index));
      }
      std::fill_n(inputs.begin() + (i * 4), 4, samples[i].index);
    }
    return labels.empty() ? absl::OkStatus() : GetLabels(samples, labels);
  }
  absl::Status GetLabels(std::span<const SampleRef> samples,
                         std::span<int32_t> labels) const override {
    EXPECT_EQ(labels.size(), samples.size() * 2);
    for (size_t i = 0; i < samples.size(); ++i) {
      labels[2 * i] = samples[i].index + 1;
      labels[2 * i + 1] = -samples[i].index;
    }
    return absl::OkStatus();
  }

  void FailAt(int64_t sample) { bad_sample_ = sample; }
  int gets() const { return gets_; }

 private:
  const int64_t size_;
  const Shape shape_{1, 2, 2};
  std::atomic<int64_t> bad_sample_{-1};
  mutable std::atomic<int> gets_{0};
};

std::vector<int64_t> Indices(const std::vector<SampleRef>& samples) {
  std::vector<int64_t> indices;
  for (const SampleRef& sample : samples) indices.push_back(sample.index);
  return indices;
}

// Expects that the batch contains the samples that it lists.
void ExpectHolds(const Batch& batch) {
  const int64_t rows = std::ssize(batch.rows.inputs);
  ASSERT_EQ(batch.inputs.shape(), (Shape{rows, 1, 2, 2}));
  ASSERT_EQ(batch.labels.size(), batch.rows.labels.size() * 2);
  for (size_t i = 0; i < batch.rows.inputs.size(); ++i) {
    for (size_t k = 0; k < 4; ++k) {
      ASSERT_EQ(batch.inputs.span()[i * 4 + k], batch.rows.inputs[i].index);
    }
  }
  for (size_t i = 0; i < batch.rows.labels.size(); ++i) {
    ASSERT_EQ(batch.labels[2 * i], batch.rows.labels[i].index + 1);
    ASSERT_EQ(batch.labels[2 * i + 1], -batch.rows.labels[i].index);
  }
}

void ExpectBatch(const Batch& batch, int64_t step, const std::vector<int64_t>& samples) {
  EXPECT_EQ(batch.step, step);
  EXPECT_EQ(Indices(batch.rows.inputs), samples);
  EXPECT_EQ(batch.rows.labels, batch.rows.inputs);
  ExpectHolds(batch);
}

// Samples step * n, step * n + 1, ...
RowSource Counting(int64_t n) {
  return [n](int64_t step, BatchRows& rows) {
    rows = BatchRows();
    for (int64_t i = step * n; i < (step + 1) * n; ++i) {
      rows.inputs.push_back({.index = i});
      rows.positions.push_back(i);
    }
    rows.labels = rows.inputs;
    rows.micro_batches = {{.inputs = {0, n}, .labels = {0, n}}};
  };
}

std::vector<int64_t> CountingSamples(int64_t step, int64_t n) {
  BatchRows rows;
  Counting(n)(step, rows);
  return Indices(rows.inputs);
}

TEST(BatchLoaderTest, RestartsAtAnyStepWithoutStaleBatches) {
  const FakeDataset dataset(1000);
  BatchLoader loader(dataset, Counting(2), {.prefetch = 4, .threads = 3});
  // Backward, forward, repeated, and to a step that is already prefetched.
  for (const int64_t step : {10, 11, 3, 4, 5, 5, 6, 100, 7, 9, 10, 0, 1, 2, 2, 2, 50, 51}) {
    const auto batch = loader.Next(step);
    ASSERT_TRUE(batch.ok()) << batch.status();
    ExpectBatch(**batch, step, CountingSamples(step, 2));
  }
}

TEST(BatchLoaderTest, PrefetchIsBounded) {
  const FakeDataset dataset(1'000'000);
  BatchLoader loader(dataset, Counting(1), {.prefetch = 3});
  EXPECT_EQ(dataset.gets(), 0);
  ASSERT_TRUE(loader.Next(0).ok());
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (dataset.gets() < 4 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(dataset.gets(), 4);
  // The queue is full, so nothing more is loaded.
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(dataset.gets(), 4);
}

TEST(BatchLoaderTest, ErrorIsReturnedAtItsStepAndRetried) {
  FakeDataset dataset(1000);
  dataset.FailAt(8);
  BatchLoader loader(dataset, Counting(2), {});
  for (int64_t step = 2; step < 4; ++step) ASSERT_TRUE(loader.Next(step).ok());
  EXPECT_EQ(loader.Next(4).status(), absl::DataLossError("bad sample 8"));
  EXPECT_EQ(loader.Next(4).status(), absl::DataLossError("bad sample 8"));
  const auto other = loader.Next(5);
  ASSERT_TRUE(other.ok());
  ExpectBatch(**other, 5, {10, 11});
  dataset.FailAt(-1);
  const auto batch = loader.Next(4);
  ASSERT_TRUE(batch.ok());
  ExpectBatch(**batch, 4, {8, 9});
}

TEST(BatchLoaderTest, BatchMayBeEmpty) {
  const FakeDataset dataset(10);
  BatchLoader loader(dataset, Counting(0), {});
  const auto batch = loader.Next(3);
  ASSERT_TRUE(batch.ok()) << batch.status();
  ExpectBatch(**batch, 3, {});
}

// Several threads load parts of one batch.
TEST(BatchLoaderTest, BatchesDoNotDependOnThreads) {
  const FakeDataset dataset(100);
  v1::SampleDivision division;
  division.set_groups(2);
  const TrainingPart part{
      .seed = 3,
      .dataset_size = 100,
      .group = 1,
      .batch = 13,
      .division = division,
      .micro_batches = {{{0, 4}, {0, 6}}, {{6, 6}, {6, 7}}, {{8, 13}, {8, 13}}}};
  std::vector<BatchRows> expected;
  for (int64_t step = 0; step < 30; ++step) TrainingRows(part)(step, expected.emplace_back());
  for (const int threads : {1, 2, 5}) {
    for (const int64_t prefetch : {1, 6}) {
      for (const int64_t first : {0, 17}) {
        BatchLoader loader(dataset, TrainingRows(part), {.prefetch = prefetch, .threads = threads});
        for (int64_t step = first; step < 30; ++step) {
          const auto batch = loader.Next(step);
          ASSERT_TRUE(batch.ok()) << batch.status();
          const BatchRows& rows = expected[step];
          ASSERT_EQ((*batch)->step, step);
          ASSERT_EQ((*batch)->rows.inputs, rows.inputs);
          ASSERT_EQ((*batch)->rows.labels, rows.labels);
          ASSERT_EQ((*batch)->rows.positions, rows.positions);
          ASSERT_EQ((*batch)->rows.micro_batches, rows.micro_batches);
          ExpectHolds(**batch);
        }
      }
    }
  }
}

// If several parts fail, the error of the first one is returned, whichever thread was faster.
TEST(BatchLoaderTest, ErrorsDoNotDependOnThreads) {
  class Broken final : public Dataset {
   public:
    int64_t size() const override { return 100; }
    const Shape& sample_shape() const override { return shape_; }
    absl::Status Get(std::span<const SampleRef> samples, std::span<float>,
                     std::span<int32_t>) const override {
      return absl::DataLossError(absl::StrCat("sample ", samples.front().index));
    }
    absl::Status GetLabels(std::span<const SampleRef>, std::span<int32_t>) const override {
      return absl::OkStatus();
    }

   private:
    const Shape shape_{1};
  };
  const Broken dataset;
  for (int round = 0; round < 20; ++round) {
    BatchLoader loader(dataset, Counting(16), {.prefetch = 2, .threads = 4});
    EXPECT_EQ(loader.Next(2).status(), absl::DataLossError("sample 32"));
    EXPECT_EQ(loader.Next(3).status(), absl::DataLossError("sample 48"));
  }
}

// A data set whose Get blocks until Go.
class SlowDataset final : public Dataset {
 public:
  int64_t size() const override { return 100; }
  const Shape& sample_shape() const override { return shape_; }
  absl::Status Get(std::span<const SampleRef>, std::span<float>,
                   std::span<int32_t>) const override {
    go_.WaitForNotification();
    return absl::OkStatus();
  }
  absl::Status GetLabels(std::span<const SampleRef>, std::span<int32_t>) const override {
    return absl::OkStatus();
  }
  void Go() { go_.Notify(); }

 private:
  const Shape shape_{1};
  mutable absl::Notification go_;
};

TEST(BatchLoaderTest, NextTimesOut) {
  SlowDataset dataset;
  BatchLoader loader(dataset, Counting(2), {.patience = absl::Milliseconds(20)});
  EXPECT_THAT(loader.Next(7), IsError(absl::StatusCode::kDeadlineExceeded, "step 7"));
  dataset.Go();
  absl::StatusOr<const Batch*> batch = loader.Next(7);
  for (int i = 0; i < 500 && !batch.ok(); ++i) batch = loader.Next(7);
  EXPECT_TRUE(batch.ok()) << batch.status();
}

TEST(BatchLoaderTest, DestructorInterruptsLoading) {
  const FakeDataset dataset(1000);
  for (int i = 0; i < 50; ++i) {
    BatchLoader loader(dataset, Counting(20), {.threads = 1 + i % 4});
    if (i % 2 == 0) {
      ASSERT_TRUE(loader.Next(i).ok());
    }
  }
}

}  // namespace
}  // namespace cadre
