// The error of a search in which no plan fits into memory.
//
// Pure functions; thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "plan/search/plan_problem.h"
#include "plan/search/search_mesh.h"

namespace cadre {

// ResourceExhausted: the memory of the plan that needs least, the layer that needs most of it, the
// number of bytes missing, and the least number of ranks that would suffice, if any.
// Requires: at least one mesh, and no plan that fits on any of them.
absl::Status NoPlanFits(const PlanProblem& problem,
                        const std::vector<std::unique_ptr<MeshSearch>>& meshes);

}  // namespace cadre
