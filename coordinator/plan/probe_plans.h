// Plans whose layers are worth timing before anything is known of a cluster: between them they cut
// the layers in every way that a search is likely to ask for.
//
// A pure function; thread-safe.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// For groups of 1, 2, 4, ... and `most_ranks` ranks: the best of each strategy on each of its
// meshes, by nothing but work and words; each once. What the spec pins is kept where it can be.
// Requires: most_ranks >= 1. Errors: InvalidArgument for a model that is malformed, or pins that no
// plan fulfils.
absl::StatusOr<std::vector<v1::Plan>> PlansToProbe(const v1::RunSpec& spec, int most_ranks);

}  // namespace cadre
