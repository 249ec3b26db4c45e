// Compares the published strategies (lab/paper_strategies.h): the cost of each by the
// formulas of its paper and as the planner predicts it, and the gain of the plan that
// the search finds (strategy `auto`) over the fastest of them.
//
// Values and pure functions; thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/plan_question.h"
#include "plan/search/search.h"

namespace cadre {

// The cost by the paper's formulas, on the grid of the pinned mesh, or on the best grid if no mesh
// is pinned. Requires: not kAuto. Errors: those of CostOf.
absl::StatusOr<PaperCost> PaperCostOf(const PlanQuestion& question, Strategy strategy);

// One strategy in the comparison.
struct ComparedStrategy {
  Strategy strategy = Strategy::kAuto;
  // By the paper's formulas; nullopt for auto and if the formulas do not apply.
  std::optional<PaperCost> paper;
  // The plan under this strategy with the minimum predicted step.
  std::optional<Candidate> predicted;
  // Why one of the two above is missing, and other restrictions.
  std::string note;
  // Seconds of a step that the comparison uses: predicted for auto and with a cluster profile, by
  // the paper's formulas otherwise.
  std::optional<double> seconds;
  // `seconds` divided by best_of_papers_seconds.
  std::optional<double> ratio;
};

struct StrategyComparison {
  // The requested strategies, in the order of the request.
  std::vector<ComparedStrategy> rows;
  // The fastest of all published strategies, requested or not.
  std::optional<Strategy> best_of_papers;
  double best_of_papers_seconds = 0;
  std::optional<double> auto_seconds;
  // best_of_papers_seconds / auto_seconds; nullopt with overlap or pinned layers, which the
  // formulas do not cover. gain_note then states the reason.
  std::optional<double> gain;
  std::string gain_note;
  // The same ratio with the planner's predicted times for all strategies.
  std::optional<double> predicted_gain;
};

// Requires: the question's link is known.
StrategyComparison CompareStrategies(const PlanQuestion& question);

}  // namespace cadre
