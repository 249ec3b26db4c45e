// Plans that place layers on stages, as a pipeline. staged_plans.cc explains which ones.
//
// Pure function; thread-safe.
#pragma once

#include <vector>

#include "plan/search/plan_problem.h"
#include "plan/search/prediction.h"

namespace cadre {

// One plan for each number of stages that divides the ranks, whether it fits into memory or not.
// None if the problem's micro-batches are not pipelined (plan/pipeline.h), nothing is known about
// the speed of layers, or the group is very large. Pins and strategy are ignored.
std::vector<Candidate> StagedPlans(const PlanProblem& problem);

}  // namespace cadre
