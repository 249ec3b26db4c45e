// The stretches of positions for which a version is computed at once, by several threads.
//
// Thread-safe (functions).
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "model/exchange_units.h"
#include "tensor/interval.h"

namespace cadre {

// How the positions of a shard are divided into stretches: equally in all rounds of a run. `units`:
// null if the run has none; `fragments`: as in RunTerms.
struct StretchRule {
  const ExchangeUnits* units = nullptr;
  uint32_t fragments = 1;
};

// The end of the stretch of positions from `begin` on: at most 64 Ki positions and, with units,
// whole ones, all of which are in the same fragment. Requires: begin < span.end, in the span.
int64_t StretchEnd(const StretchRule& rule, Interval span, int64_t begin);

// Works on a stretch. Threads have numbers below their number.
using StretchWork = std::function<absl::Status(int thread, Interval stretch)>;

// Calls `compute` and then `append` for every stretch of the span. Up to `threads` threads, among
// them the caller's, compute different stretches at the same time; `append` is called for one
// after another in the order of positions, by the thread that has computed the stretch. So the
// result does not depend on the number of threads if only `append` changes what threads share.
// Returns the error of the first stretch that has one; `append` is not called for those after it.
// Requires: threads > 0.
absl::Status ForEachStretch(const StretchRule& rule, Interval span, int threads,
                            const StretchWork& compute, const StretchWork& append);

}  // namespace cadre
