// Strategies compared as the papers compare them: the cost of each by its paper's formulas and in
// Cadre's engine, and the gain of the searched plan over the best of them.
//
// Values and pure functions; thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/report/plan_question.h"
#include "plan/search/search.h"

namespace cadre {

// The cost by the paper's formulas, on the grid of the pinned mesh or else the best. Requires: not
// kAuto. Errors: those of CostOf.
absl::StatusOr<PaperCost> PaperCostOf(const PlanQuestion& question, Strategy strategy);

struct ComparedStrategy {
  Strategy strategy = Strategy::kAuto;
  // By the paper's formulas; nothing for auto, and where the formulas do not apply.
  std::optional<PaperCost> paper;
  // The best plan under this strategy in Cadre's engine.
  std::optional<Candidate> engine;
  // Why one of the two is missing, and other restrictions.
  std::string note;
  // Seconds of a step that the comparison uses: the paper's on a given link, the engine's for auto
  // and on a profile.
  std::optional<double> seconds;
  // `seconds` divided by the fastest paper strategy's.
  std::optional<double> ratio;
};

struct StrategyComparison {
  // In the order requested.
  std::vector<ComparedStrategy> rows;
  // The fastest of all strategies of the papers, requested or not.
  std::optional<Strategy> best_of_papers;
  double best_of_papers_seconds = 0;
  std::optional<double> auto_seconds;
  // best_of_papers_seconds / auto_seconds. Nothing with overlap or pinned layers, which the
  // formulas do not cover; gain_note then states the reason.
  std::optional<double> gain;
  std::string gain_note;
  // The same ratio with every strategy timed in Cadre's engine.
  std::optional<double> engine_gain;
};

// Requires: the question's link is known.
StrategyComparison CompareStrategies(const PlanQuestion& question);

}  // namespace cadre
