// What lies between every two hosts of a cluster, measured by tournament: in each round every host
// has one partner, so that pairs are measured at the same time and no host is in two. That takes
// one round less than there are hosts (as many, for an odd number).
//
// Pure but for the transport; thread-compatible.
#pragma once

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "plan/cost/collective_cost.h"
#include "worker/transport/transport.h"

namespace cadre {

// Round by round, pairs (a, b) with a < b: each pair of 0..hosts-1 once, no host twice in a round.
// By the circle method: one host stays, the others turn.
std::vector<std::vector<std::pair<int, int>>> Tournament(int hosts);

// Symmetric: element [a][b] is the link between ranks a and b; [a][a] is not known.
using LinkMatrix = std::vector<std::vector<LinkProfile>>;

// A collective of all ranks of the transport, which are the hosts: everybody ends with the whole
// matrix, the same bits. All-reduces are not timed: links are, for groups of any size.
// Errors: DeadlineExceeded when a round has not begun by `deadline` (whoever sees it ends the
// transport, so that all do); the transport's.
absl::StatusOr<LinkMatrix> MeasureLinkMatrix(Transport& transport, absl::Time deadline);

}  // namespace cadre
