#include "cli/plan_sensitivity.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/json.h"
#include "cli/table.h"

namespace cadre {
namespace {

// Layers times meshes that a search tries in well under a tenth of a second.
constexpr int64_t kMostUnasked = 4'000;

LinkProfile Scaled(LinkProfile link, double factor) {
  link.beta /= factor;
  for (LinkProfile::Sample& sample : link.samples) sample.seconds /= factor;
  return link;
}

void Answer(const SearchResult& answer, PlanProblem problem, Variation& variation) {
  absl::StatusOr<SearchResult> searched = Search(problem);
  if (!searched.ok()) {
    variation.note = std::string(searched.status().message());
    return;
  }
  variation.candidate = std::move(searched->best);
  const Plan& plan = variation.candidate->plan;
  variation.other_mesh = !(plan.mesh == answer.best.plan.mesh);
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    if (!(plan.layers[l].splits == answer.best.plan.layers[l].splits)) ++variation.other_layers;
  }
}

Variation VaryBandwidth(const PlanQuestion& question, const SearchResult& answer, double factor) {
  PlanProblem problem = question.problem;
  problem.machine.link = Scaled(problem.machine.link, factor);
  if (problem.machine.inside.known()) {
    problem.machine.inside = Scaled(problem.machine.inside, factor);
  }
  Variation variation{
      .what = "bandwidth", .factor = factor, .value = 1 / problem.machine.link.beta};
  Answer(answer, std::move(problem), variation);
  return variation;
}

Variation VaryBatch(const PlanQuestion& question, const SearchResult& answer, double factor) {
  PlanProblem problem = question.problem;
  problem.batch = static_cast<int64_t>(std::ceil(static_cast<double>(problem.batch) * factor));
  Variation variation{
      .what = "batch", .factor = factor, .value = static_cast<double>(problem.batch)};
  Answer(answer, std::move(problem), variation);
  return variation;
}

Variation VaryMemory(const PlanQuestion& question, const SearchResult& answer) {
  PlanProblem problem = question.problem;
  problem.machine.memory_bytes = std::max<int64_t>(1, answer.best.prediction.memory_bytes - 1);
  Variation variation{.what = "memory", .value = static_cast<double>(problem.machine.memory_bytes)};
  Answer(answer, std::move(problem), variation);
  return variation;
}

std::string ChangeText(const Variation& variation) {
  if (!variation.candidate) return variation.note;
  if (!variation.changes()) return "the same plan";
  return absl::StrCat(variation.other_mesh ? "another mesh" : "the same mesh", ", ",
                      variation.other_layers, " layers cut otherwise");
}

std::string ValueText(const Variation& variation) {
  if (variation.what == "bandwidth") return absl::StrFormat("%.4g GB/s", variation.value / 1e9);
  if (variation.what == "memory") return FormatBytes(static_cast<uint64_t>(variation.value));
  return FormatCount(static_cast<uint64_t>(variation.value));
}

}  // namespace

bool VaryUnasked(const PlanQuestion& question, const SearchResult& answer) {
  return answer.meshes * question.graph.size() <= kMostUnasked;
}

std::vector<Variation> Vary(const PlanQuestion& question, const SearchResult& answer) {
  std::vector<Variation> variations;
  for (const double factor : {0.25, 0.5, 2.0, 4.0}) {
    variations.push_back(VaryBandwidth(question, answer, factor));
  }
  for (const double factor : {0.5, 2.0}) {
    variations.push_back(VaryBatch(question, answer, factor));
  }
  variations.push_back(VaryMemory(question, answer));
  return variations;
}

std::string VariationsText(const std::vector<Variation>& variations) {
  Table table({"WERE", "IT", "STEP ms", "MESH", "THEN"});
  for (const Variation& variation : variations) {
    const auto& candidate = variation.candidate;
    table.AddRow(
        {variation.what, ValueText(variation),
         candidate ? absl::StrFormat("%.4f", 1e3 * candidate->prediction.times.step()) : "-",
         candidate ? candidate->plan.mesh.ToString() : "-", ChangeText(variation)});
  }
  return table.Text();
}

std::string VariationsJson(const std::vector<Variation>& variations) {
  std::vector<std::string> rows;
  for (const Variation& variation : variations) {
    const auto& candidate = variation.candidate;
    rows.push_back(
        JsonObject()
            .Add("what", variation.what)
            .Add("factor", variation.factor)
            .Add("value", variation.value)
            .AddRaw("step_seconds",
                    candidate ? JsonNumber(candidate->prediction.times.step()) : "null")
            .AddRaw("mesh", candidate ? JsonString(candidate->plan.mesh.ToString()) : "null")
            .AddRaw("changes", variation.changes() ? "true" : "false")
            .AddRaw("other_mesh", variation.other_mesh ? "true" : "false")
            .Add("other_layers", static_cast<uint32_t>(variation.other_layers))
            .Add("note", variation.note)
            .Text());
  }
  return absl::StrCat("[", absl::StrJoin(rows, ","), "]");
}

}  // namespace cadre
