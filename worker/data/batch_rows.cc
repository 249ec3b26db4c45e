#include "worker/data/batch_rows.h"

#include <glog/logging.h>

#include <algorithm>
#include <memory>

#include "tensor/layout.h"
#include "worker/data/sampler.h"

namespace cadre {
namespace {

bool Inside(const Interval& rows, int64_t batch) {
  return rows.begin >= 0 && rows.begin <= rows.end && rows.end <= batch;
}

Interval Moved(const Interval& rows, int64_t by) { return {rows.begin + by, rows.end + by}; }

// Fills `rows` with the wanted rows of a batch; `at(row)` is the sample there, and row r stands at
// position `first` + r.
template <typename SampleAt>
void Fill(const std::vector<MicroBatch>& wanted, int64_t first, const SampleAt& at,
          BatchRows& rows) {
  rows = BatchRows();
  for (const MicroBatch& micro : wanted) {
    const auto inputs_begin = static_cast<int64_t>(rows.inputs.size());
    const auto labels_begin = static_cast<int64_t>(rows.labels.size());
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

std::vector<MicroBatch> CutBatch(int64_t batch, int64_t micro_batches, const RowsOfRank& rank) {
  CHECK_GE(batch, 0);
  CHECK_GE(micro_batches, 1);
  std::vector<MicroBatch> cut;
  for (int64_t i = 0; i < micro_batches; ++i) {
    const int64_t begin = PartBegin(batch, i, micro_batches);
    const int64_t size = PartBegin(batch, i + 1, micro_batches) - begin;
    const MicroBatch mine = rank(size);
    CHECK(Inside(mine.inputs, size) && Inside(mine.labels, size));
    cut.push_back({.inputs = Moved(mine.inputs, begin), .labels = Moved(mine.labels, begin)});
  }
  return cut;
}

RowSource TrainingRows(const TrainingPart& part) {
  for (const MicroBatch& micro : part.micro_batches) {
    CHECK(Inside(micro.inputs, part.batch) && Inside(micro.labels, part.batch));
  }
  // Shared because std::function must be copyable; one thread at a time uses it.
  auto sampler = std::make_shared<Sampler>(part.seed, part.dataset_size);
  return [part, sampler](int64_t step, BatchRows& rows) {
    const int64_t first = BatchPosition(part.origin, step, part.group, part.groups, part.batch);
    const auto at = [&](int64_t row) { return sampler->SampleAt(first + row); };
    Fill(part.micro_batches, first, at, rows);
  };
}

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
