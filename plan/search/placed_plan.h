// A plan that places each layer on one rank, so that branches of a model are computed concurrently
// (Pal et al. 2019). placed_plan.cc explains the model.
//
// Thread-compatible; one call at a time in a process (plan/placement/placer.h).
#pragma once

#include "absl/status/statusor.h"
#include "plan/placement/placer.h"
#include "plan/search/plan_problem.h"
#include "plan/search/search.h"

namespace cadre {

struct PlacedPlan {
  Candidate candidate;
  // The placement of the layers, in the order of the graph. Its makespan contains forward and
  // backward, without updates.
  PlacedGraph placement;
};

// The placement with the minimum makespan that the placer finds, on the problem's ranks. Pins and
// strategy are ignored. Errors: InvalidArgument if layers share a weight; those of PlaceGraph.
absl::StatusOr<PlacedPlan> PlaceLayersOnRanks(const PlanProblem& problem,
                                              const PlacerOptions& options = {});

}  // namespace cadre
