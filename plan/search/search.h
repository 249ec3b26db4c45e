// Searches for the plan with the fastest predicted step: the mesh, and each layer's layout.
// search.cc explains the method.
//
// The buckets of the result serve for its prediction. The workers of a group choose their buckets
// by the rule of WithBuckets, for the link that they measure.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/plan.h"
#include "plan/search/plan_problem.h"
#include "plan/search/prediction.h"

namespace cadre {

// Limits on the effort of a search.
struct SearchOptions {
  // Maximum number of table entries for one layer on one mesh (elimination.h).
  int64_t max_states = 20'000;
  // Under a memory limit: Pareto labels per state.
  size_t max_labels = 64;
  // Plans that are predicted as a whole.
  int max_predicted = 48;
  // Further plans near the fastest that are predicted; fewer if each takes long to find.
  int max_improvements = 400;
  // Under AUTO the other policies are searched too, as long as all searches together have at most
  // so many states. No policy's plan is then faster than the result.
  int64_t max_policy_states = 500'000;
  // Number of other plans that are reported.
  int runners_up = 5;
};

// A plan and its predicted step.
struct Candidate {
  Plan plan;
  Prediction prediction;
};

// The second best way to split one layer if all other layers remain unchanged.
struct LayerRunnerUp {
  std::vector<IndexSplit> splits;
  // How many serial seconds it adds to the plan; infinite: there is no other way.
  double more_seconds = 0;
};

struct SearchResult {
  Candidate best;
  // The best plans of other meshes or strategies, fastest first.
  std::vector<Candidate> others;
  // One per layer of the graph.
  std::vector<LayerRunnerUp> runners_up;
  // Layers to which the strategy could not be applied; each was split in the best way.
  std::vector<std::string> freed;
  // Whether the sums were minimised exactly. Overlap is not part of the sums, so the result is the
  // fastest of the predicted plans, not necessarily of all plans.
  bool exact = true;
  // An upper bound on how far the sum that was found is above the minimum, as a fraction of it,
  // over all meshes; 0 if exact, infinite if unknown.
  double gap = 0;
  // The number of meshes considered, and of table entries in all minimisations.
  int64_t meshes = 0;
  int64_t states = 0;
  // Micro-batches of the best plan: as in the problem, or more if the problem permits more and they
  // are needed to fit into memory.
  int micro_batches = 1;
  // The best plan without the pins; nullopt: the problem has no pins.
  std::optional<Candidate> unpinned;
};

// Errors: ResourceExhausted if no plan fits into memory, naming the layer that needs most, the
// number of bytes missing and, if found, the minimum number of ranks that suffices (at most
// 65,536); InvalidArgument for pins that no plan satisfies.
absl::StatusOr<SearchResult> Search(const PlanProblem& problem, const SearchOptions& options = {});

// The meshes that are considered: all factorisations data * space * model of the ranks (space only
// for models of images), or the pinned mesh, or the meshes of the strategy. If there are more than
// a few hundred, meshes are left out that have an axis longer than any dimension that it could
// split.
std::vector<Mesh> MeshesFor(const PlanProblem& problem);

}  // namespace cadre
