// The rows of one rank: which samples of the group's batch it loads, for each micro-batch.
//
// A group's batch of B rows is cut into k micro-batches by PartBegin, [PartBegin(B, i, k),
// PartBegin(B, i + 1, k)). Of each, a rank loads the inputs of one interval of rows and the labels
// of another one (the first layer and the loss may have different layouts), and nothing else.
//
// Samples are numbered by positions of the endless sequence of per-epoch permutations: position p
// is element p % size of the permutation of epoch p / size. Each step of each group takes an
// interval of positions (model/data_position.h). So every sample occurs once per epoch, even if the
// batch or the number of groups changes, and whichever group trains it. A position is the whole
// state of reading the data.
//
// Thread-safe (values), except for Sampler and RowSource: one thread at a time uses one of them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "model/data_position.h"
#include "tensor/interval.h"
#include "worker/data/dataset.h"

namespace cadre {

// Finds the sample at a position. Caches the permutations of two epochs.
class Sampler {
 public:
  // Requires: 0 < size < 2^32.
  Sampler(uint64_t seed, int64_t size) : seed_(seed), size_(size) {}

  // Requires: position >= 0.
  SampleRef SampleAt(int64_t position);

 private:
  struct Cached {
    int64_t epoch = -1;
    std::vector<uint32_t> order;
  };

  const uint64_t seed_;
  const int64_t size_;
  // Epoch e is cached in entry e % 2: batches cross at most one border of epochs.
  std::array<Cached, 2> cached_;
};

// The rows of one micro-batch.
struct MicroBatch {
  Interval inputs;
  Interval labels;
  friend bool operator==(const MicroBatch&, const MicroBatch&) = default;
};

// The rows that a rank loads of a batch of `samples`, counted from its beginning.
using RowsOfRank = std::function<MicroBatch(int64_t samples)>;

// The rows that a rank loads of each micro-batch, as rows of a batch of `batch` rows. `rank` is
// called with the size of each micro-batch.
// Requires: batch >= 0; micro_batches >= 1.
std::vector<MicroBatch> CutBatch(int64_t batch, int64_t micro_batches, const RowsOfRank& rank);

// The rows of one step.
struct BatchRows {
  // Samples whose inputs are loaded, micro-batch after micro-batch, and the position of each
  // (in a test split: its index), which determines what dropout drops.
  std::vector<SampleRef> inputs;
  std::vector<int64_t> positions;
  // Samples whose labels are loaded.
  std::vector<SampleRef> labels;
  // The interval of each micro-batch in the lists above.
  std::vector<MicroBatch> micro_batches;
};

// Fills in the rows of a step, which are a function of the step alone.
using RowSource = std::function<void(int64_t step, BatchRows& rows)>;

// One rank's part of its group's batches.
struct TrainingPart {
  uint64_t seed = 0;
  // Samples in the data set, > 0.
  int64_t dataset_size = 0;
  int64_t group = 0;
  // Samples per group and step.
  int64_t batch = 0;
  v1::SampleDivision division;
  // This rank's rows; see CutBatch.
  std::vector<MicroBatch> micro_batches;
};
// Step t covers the `batch` positions that start at BatchPosition.
RowSource TrainingRows(const TrainingPart& part);

// One rank's part of the samples [begin, end) of a test split, `batch` at a time, in epoch 0. The
// last batch may be smaller; later steps are empty.
struct TestPart {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t batch = 1;
  RowsOfRank rank;
};
RowSource TestRows(const TestPart& part);

}  // namespace cadre
