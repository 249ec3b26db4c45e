// Batches for replicas: views of what the data loader has loaded, test samples to evaluate, and
// random batches for steps that are only timed.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "member/trainer_progress.h"
#include "worker/data/batch_loader.h"
#include "worker/nn/network.h"
#include "worker/train/replica.h"

namespace cadre {

// The rows of a batch of `samples` that this rank requires.
MicroBatch RowsOf(const Replica& replica, int64_t samples);

// Views of the batch's micro-batches, in order. `samples`: size of the whole batch over the group;
// `first_position`: position of its first sample. The views borrow the batch.
std::vector<BatchView> ViewsOf(const Batch& batch, const Replica& replica, int64_t samples,
                               int64_t first_position);

// A collective with equal arguments on all ranks. Loss and correct answers over samples [begin,
// end) of `test`, loaded by `threads`, summed over the group; equal on all ranks. Advances
// `progress` with every batch. Errors: OutOfRange, naming layer and rank, for a loss that is not
// finite; those of the loader.
absl::StatusOr<LossPart> EvaluateSamples(Replica& replica, const Dataset& test, int64_t begin,
                                         int64_t end, int threads, TrainerProgress& progress);

// Random inputs and labels of this rank's rows, which do not depend on the plan.
class RandomBatch {
 public:
  // `samples`: of the whole batch, over all ranks.
  RandomBatch(const Replica& replica, int64_t samples);
  // A view of this data as the batch of `step`. Borrows this object. `samples` as above.
  BatchView View(int64_t samples, int64_t step) const {
    return {samples, inputs_, labels_, step * samples};
  }

 private:
  std::vector<float> inputs_;
  std::vector<int32_t> labels_;
};

}  // namespace cadre
