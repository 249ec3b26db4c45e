// Evaluation of an interval of the test split by all ranks of a group.
//
// Thread-compatible; a collective: every rank calls it with the same arguments.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/train/replica.h"

namespace cadre {

// Loss and correct answers over samples [begin, end) of `test`, `batch` at a time, summed over the
// group; the same on every rank.
absl::StatusOr<LossPart> EvaluateSamples(Replica& replica, const Dataset& test, int64_t begin,
                                         int64_t end, int64_t batch);

}  // namespace cadre
