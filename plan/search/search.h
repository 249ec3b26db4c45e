// Searches for the plan with the fastest predicted step: the mesh, and each layer's layout.
// search.cc explains the method.
//
// The buckets of the result are part of its prediction. A group's workers choose theirs by the rule
// of WithBuckets, from the link that they measure.
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

struct SearchOptions {
  // Of one layer, per mesh.
  int64_t max_states = 20'000;
  // Under a memory limit: Pareto labels per state.
  size_t max_labels = 64;
  // Plans that are predicted as a whole.
  int max_predicted = 48;
  // Further plans near the fastest that are predicted; fewer if each takes long to find.
  int max_improvements = 400;
  // Under AUTO the other policies are searched too, up to so many states; then no policy's plan is
  // faster than the result.
  int64_t max_policy_states = 500'000;
  // Other plans that are reported.
  int runners_up = 5;
};

struct Candidate {
  Plan plan;
  Prediction prediction;
};

// The second best way to split one layer, all others unchanged.
struct LayerRunnerUp {
  std::vector<IndexSplit> splits;
  // By how much it increases the serial seconds of the plan; infinite: there is no other way.
  double more_seconds = 0;
};

struct SearchResult {
  Candidate best;
  // The best plans of other meshes or strategies, fastest first.
  std::vector<Candidate> others;
  // One per layer of the graph.
  std::vector<LayerRunnerUp> runners_up;
  // Layers to which the strategy could not be applied, and which were split in their best way.
  std::vector<std::string> freed;
  // The sums were minimised exactly. Overlap is not part of the sums, so the result is the fastest
  // of the predicted plans, not necessarily of all plans.
  bool exact = true;
  // An upper bound on how far the sum that was found is above the minimum, as a fraction of it,
  // over all meshes; 0 if exact, infinite if unknown.
  double gap = 0;
  // Meshes that exist, and table entries of all sums.
  int64_t meshes = 0;
  int64_t states = 0;
  // The number with which the best plan fits into memory; that of the problem unless it is free.
  int micro_batches = 1;
  // The best plan without the pins; nullopt: the problem has no pins.
  std::optional<Candidate> unpinned;
};

// Errors: ResourceExhausted if no plan fits into memory, naming the layer that needs most, the
// number of bytes missing, and the minimum number of ranks that would suffice (up to 65,536), if
// any; InvalidArgument for pins that no plan satisfies.
absl::StatusOr<SearchResult> Search(const PlanProblem& problem, const SearchOptions& options = {});

// The meshes that are considered: all factorisations data * space * model of the ranks (space only
// for models of images), or the pinned mesh, or those of the strategy. If there are more than a few
// hundred, only those without an axis longer than anything it could split.
std::vector<Mesh> MeshesFor(const PlanProblem& problem);

}  // namespace cadre
