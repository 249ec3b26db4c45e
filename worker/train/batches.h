// From what the loader loads to what the network takes.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <vector>

#include "worker/data/batch_loader.h"
#include "worker/nn/network.h"
#include "worker/train/replica.h"

namespace cadre {

// The rows that this rank takes of a batch of `samples`.
MicroBatch RowsOf(const Replica& replica, int64_t samples);

// The loaded batch, micro-batch by micro-batch. `samples`: of the whole batch over the group;
// `first_position`: of its first sample. The views borrow the batch.
std::vector<BatchView> ViewsOf(const Batch& batch, const Replica& replica, int64_t samples,
                               int64_t first_position);

}  // namespace cadre
