// Maps rows to samples: a plan assigns rows of a batch to ranks, a sampler assigns samples to
// positions. Neither depends on the other, so the same sequence of samples is trained under every
// plan.
#include "worker/data/batch_rows.h"

#include <glog/logging.h>

#include <algorithm>
#include <memory>

#include "base/random.h"
#include "tensor/layout.h"

namespace cadre {
namespace {

void CheckInside(const MicroBatch& micro, int64_t batch) {
  for (const Interval& rows : {micro.inputs, micro.labels}) {
    CHECK(rows.size() >= 0 && Interval({0, batch}).contains(rows));
  }
}

Interval Shifted(const Interval& rows, int64_t by) { return {rows.begin + by, rows.end + by}; }

// Fills `rows` with the rows of a batch that a rank loads. `at(row)` returns the sample of a row,
// whose position is `first` + row.
template <typename SampleAt>
void Fill(const std::vector<MicroBatch>& micro_batches, int64_t first, const SampleAt& at,
          BatchRows& rows) {
  rows = BatchRows();
  for (const MicroBatch& micro : micro_batches) {
    const int64_t inputs_begin = std::ssize(rows.inputs);
    const int64_t labels_begin = std::ssize(rows.labels);
    for (int64_t row = micro.inputs.begin; row < micro.inputs.end; ++row) {
      rows.inputs.push_back(at(row));
      rows.positions.push_back(first + row);
    }
    for (int64_t row = micro.labels.begin; row < micro.labels.end; ++row) {
      rows.labels.push_back(at(row));
    }
    rows.micro_batches.push_back({.inputs = {inputs_begin, inputs_begin + micro.inputs.size()},
                                  .labels = {labels_begin, labels_begin + micro.labels.size()}});
  }
}

}  // namespace

// A permutation takes O(size) time and 4 bytes per sample; a position then takes O(1).
SampleRef Sampler::SampleAt(int64_t position) {
  CHECK_GE(position, 0);
  const int64_t epoch = position / size_;
  Cached& cached = cached_[epoch % 2];
  if (cached.epoch != epoch) {
    cached.order = RandomPermutation(seed_, RandomStream::kSampleOrder, epoch, size_);
    cached.epoch = epoch;
  }
  return {.index = cached.order[position % size_], .epoch = epoch};
}

std::vector<MicroBatch> CutBatch(int64_t batch, int64_t micro_batches, const RowsOfRank& rank) {
  CHECK_GE(batch, 0);
  CHECK_GE(micro_batches, 1);
  std::vector<MicroBatch> cut;
  for (int64_t i = 0; i < micro_batches; ++i) {
    const int64_t begin = PartBegin(batch, i, micro_batches);
    const int64_t size = PartBegin(batch, i + 1, micro_batches) - begin;
    const MicroBatch mine = rank(size);
    CheckInside(mine, size);
    cut.push_back({.inputs = Shifted(mine.inputs, begin), .labels = Shifted(mine.labels, begin)});
  }
  return cut;
}

RowSource TrainingRows(const TrainingPart& part) {
  for (const MicroBatch& micro : part.micro_batches) CheckInside(micro, part.batch);
  // Shared because a std::function must be copyable; only one thread at a time calls it.
  auto sampler = std::make_shared<Sampler>(part.seed, part.dataset_size);
  return [part, sampler](int64_t step, BatchRows& rows) {
    const int64_t first = BatchPosition(part.division, step, part.group, part.batch);
    const auto at = [&](int64_t row) { return sampler->SampleAt(first + row); };
    Fill(part.micro_batches, first, at, rows);
  };
}

// The test split is read in the order of its files.
RowSource TestRows(const TestPart& part) {
  CHECK_GE(part.batch, 1);
  return [part](int64_t step, BatchRows& rows) {
    const int64_t first = std::min(part.begin + step * part.batch, part.end);
    const int64_t size = std::min(part.batch, part.end - first);
    const auto at = [&](int64_t row) { return SampleRef{.index = first + row}; };
    Fill(CutBatch(size, 1, part.rank), first, at, rows);
  };
}

}  // namespace cadre
