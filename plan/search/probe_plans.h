// Chooses the plans whose layers `cadre probe` times on a cluster without measurements. Together
// they split the layers in every way that a search is likely to choose.
//
// A pure function; thread-safe.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// For groups of 1, 2, 4, ... and `max_ranks` ranks: the best plan of each strategy on each of its
// meshes, for typical hardware, without duplicates. The plans satisfy the spec's pins if possible.
// Requires: max_ranks >= 1. Errors: InvalidArgument for a malformed model, or pins that no plan
// satisfies.
absl::StatusOr<std::vector<v1::Plan>> PlansToProbe(const v1::RunSpec& spec, int max_ranks);

}  // namespace cadre
