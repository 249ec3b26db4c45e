// All published strategies (lab/paper_strategies.h) are evaluated, even if only some are
// requested: ratios and gains refer to the fastest of them, which must not depend on the rows
// shown.
//
// The gain is a ratio: the time of the fastest published strategy, by its formulas, divided by the
// predicted time of the plan that the search finds (strategy `auto`). The ratio is fair only if
// both count communication alone; the formulas model neither overlap nor pinned layers. Otherwise
// only `predicted_gain` is reported, for which the planner predicts both times. A strategy with too
// few samples for its ranks is not a candidate for the fastest, since its formulas would include
// ranks without work.
#include "lab/strategy_comparison.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre {
namespace {

// P_r, the rows of the papers' grid, in a pinned mesh: the ranks of the axes that do not split the
// samples. nullopt: the mesh is not pinned.
std::optional<int64_t> PinnedGridRows(const PlanProblem& problem) {
  if (problem.pins.mesh.empty()) return std::nullopt;
  int64_t rows = 1;
  for (const Mesh::Axis& axis : problem.pins.mesh) rows *= axis.name == kDataAxis ? 1 : axis.size;
  return rows;
}

// Why times by the formulas cannot be compared with predicted ones; empty: they can. With a cluster
// profile, only predicted times are compared.
std::string IncomparableReason(const PlanQuestion& question) {
  if (question.request.profile) return "";
  if (question.problem.overlap) {
    return "the papers' formulas do not model overlap, which auto's step has: compare in Cadre";
  }
  if (!question.problem.pins.layers.empty()) {
    return "the papers' formulas do not model pinned layers: compare in Cadre";
  }
  return "";
}

void AddNote(absl::string_view note, ComparedStrategy& row) {
  absl::StrAppend(&row.note, row.note.empty() ? "" : "; ", note);
}

ComparedStrategy RowOf(const PlanQuestion& question, Strategy strategy) {
  ComparedStrategy row{.strategy = strategy};
  if (strategy != Strategy::kAuto) {
    absl::StatusOr<PaperCost> cost = PaperCostOf(question, strategy);
    if (cost.ok()) {
      row.paper = *std::move(cost);
      if (!row.paper->enough_samples) row.note = "more ranks than samples: some ranks are idle";
    } else {
      row.note = std::string(cost.status().message());
    }
  }
  PlanProblem problem = question.problem;
  problem.strategy = strategy;
  absl::StatusOr<SearchResult> searched = Search(problem);
  if (searched.ok()) {
    if (!searched->strategy_exceptions.empty()) {
      AddNote(absl::StrCat("in Cadre not applicable to ",
                           absl::StrJoin(searched->strategy_exceptions, ", ")),
              row);
    }
    row.predicted = std::move(searched->best);
  } else if (row.note.empty()) {
    row.note = std::string(searched.status().message());
  }
  const bool by_prediction = strategy == Strategy::kAuto || question.request.profile;
  if (by_prediction && row.predicted) row.seconds = row.predicted->prediction.times.step();
  if (!by_prediction && row.paper) row.seconds = row.paper->step_seconds();
  return row;
}

// Finds the fastest published strategy by `seconds`. Returns the minimum predicted step of all
// published strategies.
std::optional<double> FindBest(const std::vector<ComparedStrategy>& rows,
                               StrategyComparison& comparison) {
  std::optional<double> min_predicted;
  for (const ComparedStrategy& row : rows) {
    if (row.strategy == Strategy::kAuto) {
      comparison.auto_seconds = row.seconds;
      continue;
    }
    if (row.predicted) {
      const double step = row.predicted->prediction.times.step();
      min_predicted = std::min(min_predicted.value_or(step), step);
    }
    if (!row.seconds || (row.paper && !row.paper->enough_samples)) continue;
    if (comparison.best_of_papers && *row.seconds >= comparison.best_of_papers_seconds) continue;
    comparison.best_of_papers = row.strategy;
    comparison.best_of_papers_seconds = *row.seconds;
  }
  return min_predicted;
}

}  // namespace

absl::StatusOr<PaperCost> PaperCostOf(const PlanQuestion& question, Strategy strategy) {
  return CostOf(strategy, question.paper_problem(), PinnedGridRows(question.problem));
}

StrategyComparison CompareStrategies(const PlanQuestion& question) {
  std::vector<ComparedStrategy> all;
  for (const Strategy strategy : AllStrategies()) all.push_back(RowOf(question, strategy));
  StrategyComparison comparison;
  const std::optional<double> min_predicted = FindBest(all, comparison);
  const bool auto_known = comparison.auto_seconds.value_or(0) > 0;
  if (comparison.best_of_papers) {
    const double best = comparison.best_of_papers_seconds;
    comparison.gain_note = IncomparableReason(question);
    const bool comparable = comparison.gain_note.empty();
    for (ComparedStrategy& row : all) {
      const bool row_comparable = comparable || row.strategy != Strategy::kAuto;
      if (row.seconds && best > 0 && row_comparable) row.ratio = *row.seconds / best;
    }
    if (comparable && auto_known) comparison.gain = best / *comparison.auto_seconds;
  }
  if (min_predicted && auto_known) {
    comparison.predicted_gain = *min_predicted / *comparison.auto_seconds;
  }
  for (const Strategy requested : question.request.compare) {
    for (const ComparedStrategy& row : all) {
      if (row.strategy == requested) comparison.rows.push_back(row);
    }
  }
  return comparison;
}

}  // namespace cadre
