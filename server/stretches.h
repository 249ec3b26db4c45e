// Divides the computation of a version (the model after a round) among threads. The elements
// of a shard are divided into stretches: tiles of consecutive positions, each of which one thread
// computes as a unit.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "model/exchange_units.h"
#include "tensor/interval.h"

namespace cadre {

// How the positions of a shard are divided into stretches, which is the same in all rounds of a
// run.
struct StretchRule {
  // Null if the run exchanges single elements instead of whole units.
  const ExchangeUnits* units = nullptr;
  // Number of fragments; 1: rounds exchange the whole model. Requires: 1, or `units` is set.
  uint32_t fragments = 1;
};

// Returns the end of the stretch that begins at `begin`. A stretch has at most 64 Ki positions. If
// the rule has units, it consists of whole units, all of the same fragment. Requires: `begin` lies
// in the span.
int64_t StretchEnd(const StretchRule& rule, Interval span, int64_t begin);

// Processes one stretch on the thread with index `thread`, which is less than the number of
// threads.
using StretchWork = std::function<absl::Status(int thread, Interval stretch)>;

// Calls `compute` and then `append` for every stretch of the span, as ForEachPiece
// (base/parallel_pieces.h). Requires: threads > 0.
absl::Status ForEachStretch(const StretchRule& rule, Interval span, int threads,
                            const StretchWork& compute, const StretchWork& append);

}  // namespace cadre
