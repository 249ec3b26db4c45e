// Strategies side by side, as papers print them: what each costs by its own formulas and in Cadre's
// engine, and how much better the searched plan is than the best of them.
//
// Values and pure functions; thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/plan_question.h"
#include "coordinator/cost/paper_strategies.h"
#include "coordinator/plan/search.h"

namespace cadre {

struct ComparedStrategy {
  Strategy strategy = Strategy::kAuto;
  // By its paper; nothing for auto, and where it cannot be.
  std::optional<PaperCost> paper;
  // In Cadre's engine.
  std::optional<Candidate> engine;
  // Why one of them is missing, and what else is to be known.
  std::string note;
  // Of a step, what the comparison is by: the paper's on a link that flags describe, the engine's
  // for auto and on a profile. Nothing: it cannot be.
  std::optional<double> seconds;
  // `seconds` over the least of the papers' strategies.
  std::optional<double> ratio;
};

struct Comparison {
  std::vector<ComparedStrategy> rows;
  // Of all strategies of the papers, whether or not they are among the rows.
  std::optional<Strategy> best_of_papers;
  double best_of_papers_seconds = 0;
  // The searched plan's; and how many times as long the best of the papers takes: by its formulas,
  // and in Cadre's engine, which overlaps and shards what the formulas do not. Where overlap or
  // pinned layers are in play, only the second is given; `gain_note` says why.
  std::optional<double> auto_seconds;
  std::optional<double> gain;
  std::string gain_note;
  std::optional<double> engine_gain;
};

Comparison Compare(const PlanQuestion& question);

std::string ComparisonText(const Comparison& comparison);
std::string ComparisonJson(const Comparison& comparison);

}  // namespace cadre
