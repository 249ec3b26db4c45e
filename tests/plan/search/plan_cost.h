// Reference implementation of the quantities that the search minimises, computed from the layouts
// of a whole plan.
#pragma once

#include <cstdint>
#include <string>

#include "plan/plan.h"
#include "plan/search/plan_problem.h"

namespace cadre::testing {

// Serial seconds of a layer without its moves.
double LayerCost(const PlanProblem& problem, const Mesh& mesh, int layer,
                 const LayerLayouts& layouts);
// Serial seconds of all layers and moves. Requires: the plan is legal for the problem's graph.
double PlanCost(const PlanProblem& problem, const Plan& plan);
// Requires: the plan has the layer.
const LayerLayouts& LayerOf(const Plan& plan, const std::string& name);
// The sum of LayerBytes over all layers.
int64_t PlanBytes(const PlanProblem& problem, const Plan& plan);

}  // namespace cadre::testing
