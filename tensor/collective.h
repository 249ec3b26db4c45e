// Collective operations and their algorithms, with the names that plans, costs, communicators and
// error messages use.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace cadre {

enum class Collective : uint8_t {
  kNone = 0,
  kReduceScatter,
  kAllGather,
  kAllReduce,
  kAllToAll,
  kBroadcast,
  kBarrier,
  // The announcement of the next operation of the background queue (comm).
  kAnnounceNext,
};
// "all-reduce".
absl::string_view CollectiveName(Collective collective);

enum class Algorithm : uint8_t {
  kNone = 0,
  // Data moves around a ring, chunk by chunk.
  kRing,
  // Recursive doubling: exchanges of the whole buffer at distances 1, 2, 4, ...
  kButterfly,
  // Recursive halving for the sum, then recursive doubling for the gather.
  kHalvingDoubling,
  // For collectives that have one algorithm (binomial tree, dissemination, pairwise).
  kSingle = 5,
  // The transport library's own algorithm (NCCL); only some transports have one.
  kNative,
};
// "ring", "butterfly", "halving-doubling", "native".
absl::string_view AlgorithmName(Algorithm algorithm);
// The inverse; nullopt for other text.
std::optional<Algorithm> AlgorithmFromName(absl::string_view name);

}  // namespace cadre
