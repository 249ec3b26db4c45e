// Searches for the plan with the fastest predicted step: the mesh, and each layer's layout.
// search.cc explains the method.
//
// The buckets of the result serve for its prediction. The workers of a group choose their buckets
// by the rule of WithBuckets, for the link that they measure.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/plan.h"
#include "plan/search/plan_problem.h"
#include "plan/search/prediction.h"
#include "plan/search/search_result.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"

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
  // Whether the error has the number of ranks that would suffice, which takes long to find.
  bool explains = true;
};

// Plans recompute blocks of layers if the problem requests it, or if memory is too small for a plan
// that is faster without.
//
// Errors: ResourceExhausted if no plan fits into memory, naming the layer that needs most, the
// number of bytes missing and, if found, the minimum number of ranks that suffices without
// recomputation (at most 65,536); InvalidArgument for pins that no plan satisfies, and if every
// plan has a batch norm with statistics of one value (plan/norm_statistics.h).
absl::StatusOr<SearchResult> Search(const PlanProblem& problem, const SearchOptions& options = {});

// The meshes that are considered: all factorisations data * space * model of the ranks (space only
// for models of images), or the pinned mesh, or the meshes of the strategy. If there are more than
// a few hundred, meshes are left out that have an axis longer than any dimension that it could
// split.
std::vector<Mesh> MeshesFor(const PlanProblem& problem);

// The plans whose layers `cadre probe` times on a cluster without measurements. Together they split
// the layers in every way that a search is likely to choose: for groups of 1, 2, 4, ... and
// `max_ranks` ranks, the best plan of each strategy on each of its meshes, for typical hardware,
// without duplicates. The plans satisfy the spec's pins if possible. Requires: max_ranks >= 1.
// Errors: InvalidArgument for a malformed model; those of Search, if there is no plan for one of
// these numbers of ranks.
absl::StatusOr<std::vector<v1::Plan>> PlansToProbe(const v1::RunSpec& spec, int max_ranks);

}  // namespace cadre
