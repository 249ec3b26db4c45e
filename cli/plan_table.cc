#include "cli/plan_table.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/table.h"
#include "spec/plan.h"
#include "spec/plan_collectives.h"

namespace cadre {
namespace {

std::string Milliseconds(double seconds) { return absl::StrFormat("%.4f ms", 1e3 * seconds); }
std::string Number(double milliseconds) { return absl::StrFormat("%.4f", 1e3 * milliseconds); }

std::string SplitsText(const std::vector<IndexSplit>& splits) {
  if (splits.empty()) return "whole";
  return absl::StrJoin(splits, " ", [](std::string* out, const IndexSplit& split) {
    absl::StrAppend(out, split.index, "/", absl::StrJoin(split.axes, "*"));
  });
}

// --- what a paper says ---

std::string PaperText(const Prospect& prospect, const PaperCost& cost) {
  const bool known = prospect.question->link_known();
  std::string text = absl::StrFormat("%s by its paper: grid %dx%d, %s words a rank, %.0f messages",
                                     PaperStrategyName(cost.strategy), cost.grid.pr, cost.grid.pc,
                                     absl::StrFormat("%.3f", cost.communication.words),
                                     cost.communication.messages);
  if (known) absl::StrAppend(&text, ", ", Milliseconds(cost.communication_seconds));
  if (cost.closed_form) {
    absl::StrAppendFormat(&text, "; %s = %.2f",
                          cost.strategy == PaperStrategy::kGroupHybrid ? "g*" : "P_r*",
                          *cost.closed_form);
  }
  if (!cost.enough_samples) absl::StrAppend(&text, "; more ranks than samples");
  absl::StrAppend(&text, "\n");
  Table table({"LAYER", "PARALLELISM", "WORDS", "MESSAGES", "ms", "MEMORY"});
  for (const PaperLayer& layer : cost.layers) {
    table.AddRow({layer.name, layer.parallelism, absl::StrFormat("%.3f", layer.communication.words),
                  absl::StrFormat("%.0f", layer.communication.messages),
                  known ? Number(layer.seconds) : "-",
                  FormatBytes(static_cast<uint64_t>(layer.state_bytes + layer.activation_bytes))});
  }
  return absl::StrCat(text, table.Text(), "memory ",
                      FormatBytes(static_cast<uint64_t>(cost.memory_bytes())), " a rank\n\n");
}

// --- what the engine would do ---

std::string RunnerUpText(const SearchResult& searched, size_t layer) {
  const LayerRunnerUp& other = searched.runners_up[layer];
  if (!std::isfinite(other.more_seconds)) return "-";
  return absl::StrFormat("%s +%s", SplitsText(other.splits), Number(other.more_seconds));
}

std::string LayersText(const Candidate& candidate, const SearchResult& searched) {
  Table table(
      {"LAYER", "CUT BY", "COMPUTE ms", "COMMUNICATION ms", "WORDS", "MEMORY", "RUNNER-UP +ms"});
  for (size_t l = 0; l < candidate.plan.layers.size(); ++l) {
    const LayerPrediction& cost = candidate.prediction.layers[l];
    table.AddRow({candidate.plan.layers[l].name, SplitsText(candidate.plan.layers[l].splits),
                  Number(cost.compute.forward + cost.compute.backward),
                  Number(cost.communication()), absl::StrFormat("%.0f", cost.words()),
                  FormatBytes(static_cast<uint64_t>(cost.memory_bytes)),
                  RunnerUpText(searched, l)});
  }
  return table.Text();
}

std::string StepText(const Prediction& prediction) {
  const v1::StepTimes& times = prediction.times;
  return absl::StrFormat(
      "step %s, of which %.1f %% waits for communication; %s if nothing overlapped; bound by %s, "
      "%.1f %% busy\n",
      Milliseconds(times.step()), times.step() > 0 ? 100 * times.exposed() / times.step() : 0,
      Milliseconds(prediction.serial_seconds), prediction.bound, 100 * prediction.utilisation);
}

std::string PoliciesText(const Prospect& prospect) {
  Table table({"POLICY", "COMMUNICATION", "WERE ALL ALL-REDUCED"});
  for (const PolicyCost& cost : prospect.answer.policies) {
    table.AddRow({std::string(PolicyName(cost.policy)), Milliseconds(cost.seconds),
                  Milliseconds(cost.all_reduced)});
  }
  return table.Text();
}

std::string SearchText(const SearchResult& searched, bool overlap) {
  std::string text =
      absl::StrCat("searched ", searched.meshes, searched.meshes == 1 ? " mesh, " : " meshes, ",
                   ExactNote(searched, overlap), "\n");
  for (const Candidate& other : searched.others) {
    absl::StrAppend(&text, "  next: mesh ", other.plan.mesh.ToString(), ", step ",
                    Milliseconds(other.prediction.times.step()), "\n");
  }
  if (!searched.unpinned) return text;
  const double free = searched.unpinned->prediction.times.step();
  const double pinned = searched.best.prediction.times.step();
  absl::StrAppendFormat(&text, "pins cost %s a step (%.1f %%): without them mesh %s, step %s\n",
                        Milliseconds(pinned - free), free > 0 ? 100 * (pinned / free - 1) : 0,
                        searched.unpinned->plan.mesh.ToString(), Milliseconds(free));
  return text;
}

std::string EngineText(const Prospect& prospect, const Candidate& candidate) {
  const PlanQuestion& question = *prospect.question;
  const Prediction& prediction = candidate.prediction;
  std::string text = PrintPlan(candidate.plan, question.graph, question.index);
  if (!question.link_known()) {
    absl::StrAppend(&text,
                    "\nno link given: --alpha and --bandwidth (or --profile) predict what it "
                    "costs\n");
    return text;
  }
  if (prospect.answer.searched) {
    absl::StrAppend(&text, "\n", LayersText(candidate, *prospect.answer.searched));
  }
  absl::StrAppend(&text, "\ncommunication ", Milliseconds(prediction.communication_seconds()),
                  " a step by policy ", PolicyName(question.problem.collectives),
                  ", one after the other; ", absl::StrFormat("%.0f", prediction.words_per_rank),
                  " words a rank, ", FormatBytes(static_cast<uint64_t>(prediction.memory_bytes)),
                  " of memory\n");
  if (question.problem.machine.computes()) absl::StrAppend(&text, StepText(prediction));
  if (prospect.answer.searched) {
    absl::StrAppend(&text, SearchText(*prospect.answer.searched, question.problem.overlap));
  }
  absl::StrAppend(&text, "\n", PoliciesText(prospect));
  return text;
}

std::string BytesText(const Prospect& prospect) {
  std::string text = absl::StrCat(
      "\ninside the group ", FormatBytes(static_cast<uint64_t>(prospect.bytes_inside)), " a step");
  if (prospect.bytes_across > 0) {
    absl::StrAppend(&text, ", across groups ",
                    FormatBytes(static_cast<uint64_t>(prospect.bytes_across)),
                    " a step on average");
  }
  return text + "\n";
}

}  // namespace

std::string ExactNote(const SearchResult& searched, bool overlap) {
  const std::string sums =
      searched.exact ? "sums exactly" : "keeping the best states where there were too many";
  if (!overlap) return sums;
  return sums + "; what overlaps is no sum, and the best of what was found is taken";
}

std::string ProspectText(const Prospect& prospect) {
  const PlanAnswer& answer = prospect.answer;
  std::string text;
  if (answer.paper) text = PaperText(prospect, *answer.paper);
  if (answer.chosen) {
    absl::StrAppend(&text, EngineText(prospect, *answer.chosen));
  } else {
    absl::StrAppend(&text, "in Cadre's engine: ", answer.refusal.message(), "\n");
  }
  if (prospect.question->link_known()) absl::StrAppend(&text, BytesText(prospect));
  if (!prospect.variations.empty()) {
    absl::StrAppend(&text, "\n", VariationsText(prospect.variations));
  }
  if (prospect.comparison) absl::StrAppend(&text, "\n", ComparisonText(*prospect.comparison));
  if (prospect.target) absl::StrAppend(&text, "\n", TimeToTargetText(*prospect.target));
  if (prospect.groups) absl::StrAppend(&text, "\n", GroupsText(*prospect.groups));
  return text;
}

}  // namespace cadre
