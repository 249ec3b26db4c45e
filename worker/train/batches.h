// Converts batches of the loader to those of the network.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <vector>

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

}  // namespace cadre
