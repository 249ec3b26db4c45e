// The collectives and the ways of carrying them out, by name: the words that plans, costs,
// communicators and error messages share.
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
  // What comes next in the background.
  kOrder,
};
// "all-reduce".
absl::string_view CollectiveName(Collective collective);

enum class Algorithm : uint8_t {
  kNone = 0,
  // Around a ring, piece by piece.
  kRing,
  // Recursive doubling: with partners at distances 1, 2, 4, ..., everything each time.
  kButterfly,
  // Recursive halving of what is summed, then recursive doubling of what is gathered.
  kHalvingDoubling,
  // Inside each host, then between hosts, then inside each host again.
  kHierarchical,
  // The only way of a collective that has one (binomial tree, dissemination, pairwise).
  kOnly,
  // What the transport's library does by itself (NCCL); only some transports have it.
  kNative,
};
// "ring", "butterfly", "halving-doubling", "hierarchical", "native".
absl::string_view AlgorithmName(Algorithm algorithm);
// Of the five that have names. Nothing for other text.
std::optional<Algorithm> AlgorithmFromName(absl::string_view name);

}  // namespace cadre
