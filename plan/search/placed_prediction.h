// Predicts a step of a plan whose layers are placed on some of the ranks. placed_prediction.cc
// explains the model.
//
// Pure functions; thread-safe.
#pragma once

#include <vector>

#include "plan/pipeline.h"
#include "plan/plan.h"
#include "plan/search/plan_problem.h"

namespace cadre {

// The passes of one step on one rank, in seconds.
struct PlacedRankTime {
  // When its last operation ends.
  double end = 0;
  double compute = 0;
  // Waiting for other ranks, and for messages.
  double moves = 0;
  double elements_sent = 0;
};

// By rank. `order`: of the problem's micro-batches, for this plan. Requires: CheckPlan is OK for
// the problem's graph.
std::vector<PlacedRankTime> SimulatePasses(const PlanProblem& problem, const Plan& plan,
                                           const PassOrder& order);

}  // namespace cadre
