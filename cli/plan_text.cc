// The text has the same parts as the JSON, in the order in which a reader needs them: figures of
// the paper, plan and layers, cost of a step, search, policies, traffic; then the optional parts,
// each with a table and one sentence that states the conclusion. Times are in milliseconds with
// four decimal places; headers have the unit.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/counted_noun.h"
#include "cli/plan_render.h"
#include "cli/table.h"
#include "plan/plan.h"
#include "plan/plan_collectives.h"
#include "plan/search/prediction.h"

namespace cadre {
namespace {

// Milliseconds without the unit, for columns whose header has it.
std::string Milliseconds(double seconds) { return absl::StrFormat("%.4f", 1e3 * seconds); }
std::string Ms(double seconds) { return Milliseconds(seconds) + " ms"; }
std::string Whole(double number) { return absl::StrFormat("%.0f", number); }

// `text` of a value that is known, "-" otherwise.
template <typename F>
std::string OrDash(std::optional<double> value, F text) {
  return value ? text(*value) : "-";
}

// "outputs/model samples/data": index and axes; several axes of one index are multiplied.
std::string SplitsText(const std::vector<IndexSplit>& splits) {
  if (splits.empty()) return "whole";
  return absl::StrJoin(splits, " ", [](std::string* out, const IndexSplit& split) {
    absl::StrAppend(out, split.index, "/", absl::StrJoin(split.axes, "*"));
  });
}

// --- A paper's formulas ---

// What the paper of the requested strategy computes with its own formulas.
std::string PaperText(const PlanReport& report) {
  const PaperCost& cost = *report.paper;
  const bool known = report.question->link_known();
  std::string text =
      absl::StrFormat("%s by its paper's formulas: grid %s, %.3f words per rank, %.0f messages",
                      StrategyName(cost.strategy), cost.grid.ToString(), cost.communication.words,
                      cost.communication.messages);
  if (known) absl::StrAppend(&text, ", ", Ms(cost.communication_seconds));
  if (cost.closed_form_rows) {
    const bool group = cost.strategy == Strategy::kGroupHybrid;
    absl::StrAppendFormat(&text, "; %s = %.2f", group ? "g*" : "P_r*", *cost.closed_form_rows);
  }
  if (!cost.enough_samples) absl::StrAppend(&text, "; more ranks than samples");
  Table table({"LAYER", "PARALLELISM", "WORDS", "MESSAGES", "ms", "MEMORY"});
  for (const PaperLayer& layer : cost.layers) {
    table.AddRow({layer.name, layer.parallelism, absl::StrFormat("%.3f", layer.communication.words),
                  Whole(layer.communication.messages), known ? Milliseconds(layer.seconds) : "-",
                  FormatBytes(layer.state_bytes + layer.activation_bytes)});
  }
  return absl::StrCat(text, "\n", table.Text(), "memory per rank ",
                      FormatBytes(cost.memory_bytes()), "\n\n");
}

// --- Cadre's own plan ---

// The best other split of the layer and what it would add to the step.
std::string RunnerUpText(const LayerRunnerUp& other) {
  if (!std::isfinite(other.more_seconds)) return "-";
  return absl::StrCat(SplitsText(other.splits), " +", Milliseconds(other.more_seconds));
}

std::string LayersText(const Candidate& candidate, const SearchResult& searched) {
  Table table(
      {"LAYER", "SPLIT", "COMPUTE ms", "COMMUNICATION ms", "ELEMENTS", "MEMORY", "RUNNER-UP +ms"});
  for (size_t l = 0; l < candidate.plan.layers.size(); ++l) {
    const LayerPrediction& cost = candidate.prediction.layers[l];
    const LayerLayouts& layouts = candidate.plan.layers[l];
    table.AddRow({layouts.name,
                  layouts.at.empty()
                      ? SplitsText(layouts.splits)
                      : absl::StrCat(SplitsText(layouts.splits), " ", ToText(layouts.at)),
                  Milliseconds(cost.compute.forward + cost.compute.backward),
                  Milliseconds(cost.communication()), Whole(cost.elements()),
                  FormatBytes(cost.memory_bytes), RunnerUpText(searched.runners_up[l])});
  }
  return table.Text();
}

// The parts of the predicted step time.
std::string StepText(const Prediction& prediction) {
  const v1::StepTimes& times = prediction.times;
  const double waiting = times.step() > 0 ? (times.exposed() + times.moves()) / times.step() : 0;
  return absl::StrFormat(
      "step %s, %.1f %% of it waiting for communication; %s without overlap; bound by %s, "
      "utilisation %.1f %%\n",
      Ms(times.step()), 100 * waiting, Ms(prediction.serial_seconds), prediction.bound,
      100 * prediction.utilisation);
}

// A mesh, and whether layers are placed on its ranks instead of split over them.
std::string MeshText(const Mesh& mesh, bool places_layers) {
  return absl::StrCat(mesh.ToString(), places_layers ? ", layers placed" : "");
}

// How the plan was found: the number of meshes, the best plans of other meshes, and the cost of
// pins.
std::string SearchText(const PlanReport& report) {
  const SearchResult& searched = *report.searched;
  std::string text = absl::StrCat("searched ", Counted(searched.meshes, "mesh", "meshes"), ": ",
                                  ExactNote(searched, report.question->problem.overlap), "\n");
  for (const Candidate& other : searched.others) {
    absl::StrAppend(&text, "  next: mesh ", MeshText(other.plan.mesh, PlacesLayers(other.plan)),
                    ", step ", Ms(other.prediction.times.step()), "\n");
  }
  if (!searched.unpinned) return text;
  const double cost = *report.pins_cost();
  const double unpinned = searched.unpinned->prediction.times.step();
  const Plan& plan = searched.unpinned->plan;
  absl::StrAppendFormat(&text, "pins cost %s per step (%.1f %%): without them mesh %s, step %s\n",
                        Ms(cost), unpinned > 0 ? 100 * cost / unpinned : 0,
                        MeshText(plan.mesh, PlacesLayers(plan)), Ms(unpinned));
  return text;
}

// Without a link there are no times, so only the plan itself is printed.
std::string PlannedText(const PlanReport& report) {
  const PlanQuestion& question = *report.question;
  const Prediction& prediction = report.chosen->prediction;
  std::string text = PrintPlan(report.chosen->plan, question.graph, question.index);
  if (!question.link_known()) {
    return text +
           "\nno link is given: add --alpha and --bandwidth, or --profile, to predict the cost\n";
  }
  if (report.searched) {
    absl::StrAppend(&text, "\n", LayersText(*report.chosen, *report.searched));
  }
  absl::StrAppend(&text, "\ncommunication ", Ms(prediction.communication_seconds()),
                  " per step without overlap, by policy ", PolicyName(question.problem.collectives),
                  "; ", Whole(prediction.elements_per_rank), " elements and ",
                  FormatBytes(prediction.memory_bytes), " of memory per rank\n");
  if (question.problem.hardware.computes()) absl::StrAppend(&text, StepText(prediction));
  if (report.searched) absl::StrAppend(&text, SearchText(report));
  Table policies({"POLICY", "COMMUNICATION", "ALL-REDUCE ONLY"});
  for (const PolicyCost& cost : report.policies) {
    policies.AddRow({std::string(PolicyName(cost.policy)), Ms(cost.seconds), Ms(cost.all_reduced)});
  }
  return absl::StrCat(text, "\n", policies.Text());
}

// Traffic across groups is spread over the steps between two averages.
std::string BytesText(const PlanReport& report) {
  std::string text =
      absl::StrCat("\ntraffic per step: ", FormatBytes(report.bytes_inside), " inside the group");
  if (report.bytes_across > 0) {
    absl::StrAppend(&text, ", ", FormatBytes(report.bytes_across), " across groups on average");
  }
  return text + "\n";
}

// --- The optional parts ---

// The varied input in its own unit.
std::string ValueText(const Variation& variation) {
  if (variation.what == "bandwidth") return absl::StrFormat("%.4g GB/s", variation.value / 1e9);
  if (variation.what == "memory") return FormatBytes(variation.value);
  return FormatCount(variation.value);
}

// What the variation changes in the best plan: nothing, the mesh, or the splits of some layers.
std::string EffectText(const Variation& variation) {
  if (!variation.candidate) return variation.note;
  if (!variation.changes()) return "same plan";
  return absl::StrCat(
      variation.other_mesh ? "another mesh" : "same mesh", ", ", variation.other_layers,
      " layers split differently",
      variation.other_blocks
          ? absl::StrCat(", ", variation.candidate->plan.recomputed.size(), " recomputed blocks")
          : "");
}

std::string SensitivityText(const std::vector<Variation>& variations) {
  Table table({"INPUT", "VALUE", "STEP ms", "MESH", "EFFECT"});
  for (const Variation& variation : variations) {
    const auto& candidate = variation.candidate;
    table.AddRow({std::string(variation.what), ValueText(variation),
                  candidate ? Milliseconds(candidate->prediction.times.step()) : "-",
                  candidate ? candidate->plan.mesh.ToString() : "-", EffectText(variation)});
  }
  return table.Text();
}

// One row of the comparison of strategies; unknown figures are "-".
std::vector<std::string> ComparisonCells(const ComparedStrategy& row) {
  std::vector<std::string> cells = {std::string(StrategyName(row.strategy))};
  if (row.paper) {
    cells.insert(cells.end(), {row.paper->grid.ToString(), Whole(row.paper->communication.words),
                               Whole(row.paper->communication.messages),
                               Milliseconds(row.paper->communication_seconds)});
  } else if (row.strategy == Strategy::kAuto && row.predicted) {
    const Prediction& prediction = row.predicted->prediction;
    cells.insert(cells.end(),
                 {row.predicted->plan.mesh.ToString(), Whole(prediction.elements_per_rank), "-",
                  Milliseconds(prediction.communication_seconds())});
  } else {
    cells.insert(cells.end(), {"-", "-", "-", "-"});
  }
  cells.insert(cells.end(),
               {OrDash(row.seconds, Milliseconds),
                OrDash(row.ratio, [](double ratio) { return absl::StrFormat("%.3f", ratio); }),
                row.predicted ? Milliseconds(row.predicted->prediction.times.step()) : "-",
                row.note.empty() ? "-" : row.note});
  return cells;
}

std::string ComparisonText(const StrategyComparison& comparison) {
  Table table({"STRATEGY", "GRID", "WORDS PER RANK", "MESSAGES", "COMMUNICATION ms", "STEP ms",
               "RATIO", "BY CADRE ms", "NOTE"});
  for (const ComparedStrategy& row : comparison.rows) table.AddRow(ComparisonCells(row));
  std::string text = table.Text();
  if (!comparison.best_of_papers) return text;
  absl::StrAppend(&text, "best of the papers: ", StrategyName(*comparison.best_of_papers), ", ",
                  Ms(comparison.best_of_papers_seconds));
  if (comparison.gain) {
    absl::StrAppendFormat(&text, "; auto is %.3f times as fast", *comparison.gain);
  }
  if (!comparison.gain_note.empty()) absl::StrAppend(&text, "; no gain: ", comparison.gain_note);
  if (comparison.predicted_gain) {
    absl::StrAppendFormat(
        &text, "; by Cadre's own cost model auto is %.3f times as fast as the best of them",
        *comparison.predicted_gain);
  }
  return text + "\n";
}

// Time to a target accuracy: fewer epochs with smaller batches against faster steps with larger
// ones.
std::string ForecastText(const EpochsForecast& forecast) {
  std::string text = absl::StrFormat(
      "to accuracy %g with %.0f samples per epoch: %s\n", forecast.target_accuracy,
      forecast.samples,
      forecast.seconds
          ? absl::StrFormat("%.4g epochs, %s", *forecast.epochs, FormatDuration(*forecast.seconds))
          : forecast.note);
  if (!forecast.left_out.empty()) absl::StrAppend(&text, forecast.left_out, "\n");
  if (forecast.choices.empty()) return text;
  Table table({"DATA WORKERS", "RANKS EACH", "BATCH", "EPOCHS", "MESH", "STEP ms", "TO TARGET"});
  for (const BatchChoice& choice : forecast.choices) {
    const DevicePlan& way = choice.way;
    table.AddRow({absl::StrCat(way.workers), absl::StrCat(way.model_devices),
                  absl::StrCat(choice.batch), absl::StrFormat("%.4g", way.epochs),
                  MeshText(choice.mesh, choice.places_layers), Milliseconds(way.step_seconds),
                  FormatDuration(way.seconds)});
  }
  const BatchChoice& best = forecast.choices[*forecast.best];
  absl::StrAppend(&text, table.Text(), "a batch of ", best.batch, " reaches the target soonest: ",
                  best.way.splits_model ? "the model is split" : "the model is not split",
                  best.way.model_devices == 1 ? "" : ", and a larger batch would need more epochs");
  if (forecast.gain) {
    absl::StrAppendFormat(&text, " (gain %.3f over data parallelism)", *forecast.gain);
  }
  if (forecast.crossover) {
    absl::StrAppend(&text, "; splitting pays from ", *forecast.crossover, " workers on");
  }
  return text + "\n";
}

// The numbers of groups, each with its best interval between averages, and why other numbers are
// excluded.
std::string GroupsText(const GroupsResult& answer) {
  Table table({"GROUPS", "RANKS", "MESH", "STEP ms", "AVERAGE ms", "EXPOSED ms", "EVERY", "TRAFFIC",
               "SAMPLES/s", "EPOCH", "EPOCHS", "TO TARGET"});
  for (const GroupChoice& choice : answer.choices) {
    const double epoch = choice.seconds_per_epoch;
    table.AddRow({absl::StrCat(choice.groups), absl::StrCat(choice.ranks), choice.mesh.ToString(),
                  Milliseconds(choice.step_seconds), Milliseconds(choice.averaging_seconds),
                  Milliseconds(choice.exposed_seconds),
                  choice.every_steps > 0 ? absl::StrCat(choice.every_steps) : "",
                  FormatBytes(choice.bytes_per_average()),
                  absl::StrFormat("%.1f", 1 / choice.seconds_per_sample),
                  epoch > 0 ? FormatDuration(epoch) : "",
                  choice.epochs ? absl::StrFormat("%.4g", *choice.epochs) : "",
                  choice.seconds_to_target ? FormatDuration(*choice.seconds_to_target) : ""});
  }
  std::string text = absl::StrCat(table.Text(), answer.reason, "\n");
  for (const RejectedGroups& refused : answer.rejected) {
    absl::StrAppend(&text, "rejected: ", Counted(refused.groups, "group"), " of ",
                    Counted(refused.ranks, "worker"), ": ", refused.reason, "\n");
  }
  return text;
}

}  // namespace

std::string ExactNote(const SearchResult& searched, bool overlap) {
  if (PlacesLayers(searched.best.plan)) {
    return absl::StrCat(
        searched.best.plan.mesh.Size(kStageAxis) > 1 ? "a pipeline" : "a placement of the layers",
        " has the shortest predicted step; plans that place layers are not among those whose sum "
        "of layer and move times is minimized");
  }
  return absl::StrCat(
      "the sum of layer and move times ",
      searched.exact ? "is minimal" : "may not be minimal, because the search dropped some states",
      overlap
          ? "; communication overlaps, so a step is not this sum, and the plan with the shortest "
            "predicted step was taken"
          : "");
}

std::string ToText(const PlanReport& report) {
  std::string text;
  if (report.paper) text = PaperText(report);
  absl::StrAppend(&text, report.chosen
                             ? PlannedText(report)
                             : absl::StrCat("Cadre has no plan: ", report.refusal.message(), "\n"));
  if (report.question->link_known()) absl::StrAppend(&text, BytesText(report));
  if (!report.variations.empty()) {
    absl::StrAppend(&text, "\n", SensitivityText(report.variations));
  }
  if (report.comparison) absl::StrAppend(&text, "\n", ComparisonText(*report.comparison));
  if (report.forecast) absl::StrAppend(&text, "\n", ForecastText(*report.forecast));
  if (report.groups) absl::StrAppend(&text, "\n", GroupsText(*report.groups));
  return text;
}

}  // namespace cadre
