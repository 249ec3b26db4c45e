// Plans that place each layer on one rank, so that branches of a model are computed concurrently
// (Pal et al. 2019). placed_plans.cc explains the model.
//
// Pure functions; thread-safe, except that PlaceLayersOnRanks is so only without a solver.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "model/op_indices.h"
#include "plan/placement/placer.h"
#include "plan/search/plan_problem.h"
#include "plan/search/prediction.h"

namespace cadre {

struct PlacedPlan {
  Candidate candidate;
  // The placement of the layers, in the order of the graph. Its makespan contains forward and
  // backward, without updates.
  PlacedGraph placement;
};

// The placement with the minimum makespan that the placer finds, on `devices` ranks; the other
// ranks do the same for other samples. Pins and strategy are ignored. Requires: `devices` divides
// the problem's ranks. Errors: InvalidArgument if layers share a weight; ResourceExhausted if a
// layer does not fit on a rank, or the model exceeds a limit of the placer (kMaxOperators, ... in
// plan/placement/placement_problem.h); those of PlaceGraph.
absl::StatusOr<PlacedPlan> PlaceLayersOnRanks(const PlanProblem& problem, int devices,
                                              const PlacerOptions& options = {});

// For the search: such plans for all numbers of devices, within the memory limit, unless a bound
// shows that they take at least `max_seconds`. None where MayPlaceLayers is false, or the model has
// no layers that can be computed concurrently. Deterministic.
std::vector<Candidate> PlacedPlans(const PlanProblem& problem, double max_seconds);

// Whether the search considers plans that place layers: each of them is simulated on all ranks, so
// there are at most 8; layers have times and share no weights; and ranks compute and send
// concurrently, which they do on CPUs only.
bool MayPlaceLayers(const PlanProblem& problem);

// The layer at one coordinate, with the samples split over the axis `data`.
LayerLayouts LayOutAt(const GraphLayer& layer, const Mesh& mesh, const AxisCoordinate& at);

}  // namespace cadre
