// Which samples make up a step's batch on one rank: its rows of the group's batch, micro-batch by
// micro-batch.
//
// A group's batch of B rows is cut into k micro-batches by PartBegin, [PartBegin(B, i, k),
// PartBegin(B, i + 1, k)). Of each, a rank takes the inputs of one range of rows and the labels of
// another (the first layer and the loss may be laid out differently); other ranges it never loads.
//
// Thread-safe (values); a RowSource is called by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/data_position.h"
#include "tensor/interval.h"
#include "worker/data/dataset.h"

namespace cadre {

// What is taken of one micro-batch.
struct MicroBatch {
  Interval inputs;
  Interval labels;
  friend bool operator==(const MicroBatch&, const MicroBatch&) = default;
};

// The rows that a rank takes of a batch of `samples`, each counted from its beginning.
using RowsOfRank = std::function<MicroBatch(int64_t samples)>;

// The micro-batches of a batch of `batch` rows, in rows of the batch. `rank` is asked once for each
// micro-batch, with its rows: for layouts on a mesh, LocalBox of its shape says which.
// Requires: batch >= 0; micro_batches >= 1.
std::vector<MicroBatch> CutBatch(int64_t batch, int64_t micro_batches, const RowsOfRank& rank);

// The rows of one step.
struct BatchRows {
  // Samples whose inputs are loaded, micro-batch after micro-batch, and where each stands in the
  // run: its position in the endless sequence of per-epoch permutations (in a test split: its
  // index). Dropout draws by it.
  std::vector<SampleRef> inputs;
  std::vector<int64_t> positions;
  // Samples whose labels are loaded.
  std::vector<SampleRef> labels;
  // Where each micro-batch lies in the lists above.
  std::vector<MicroBatch> micro_batches;
};

// Fills in the rows of a step; a function of the step alone.
using RowSource = std::function<void(int64_t step, BatchRows& rows)>;

// What one rank takes of its group's batches.
struct TrainingPart {
  uint64_t seed = 0;
  // Samples in the data set, > 0.
  int64_t dataset_size = 0;
  int64_t group = 0;
  int64_t groups = 1;
  // Samples per group and step.
  int64_t batch = 0;
  // Where the run began.
  DataOrigin origin = {};
  // This rank's rows of them; see CutBatch.
  std::vector<MicroBatch> micro_batches;
};
// Step t takes the rows of the `batch` positions from BatchPosition on (worker/data/sampler.h).
RowSource TrainingRows(const TrainingPart& part);

// What one rank takes of the samples [begin, end) of a test split, `batch` at a time; the last
// batch may be smaller, and steps after it are empty. Epoch 0.
struct TestPart {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t batch = 1;
  RowsOfRank rank;
};
RowSource TestRows(const TestPart& part);

}  // namespace cadre
