// The search with plans that recompute blocks of layers (plan/recomputation.h).
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "plan/search/plan_problem.h"
#include "plan/search/search_result.h"

namespace cadre {

// Finds plans that recompute the blocks of the problem. `explains`: the error of a search in which
// nothing fits has the number of ranks that would suffice, which takes long to find.
using SearchFunction =
    absl::FunctionRef<absl::StatusOr<SearchResult>(const PlanProblem& problem, bool explains)>;

// Searches as problem.recompute requests: without recomputation; with all blocks; or, if the memory
// limit excludes plans, both, for the faster result. Under AUTO, each plan that is found with
// blocks then recomputes only as many as its memory requires. Errors: those of `search`;
// ResourceExhausted if the plans that it found do not fit by their exact memory. A problem without
// a spec is searched without recomputation only.
absl::StatusOr<SearchResult> SearchRecomputing(const PlanProblem& problem, SearchFunction search);

// The memory of the rank that needs most: exact if the problem has a spec and not very many ranks;
// otherwise the prediction's.
int64_t MemoryOf(const PlanProblem& problem, const Candidate& candidate);

}  // namespace cadre
