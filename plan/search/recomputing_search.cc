// The search needs memory as a sum over layers. What a plan that recomputes needs is not a sum, but
// estimated by one (RecomputedLayer::share_in_memory), so the plans that are found are checked by
// the exact memory of all ranks, which also determines how many blocks are recomputed
// (plan/memory_fit.h). Time grows with each block. In groups of more than kMaxExactRanks the
// estimate decides, and all blocks are recomputed.
#include "plan/search/recomputing_search.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/counted_noun.h"
#include "plan/memory_fit.h"
#include "plan/recomputation.h"

namespace cadre {
namespace {

// In larger groups, only the fastest plan that fits is reported.
constexpr int kFewRanks = 16;

// The estimated memory of a plan, like the bound of plans without recomputation, may be so many
// times the exact memory. Larger limits are tried if a smaller one leaves no plan.
constexpr double kLimitFactors[] = {1, 1.8, 3.2};

bool IsExact(const PlanProblem& problem) {
  return problem.spec != nullptr && problem.ranks <= kMaxExactRanks;
}

// The spec with what a caller may have changed in the problem.
v1::RunSpec SpecOf(const PlanProblem& problem) {
  v1::RunSpec spec = *problem.spec;
  spec.set_batch_per_group(problem.batch);
  spec.set_micro_batches(problem.micro_batches);
  return spec;
}

// Sets the blocks that the plan recomputes, and predicts it with them. Returns whether it fits.
bool FitIntoMemory(const PlanProblem& problem, Candidate& candidate) {
  const int64_t limit = problem.hardware.memory_bytes;
  Plan& plan = candidate.plan;
  const bool all = problem.recompute == v1::Recomputation::ALL;
  plan.recomputed = problem.recomputed;
  if (limit == 0 || !IsExact(problem)) {
    candidate.prediction = Predict(problem, plan);
    return limit == 0 || candidate.prediction.memory_bytes <= limit;
  }
  const v1::RunSpec spec = SpecOf(problem);
  const std::vector<int64_t> limits(problem.ranks, limit);
  const MemoryFit fit =
      all ? FitOf(spec, *problem.graph, *problem.index, plan, problem.device, limits)
          : RecomputeAsNeeded(spec, *problem.graph, *problem.index, problem.device, limits,
                              problem.recomputed, plan);
  candidate.prediction = Predict(problem, plan);
  candidate.prediction.memory_bytes = fit.bytes;
  return fit.fits;
}

bool IsFaster(const PlanProblem& problem, const Candidate& a, const Candidate& b) {
  return ObjectiveOf(problem, a.prediction) < ObjectiveOf(problem, b.prediction);
}

// Keeps the plans that fit, fastest first; `needed` becomes at most what the others need. Returns
// whether any is left. What the search says of its best plan beside the plan (SearchResult) is
// reset if that is not the best any more.
bool KeepFitting(const PlanProblem& problem, SearchResult& result, int64_t& needed) {
  std::vector<Candidate> found = std::move(result.others);
  found.insert(found.begin(), std::move(result.best));
  std::vector<std::pair<Candidate, bool>> fitting;  // and whether it was the best
  for (size_t i = 0; i < found.size(); ++i) {
    if (!fitting.empty() && problem.ranks > kFewRanks) break;
    if (FitIntoMemory(problem, found[i])) {
      fitting.emplace_back(std::move(found[i]), i == 0);
    } else {
      needed = std::min(needed, found[i].prediction.memory_bytes);
    }
  }
  result.others.clear();
  if (fitting.empty()) return false;
  std::stable_sort(fitting.begin(), fitting.end(), [&](const auto& a, const auto& b) {
    return IsFaster(problem, a.first, b.first);
  });
  const bool is_same = fitting.front().second;
  for (auto& [candidate, was_best] : fitting) result.others.push_back(std::move(candidate));
  result.best = std::move(result.others.front());
  result.others.erase(result.others.begin());
  if (is_same && result.best.plan.recomputed == problem.recomputed) return true;
  result.exact = false;
  result.gap = std::numeric_limits<double>::infinity();
  if (is_same) return true;
  result.runners_up.assign(problem.graph->size(),
                           {.more_seconds = std::numeric_limits<double>::infinity()});
  result.strategy_exceptions.clear();
  return true;
}

bool PlacesNothing(const Candidate& candidate) { return !PlacesLayers(candidate.plan); }

bool HasUnplaced(const SearchResult& result) {
  return PlacesNothing(result.best) ||
         std::any_of(result.others.begin(), result.others.end(), PlacesNothing);
}

// Requires: the problem has blocks that are recomputed.
absl::StatusOr<SearchResult> SearchWithBlocks(const PlanProblem& problem, SearchFunction search) {
  std::optional<SearchResult> best;
  int64_t needed = std::numeric_limits<int64_t>::max();
  for (const double factor : kLimitFactors) {
    PlanProblem relaxed = problem;
    relaxed.hardware.memory_bytes =
        static_cast<int64_t>(factor * static_cast<double>(problem.hardware.memory_bytes));
    absl::StatusOr<SearchResult> found = search(relaxed, /*explains=*/false);
    if (!found.ok() && !absl::IsResourceExhausted(found.status())) return found;
    if (!found.ok() || !KeepFitting(problem, *found, needed)) continue;
    if (!best || IsFaster(problem, found->best, best->best)) best = *std::move(found);
    // Plans that place layers are found under every limit.
    if (HasUnplaced(*best)) break;
  }
  if (best) return *std::move(best);
  std::string text = absl::StrCat("with ", Counted(problem.recomputed.size(), "recomputed block"),
                                  " of layers, no plan fits");
  if (needed < std::numeric_limits<int64_t>::max()) {
    absl::StrAppend(&text, " either; the smallest that was found needs ", needed,
                    " bytes on one of the ranks");
  }
  return absl::ResourceExhaustedError(text);
}

// The error without recomputation, which has the missing bytes, and that with it.
absl::Status BothErrors(const absl::Status& without, const absl::Status& with) {
  return absl::Status(without.code(), absl::StrCat(without.message(), "; ", with.message()));
}

}  // namespace

absl::StatusOr<SearchResult> SearchRecomputing(const PlanProblem& problem, SearchFunction search) {
  PlanProblem recomputing = problem;
  recomputing.recomputed = RecomputationBlocks(*problem.graph);
  const bool possible = problem.spec != nullptr && !recomputing.recomputed.empty();
  if (possible && problem.recompute == v1::Recomputation::ALL) {
    absl::StatusOr<SearchResult> all = SearchWithBlocks(recomputing, search);
    if (!absl::IsResourceExhausted(all.status())) return all;
    const absl::Status without = search(problem, /*explains=*/true).status();
    return without.ok() ? all.status() : BothErrors(without, all.status());
  }
  absl::StatusOr<SearchResult> without = search(problem, /*explains=*/true);
  const bool binds =
      without.ok() ? without->memory_binds : absl::IsResourceExhausted(without.status());
  if (!possible || !binds || problem.recompute == v1::Recomputation::OFF) return without;
  absl::StatusOr<SearchResult> with = SearchWithBlocks(recomputing, search);
  if (!with.ok())
    return without.ok() ? std::move(without) : BothErrors(without.status(), with.status());
  if (!without.ok() || IsFaster(problem, with->best, without->best)) return with;
  // For callers that find that the placed plans do not fit.
  if (!HasUnplaced(*without) && PlacesNothing(with->best)) {
    without->others.push_back(std::move(with->best));
  }
  return without;
}

int64_t MemoryOf(const PlanProblem& problem, const Candidate& candidate) {
  if (!IsExact(problem)) return candidate.prediction.memory_bytes;
  const std::vector<int64_t> unlimited(problem.ranks, 0);
  return FitOf(SpecOf(problem), *problem.graph, *problem.index, candidate.plan, problem.device,
               unlimited)
      .bytes;
}

}  // namespace cadre
