// Measures the links between every two hosts of a cluster, in rounds in which every host has at
// most one partner. The pairs of a round are measured simultaneously, and no host takes part in two
// measurements at a time. n hosts take n - 1 rounds if n is even, and n rounds if it is odd.
//
// Pure except for the transport; thread-compatible.
#pragma once

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/transport.h"
#include "plan/cost/collective_cost.h"

namespace cadre {

// Pairs (a, b) with a < b, by round: each pair of hosts occurs once, and no host twice in a round.
// Uses the circle method of round-robin tournaments: one host is fixed, the others rotate.
std::vector<std::vector<std::pair<int, int>>> RoundRobinRounds(int hosts);

// Symmetric: element [a][b] is the link between ranks a and b; [a][a] is unknown.
using LinkMatrix = std::vector<std::vector<LinkProfile>>;

// A collective of all ranks of the transport, one per host. All of them get the whole matrix, with
// bitwise identical values. Only links are timed, not all-reduces, because groups may have any
// size. Errors: DeadlineExceeded if a round has not begun by `deadline` (the rank that detects it
// aborts the transport, so that all return); those of the transport.
absl::StatusOr<LinkMatrix> MeasureLinkMatrix(Transport& transport, absl::Time deadline);

}  // namespace cadre
