// The quantities that the search minimises, computed from the layouts of a whole plan: what its
// results are compared with.
#pragma once

#include <cstdint>

#include "plan/plan.h"
#include "plan/search/plan_problem.h"

namespace cadre::testing {

// Serial seconds of a layer without its moves.
double LayerCost(const PlanProblem& problem, const Mesh& mesh, int layer,
                 const LayerLayouts& layouts);
// All layers and moves. Requires: the plan is legal for the problem's graph.
double PlanCost(const PlanProblem& problem, const Plan& plan);
// LayerBytes of all layers.
int64_t PlanBytes(const PlanProblem& problem, const Plan& plan);

}  // namespace cadre::testing
