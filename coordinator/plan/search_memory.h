// What to say when no plan fits into memory.
//
// Pure functions; thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/plan/plan_problem.h"
#include "coordinator/plan/search_mesh.h"

namespace cadre {

// ResourceExhausted: what the leanest plan needs, which layer needs most of that, how many bytes
// are missing, and the least number of ranks that would do, if there is one.
// Requires: none of the meshes has a plan that fits; there is one at least.
absl::Status NoPlanFits(const PlanProblem& problem,
                        const std::vector<std::unique_ptr<MeshSearch>>& meshes);

}  // namespace cadre
