#include "cli/plan_compare.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/json.h"
#include "cli/plan_answer.h"
#include "cli/table.h"

namespace cadre {
namespace {

std::string GridText(const Grid& grid) { return absl::StrCat(grid.pr, "x", grid.pc); }

// Why the formulas are not held against the engine; empty: they may be. On a profile it is the
// engine's figures that are compared.
std::string Incomparable(const PlanQuestion& question) {
  if (question.options.profile) return "";
  if (question.problem.overlap) {
    return "the papers' formulas know no overlap, auto's step has it: compare in Cadre";
  }
  if (!question.problem.pins.layers.empty()) {
    return "the papers' formulas know no pinned layers: compare in Cadre";
  }
  return "";
}

void AddNote(absl::string_view note, ComparedStrategy& row) {
  absl::StrAppend(&row.note, row.note.empty() ? "" : "; ", note);
}

ComparedStrategy RowOf(const PlanQuestion& question, Strategy strategy) {
  ComparedStrategy row{.strategy = strategy};
  if (const auto paper = PaperStrategyOf(strategy)) {
    absl::StatusOr<PaperCost> cost = PaperCostOf(question, *paper);
    if (cost.ok()) {
      row.paper = *std::move(cost);
      if (!row.paper->enough_samples) row.note = "more ranks than samples: some have no work";
    } else {
      row.note = std::string(cost.status().message());
    }
  }
  PlanProblem problem = question.problem;
  problem.strategy = strategy;
  absl::StatusOr<SearchResult> searched = Search(problem);
  if (searched.ok()) {
    if (!searched->freed.empty()) {
      AddNote(absl::StrCat("in Cadre it does not apply to ", absl::StrJoin(searched->freed, ", ")),
              row);
    }
    row.engine = std::move(searched->best);
  } else if (row.note.empty()) {
    row.note = std::string(searched.status().message());
  }
  const bool engines = strategy == Strategy::kAuto || question.options.profile;
  if (engines && row.engine) row.seconds = row.engine->prediction.times.step();
  if (!engines && row.paper) row.seconds = row.paper->step_seconds();
  return row;
}

bool CountsAsBest(const ComparedStrategy& row) {
  return row.strategy != Strategy::kAuto && row.seconds &&
         (!row.paper || row.paper->enough_samples);
}

void FindBest(const std::vector<ComparedStrategy>& rows, Comparison& comparison) {
  for (const ComparedStrategy& row : rows) {
    if (row.strategy == Strategy::kAuto) comparison.auto_seconds = row.seconds;
    if (!CountsAsBest(row)) continue;
    if (comparison.best_of_papers && *row.seconds >= comparison.best_of_papers_seconds) continue;
    comparison.best_of_papers = row.strategy;
    comparison.best_of_papers_seconds = *row.seconds;
  }
}

// The least step of the papers' strategies in the engine.
std::optional<double> BestInEngine(const std::vector<ComparedStrategy>& rows) {
  std::optional<double> best;
  for (const ComparedStrategy& row : rows) {
    if (row.strategy == Strategy::kAuto || !row.engine) continue;
    const double seconds = row.engine->prediction.times.step();
    best = std::min(best.value_or(seconds), seconds);
  }
  return best;
}

std::string Milliseconds(std::optional<double> seconds) {
  return seconds ? absl::StrFormat("%.4f", 1e3 * *seconds) : "-";
}

std::vector<std::string> Cells(const ComparedStrategy& row) {
  std::string grid = "-";
  std::string words = "-";
  std::string messages = "-";
  std::string communication = "-";
  if (row.paper) {
    grid = GridText(row.paper->grid);
    words = absl::StrFormat("%.0f", row.paper->communication.words);
    messages = absl::StrFormat("%.0f", row.paper->communication.messages);
    communication = Milliseconds(row.paper->communication_seconds);
  } else if (row.strategy == Strategy::kAuto && row.engine) {
    grid = row.engine->plan.mesh.ToString();
    words = absl::StrFormat("%.0f", row.engine->prediction.words_per_rank);
    communication = Milliseconds(row.engine->prediction.communication_seconds());
  }
  return {std::string(StrategyName(row.strategy)),
          grid,
          words,
          messages,
          communication,
          Milliseconds(row.seconds),
          row.ratio ? absl::StrFormat("%.3f", *row.ratio) : "-",
          row.engine ? Milliseconds(row.engine->prediction.times.step()) : "-",
          row.note.empty() ? "-" : row.note};
}

std::string OrNull(std::optional<double> value) { return value ? JsonNumber(*value) : "null"; }

std::string EngineJson(const Candidate& candidate) {
  const Prediction& prediction = candidate.prediction;
  return JsonObject()
      .Add("mesh", candidate.plan.mesh.ToString())
      .Add("words_per_rank", prediction.words_per_rank)
      .Add("communication_seconds", prediction.communication_seconds())
      .Add("step_seconds", prediction.times.step())
      .Add("memory_bytes_per_rank", static_cast<uint64_t>(prediction.memory_bytes))
      .Text();
}

std::string RowJson(const ComparedStrategy& row) {
  JsonObject json;
  json.Add("strategy", StrategyName(row.strategy));
  if (row.paper) {
    json.Add("grid", GridText(row.paper->grid))
        .Add("words_per_rank", row.paper->communication.words)
        .Add("alpha_messages", row.paper->communication.messages)
        .Add("communication_seconds", row.paper->communication_seconds)
        .Add("memory_bytes_per_rank", row.paper->memory_bytes());
  } else if (row.engine && row.strategy == Strategy::kAuto) {
    json.Add("words_per_rank", row.engine->prediction.words_per_rank)
        .Add("communication_seconds", row.engine->prediction.communication_seconds())
        .Add("memory_bytes_per_rank", static_cast<uint64_t>(row.engine->prediction.memory_bytes));
  }
  return json.AddRaw("step_seconds", OrNull(row.seconds))
      .AddRaw("ratio", OrNull(row.ratio))
      .AddRaw("engine", row.engine ? EngineJson(*row.engine) : "null")
      .Add("note", row.note)
      .Text();
}

}  // namespace

Comparison Compare(const PlanQuestion& question) {
  std::vector<ComparedStrategy> all;
  for (const Strategy strategy : AllStrategies()) all.push_back(RowOf(question, strategy));
  Comparison comparison;
  FindBest(all, comparison);
  if (comparison.best_of_papers) {
    const double best = comparison.best_of_papers_seconds;
    comparison.gain_note = Incomparable(question);
    const bool comparable = comparison.gain_note.empty();
    for (ComparedStrategy& row : all) {
      const bool alike = comparable || row.strategy != Strategy::kAuto;
      if (row.seconds && best > 0 && alike) row.ratio = *row.seconds / best;
    }
    if (comparable && comparison.auto_seconds.value_or(0) > 0) {
      comparison.gain = best / *comparison.auto_seconds;
    }
  }
  if (const auto best = BestInEngine(all); best && comparison.auto_seconds.value_or(0) > 0) {
    comparison.engine_gain = *best / *comparison.auto_seconds;
  }
  for (const Strategy asked : question.options.compare) {
    for (const ComparedStrategy& row : all) {
      if (row.strategy == asked) comparison.rows.push_back(row);
    }
  }
  return comparison;
}

std::string ComparisonText(const Comparison& comparison) {
  Table table({"STRATEGY", "GRID", "WORDS A RANK", "MESSAGES", "COMMUNICATION ms", "STEP ms",
               "RATIO", "IN CADRE ms", "NOTE"});
  for (const ComparedStrategy& row : comparison.rows) table.AddRow(Cells(row));
  std::string text = table.Text();
  if (!comparison.best_of_papers) return text;
  absl::StrAppend(&text, "best of the papers: ", StrategyName(*comparison.best_of_papers), ", ",
                  Milliseconds(comparison.best_of_papers_seconds), " ms");
  if (comparison.gain) {
    absl::StrAppendFormat(&text, "; auto is %.3f times as fast", *comparison.gain);
  }
  if (!comparison.gain_note.empty()) absl::StrAppend(&text, "; no gain: ", comparison.gain_note);
  if (comparison.engine_gain) {
    absl::StrAppendFormat(&text, "; auto is %.3f times as fast as the best of them in Cadre",
                          *comparison.engine_gain);
  }
  return text + "\n";
}

std::string ComparisonJson(const Comparison& comparison) {
  std::vector<std::string> rows;
  for (const ComparedStrategy& row : comparison.rows) rows.push_back(RowJson(row));
  JsonObject json;
  json.AddRaw("strategies", absl::StrCat("[", absl::StrJoin(rows, ","), "]"));
  if (comparison.best_of_papers) {
    json.Add("best_of_papers", StrategyName(*comparison.best_of_papers))
        .Add("best_of_papers_seconds", comparison.best_of_papers_seconds);
  }
  return json.AddRaw("auto_seconds", OrNull(comparison.auto_seconds))
      .AddRaw("gain", OrNull(comparison.gain))
      .Add("gain_note", comparison.gain_note)
      .AddRaw("engine_gain", OrNull(comparison.engine_gain))
      .Text();
}

}  // namespace cadre
