#include "cli/plan_json.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/json.h"
#include "cli/plan_table.h"
#include "coordinator/plan/prediction.h"
#include "spec/plan.h"
#include "spec/plan_collectives.h"

namespace cadre {
namespace {

std::string Array(const std::vector<std::string>& values) {
  return absl::StrCat("[", absl::StrJoin(values, ","), "]");
}

std::string Strings(const std::vector<std::string>& texts) {
  std::vector<std::string> values;
  for (const std::string& text : texts) values.push_back(JsonString(text));
  return Array(values);
}

std::string Bool(bool value) { return value ? "true" : "false"; }

uint64_t Bytes(double bytes) { return static_cast<uint64_t>(std::ceil(bytes)); }

// --- what the engine would do ---

std::string MeshJson(const Mesh& mesh) {
  JsonObject json;
  for (const Mesh::Axis& axis : mesh.axes()) json.Add(axis.name, static_cast<uint32_t>(axis.size));
  return json.Text();
}

std::string SplitsJson(const std::vector<IndexSplit>& splits) {
  JsonObject json;
  for (const IndexSplit& split : splits) json.AddRaw(split.index, Strings(split.axes));
  return json.Text();
}

std::string RunnerUpJson(const Prospect& prospect, size_t layer) {
  if (!prospect.answer.searched) return "null";
  const LayerRunnerUp& other = prospect.answer.searched->runners_up[layer];
  if (!std::isfinite(other.more_seconds)) return "null";
  return JsonObject()
      .AddRaw("splits", SplitsJson(other.splits))
      .Add("more_seconds", other.more_seconds)
      .Text();
}

std::string LayersJson(const Prospect& prospect, const Candidate& candidate) {
  std::vector<std::string> layers;
  for (size_t l = 0; l < candidate.plan.layers.size(); ++l) {
    const LayerLayouts& layer = candidate.plan.layers[l];
    const LayerPrediction& cost = candidate.prediction.layers[l];
    layers.push_back(
        JsonObject()
            .Add("layer", layer.name)
            .Add("kind", LayerKindName(prospect.question->graph[static_cast<int>(l)].kind))
            .AddRaw("splits", SplitsJson(layer.splits))
            .Add("output", layer.output.ToString())
            .Add("forward_seconds", cost.compute.forward)
            .Add("backward_seconds", cost.compute.backward)
            .Add("words", cost.words())
            .Add("move_words", cost.move_words)
            .Add("collective_words", cost.collective_words)
            .Add("communication_seconds", cost.communication())
            .Add("update_seconds", cost.update)
            .Add("memory_bytes", static_cast<uint64_t>(cost.memory_bytes))
            .AddRaw("runner_up", RunnerUpJson(prospect, l))
            .Text());
  }
  return Array(layers);
}

std::string BucketsJson(const Prospect& prospect, const Plan& plan) {
  const PlanProblem& problem = prospect.question->problem;
  const bool known = prospect.question->link_known();
  std::vector<std::string> buckets;
  for (const Bucket& bucket : plan.buckets) {
    const ParameterIndex& index = prospect.question->index;
    std::vector<std::string> names;
    for (const int p : bucket.parameters) names.push_back(index[p].name);
    const BucketCost cost = CostOf(plan, index, bucket, bucket.algorithm, plan.link);
    buckets.push_back(
        JsonObject()
            .AddRaw("parameters", Strings(names))
            .AddRaw("axes", Strings(bucket.axes))
            .AddRaw("same", Strings(bucket.same))
            .Add("algorithm", AlgorithmName(bucket.algorithm))
            .Add("bytes", static_cast<uint64_t>(cost.bytes))
            .AddRaw("seconds", known ? JsonNumber(BucketSeconds(problem, plan, bucket)) : "null")
            .Text());
  }
  return Array(buckets);
}

// Seconds are null where nothing is known of the links.
void AddSeconds(const Prospect& prospect, const Prediction& prediction, JsonObject& json) {
  if (!prospect.question->link_known()) {
    json.AddRaw("communication_seconds", "null").AddRaw("step_seconds", "null");
    return;
  }
  json.Add("communication_seconds", prediction.communication_seconds())
      .Add("exposed_seconds", prediction.times.exposed())
      .Add("compute_seconds", prediction.times.compute())
      .Add("move_seconds", prediction.times.moves())
      .Add("collective_seconds", prediction.times.collectives())
      .Add("update_seconds", prediction.times.update())
      .Add("step_seconds", prediction.times.step())
      .Add("serial_seconds", prediction.serial_seconds)
      .Add("utilisation", prediction.utilisation)
      .Add("bound", prediction.bound);
}

void AddEngine(const Prospect& prospect, const Candidate& candidate, JsonObject& json) {
  json.AddRaw("mesh", MeshJson(candidate.plan.mesh))
      .Add("words_per_rank", candidate.prediction.words_per_rank);
  AddSeconds(prospect, candidate.prediction, json);
  json.Add("memory_bytes_per_rank", static_cast<uint64_t>(candidate.prediction.memory_bytes))
      .AddRaw("layers", LayersJson(prospect, candidate))
      .AddRaw("buckets", BucketsJson(prospect, candidate.plan));
}

std::string EngineJson(const Prospect& prospect) {
  const PlanAnswer& answer = prospect.answer;
  JsonObject json;
  if (!answer.chosen) return json.Add("refusal", std::string(answer.refusal.message())).Text();
  AddEngine(prospect, *answer.chosen, json);
  return json.Text();
}

// --- what a paper says ---

std::string GridMeshJson(const PaperCost& cost) {
  return JsonObject()
      .Add("data", static_cast<uint64_t>(cost.grid.pc))
      .Add("model", static_cast<uint64_t>(cost.grid.pr))
      .Text();
}

std::string PaperLayersJson(const Prospect& prospect, const PaperCost& cost) {
  const bool known = prospect.question->link_known();
  std::vector<std::string> layers;
  for (size_t l = 0; l < cost.layers.size(); ++l) {
    const PaperLayer& layer = cost.layers[l];
    const LayerShape& shape = prospect.question->network.layers[l];
    JsonObject json;
    json.Add("layer", layer.name)
        .Add("kind", LayerKindName(prospect.question->graph[layer.number].kind))
        .Add("parallelism", layer.parallelism)
        .Add("weights", static_cast<uint64_t>(shape.weights))
        .Add("inputs_per_sample", static_cast<uint64_t>(shape.inputs))
        .Add("outputs_per_sample", static_cast<uint64_t>(shape.outputs))
        .Add("words", layer.communication.words)
        .Add("alpha_messages", layer.communication.messages)
        .AddRaw("communication_seconds", known ? JsonNumber(layer.seconds) : "null")
        .Add("memory_bytes", Bytes(layer.state_bytes + layer.activation_bytes));
    if (layer.worth_cutting) json.AddRaw("worth_cutting", Bool(*layer.worth_cutting));
    layers.push_back(json.Text());
  }
  return Array(layers);
}

// The sums that the papers' closed forms are made of.
std::string NetworkJson(const NetworkShape& network) {
  int64_t outputs = 0;
  int64_t inputs = 0;
  for (const LayerShape& layer : network.layers) {
    outputs += layer.outputs;
    inputs += layer.first ? 0 : layer.inputs;
  }
  return JsonObject()
      .Add("weights", static_cast<uint64_t>(network.weights()))
      .Add("convolution_weights", static_cast<uint64_t>(network.convolution_weights()))
      .Add("outputs_per_sample", static_cast<uint64_t>(outputs))
      .Add("inputs_per_sample", static_cast<uint64_t>(inputs))
      .Text();
}

void AddPaper(const Prospect& prospect, const PaperCost& cost, JsonObject& json) {
  const bool known = prospect.question->link_known();
  json.AddRaw("mesh", GridMeshJson(cost))
      .Add("grid", absl::StrCat(cost.grid.pr, "x", cost.grid.pc))
      .Add("words_per_rank", cost.communication.words)
      .Add("alpha_messages", cost.communication.messages)
      .AddRaw("communication_seconds", known ? JsonNumber(cost.communication_seconds) : "null")
      .Add("compute_seconds", cost.compute_seconds)
      .AddRaw("step_seconds", known ? JsonNumber(cost.step_seconds()) : "null")
      .Add("memory_bytes_per_rank", Bytes(cost.memory_bytes()))
      .Add("parameter_state_bytes", cost.state_bytes)
      .Add("activation_bytes", cost.activation_bytes)
      .AddRaw("enough_samples", Bool(cost.enough_samples))
      .AddRaw("network", NetworkJson(prospect.question->network));
  if (cost.closed_form) {
    const bool group = cost.strategy == PaperStrategy::kGroupHybrid;
    json.Add(group ? "g_star" : "pr_star", *cost.closed_form);
  }
  json.AddRaw("layers", PaperLayersJson(prospect, cost));
}

std::string PaperJson(const Prospect& prospect) {
  if (!prospect.answer.paper) return "null";
  JsonObject json;
  AddPaper(prospect, *prospect.answer.paper, json);
  return json.Text();
}

// --- why this and not another ---

std::string CandidateJson(const Candidate& candidate) {
  return JsonObject()
      .AddRaw("mesh", MeshJson(candidate.plan.mesh))
      .Add("words_per_rank", candidate.prediction.words_per_rank)
      .Add("step_seconds", candidate.prediction.times.step())
      .Add("memory_bytes_per_rank", static_cast<uint64_t>(candidate.prediction.memory_bytes))
      .Text();
}

void AddSearch(const SearchResult& searched, bool overlap, JsonObject& json) {
  std::vector<std::string> others;
  for (const Candidate& other : searched.others) others.push_back(CandidateJson(other));
  json.AddRaw("exact", Bool(searched.exact))
      .Add("exact_note", ExactNote(searched, overlap))
      .Add("meshes", static_cast<uint64_t>(searched.meshes))
      .AddRaw("others", Array(others));
  if (!searched.unpinned) return;
  const double free = searched.unpinned->prediction.times.step();
  json.AddRaw("unpinned", CandidateJson(*searched.unpinned))
      .Add("pins_cost_seconds", searched.best.prediction.times.step() - free);
}

std::string PoliciesJson(const Prospect& prospect, double PolicyCost::*cost) {
  if (prospect.answer.policies.empty()) return "null";
  JsonObject json;
  for (const PolicyCost& each : prospect.answer.policies) {
    json.Add(PolicyName(each.policy), each.*cost);
  }
  return json.Text();
}

std::string StepJson(const Prospect& prospect) {
  const PlanAnswer& answer = prospect.answer;
  if (!answer.chosen || !prospect.question->problem.machine.computes()) return "null";
  const Prediction& prediction = answer.chosen->prediction;
  return JsonObject()
      .Add("seconds", prediction.times.step())
      .Add("exposed_seconds", prediction.times.exposed())
      .Add("serial_seconds", prediction.serial_seconds)
      .Text();
}

std::string LinkJson(const PlanQuestion& question) {
  if (!question.link_known()) return "null";
  const GroupMachine& machine = question.problem.machine;
  return JsonObject()
      .Add("alpha", machine.link.alpha)
      .Add("beta", machine.link.beta)
      .Add("gamma", machine.link.gamma)
      .Add("kind", machine.link_kind)
      .Text();
}

}  // namespace

std::string ProspectJson(const Prospect& prospect) {
  const PlanQuestion& question = *prospect.question;
  const PlanAnswer& answer = prospect.answer;
  JsonObject json;
  json.Add("strategy", answer.by_rules ? "rules" : StrategyName(answer.strategy))
      .Add("workers", static_cast<uint32_t>(question.problem.ranks))
      .Add("batch", static_cast<uint64_t>(question.problem.batch))
      .Add("collectives", PolicyName(question.problem.collectives))
      .AddRaw("link", LinkJson(question));
  if (answer.papers_figures) {
    AddPaper(prospect, *answer.paper, json);
    json.AddRaw("engine", EngineJson(prospect));
  } else {
    AddEngine(prospect, *answer.chosen, json);
    if (answer.strategy != Strategy::kAuto) json.AddRaw("paper", PaperJson(prospect));
  }
  json.Add("bytes_inside_group", prospect.bytes_inside)
      .Add("bytes_across_groups", prospect.bytes_across);
  if (answer.searched) AddSearch(*answer.searched, question.problem.overlap, json);
  json.AddRaw("policies", PoliciesJson(prospect, &PolicyCost::seconds))
      .AddRaw("policies_all_reduced", PoliciesJson(prospect, &PolicyCost::all_reduced))
      .AddRaw("step", StepJson(prospect))
      .AddRaw("sensitivity",
              prospect.variations.empty() ? "null" : VariationsJson(prospect.variations));
  if (prospect.comparison) json.AddRaw("compare", ComparisonJson(*prospect.comparison));
  if (prospect.target) json.AddRaw("target", TimeToTargetJson(*prospect.target));
  if (prospect.groups) json.AddRaw("groups", GroupsJson(*prospect.groups));
  return json.Text();
}

}  // namespace cadre
