// The answer of `cadre plan`: the plan, what it costs, and why not another.
//
// Values and pure functions; thread-compatible.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/plan_question.h"
#include "coordinator/cost/paper_strategies.h"
#include "coordinator/plan/search.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// What a policy of collectives would cost in a step: as Cadre does it, and with every bucket
// all-reduced instead.
struct PolicyCost {
  v1::CollectivePolicy policy = v1::AUTO;
  double seconds = 0;
  double all_reduced = 0;
};

struct PlanAnswer {
  Strategy strategy = Strategy::kAuto;
  // Nothing to predict by: the plan that a group has before anything was measured.
  bool by_rules = false;
  // What Cadre's engine would do: by rules or searched. Nothing: `refusal` says why; then there is
  // `paper`.
  std::optional<Candidate> chosen;
  std::optional<SearchResult> searched;
  absl::Status refusal;
  // By its own paper, for a strategy of the papers.
  std::optional<PaperCost> paper;
  std::vector<PolicyCost> policies;

  // What counts as the answer's figures: the paper's for a strategy of the papers on a link that
  // flags describe, the engine's otherwise.
  bool papers_figures = false;
};

// The strategy of the papers of that name; nothing: auto.
std::optional<PaperStrategy> PaperStrategyOf(Strategy strategy);
// The paper's cost, on the grid that a pinned mesh says or the best. Errors: CostOf's.
absl::StatusOr<PaperCost> PaperCostOf(const PlanQuestion& question, PaperStrategy strategy);

// Errors: Search's, and CostOf's of paper_strategies.h.
absl::StatusOr<PlanAnswer> AnswerPlan(const PlanQuestion& question);

}  // namespace cadre
