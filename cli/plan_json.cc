// The keys are documented in docs/json.md, and a test compares the document with this output for
// reports with every optional part. Numbers are not rounded. A value that is not known is null, so
// that the keys do not depend on the flags, except for parts that only some reports have.
//
// If the user requests a strategy of a paper, the figures of its formulas are at the top level, and
// those of Cadre's own search and cost model under "engine"; otherwise Cadre's figures are at the
// top level.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "cli/plan_render.h"
#include "plan/plan.h"
#include "plan/plan_collectives.h"
#include "plan/recomputation.h"
#include "plan/search/prediction.h"

namespace cadre {
namespace {

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

// Without a link there are no times.
Json KnownSeconds(const PlanReport& report, double seconds) {
  return report.question->link_known() ? Json(seconds) : Json();
}

template <typename T, typename F>
Json Array(const std::vector<T>& values, F json) {
  Json array = Json::array();
  for (const T& value : values) array.push_back(json(value));
  return array;
}

// Formulas yield fractions of bytes.
int64_t Bytes(double bytes) { return std::ceil(bytes); }

// --- Cadre's own plan ---

// Ranks by axis. A comparison, whose rows must be readable as text, has the mesh as a string
// instead.
Json MeshJson(const Mesh& mesh) {
  Json json = Json::object();
  for (const Mesh::Axis& axis : mesh.axes()) json[axis.name] = axis.size;
  return json;
}

Json SplitsJson(const std::vector<IndexSplit>& splits) {
  Json json = Json::object();
  for (const IndexSplit& split : splits) json[split.index] = split.axes;
  return json;
}

Json CoordinatesJson(const std::vector<AxisCoordinate>& coordinates) {
  Json json = Json::object();
  for (const AxisCoordinate& each : coordinates) json[each.axis] = each.coordinate;
  return json;
}

// The best other split of the layer; null if there is none or the plan was not searched.
Json RunnerUpJson(const PlanReport& report, size_t layer) {
  if (!report.searched) return nullptr;
  const LayerRunnerUp& other = report.searched->runners_up[layer];
  if (!std::isfinite(other.more_seconds)) return nullptr;
  return {{"splits", SplitsJson(other.splits)}, {"more_seconds", other.more_seconds}};
}

// One entry per layer, in the order of the graph.
Json LayersJson(const PlanReport& report) {
  Json layers = Json::array();
  const std::vector<RecomputedLayer> recomputed = RecomputedLayers(
      report.question->graph, report.chosen->plan.recomputed, report.chosen->plan.layers);
  for (size_t l = 0; l < report.chosen->plan.layers.size(); ++l) {
    const LayerLayouts& layer = report.chosen->plan.layers[l];
    const LayerPrediction& cost = report.chosen->prediction.layers[l];
    layers.push_back({{"layer", layer.name},
                      {"kind", LayerKindName(report.question->graph[l].kind)},
                      {"splits", SplitsJson(layer.splits)},
                      {"at", CoordinatesJson(layer.at)},
                      {"output", layer.output.ToString()},
                      {"recomputed", recomputed[l].forward},
                      {"forward_seconds", cost.compute.forward},
                      {"backward_seconds", cost.compute.backward},
                      {"words", cost.elements()},
                      {"move_words", cost.move_elements},
                      {"collective_words", cost.collective_elements},
                      {"communication_seconds", cost.communication()},
                      {"update_seconds", cost.update},
                      {"memory_bytes", cost.memory_bytes},
                      {"runner_up", RunnerUpJson(report, l)}});
  }
  return layers;
}

// In the order of the plan, which is that of the backward pass.
Json BucketsJson(const PlanReport& report) {
  Json buckets = Json::array();
  for (size_t b = 0; b < report.buckets.size(); ++b) {
    const Bucket& bucket = report.chosen->plan.buckets[b];
    buckets.push_back({{"parameters", Array(bucket.parameters,
                                            [&](int p) { return report.question->index[p].name; })},
                       {"axes", bucket.axes},
                       {"same", bucket.replica_axes},
                       {"algorithm", AlgorithmName(bucket.algorithm)},
                       {"bytes", report.buckets[b].bytes},
                       {"seconds", KnownSeconds(report, report.buckets[b].seconds())}});
  }
  return buckets;
}

// If no plan fits, only the reason is known.
Json PlannedJson(const PlanReport& report) {
  if (!report.chosen) return {{"refusal", report.refusal.message()}};
  const Prediction& prediction = report.chosen->prediction;
  Json json = {{"mesh", MeshJson(report.chosen->plan.mesh)},
               {"words_per_rank", prediction.elements_per_rank}};
  if (report.question->link_known()) {
    json.update({{"communication_seconds", prediction.communication_seconds()},
                 {"exposed_seconds", prediction.times.exposed()},
                 {"compute_seconds", prediction.times.compute()},
                 {"move_seconds", prediction.times.moves()},
                 {"collective_seconds", prediction.times.collectives()},
                 {"update_seconds", prediction.times.update()},
                 {"step_seconds", prediction.times.step()},
                 {"serial_seconds", prediction.serial_seconds},
                 {"utilisation", prediction.utilisation},
                 {"bound", prediction.bound}});
  } else {
    json.update({{"communication_seconds", nullptr}, {"step_seconds", nullptr}});
  }
  json.update({{"memory_bytes_per_rank", prediction.memory_bytes},
               {"layers", LayersJson(report)},
               {"buckets", BucketsJson(report)}});
  return json;
}

// A plan that was considered, with the figures by which plans are compared.
Json CandidateJson(const Candidate& candidate) {
  return {{"mesh", MeshJson(candidate.plan.mesh)},
          {"places_layers", PlacesLayers(candidate.plan)},
          {"words_per_rank", candidate.prediction.elements_per_rank},
          {"step_seconds", candidate.prediction.times.step()},
          {"memory_bytes_per_rank", candidate.prediction.memory_bytes}};
}

// --- A paper's formulas ---

Json PaperLayersJson(const PlanReport& report) {
  Json layers = Json::array();
  for (size_t l = 0; l < report.paper->layers.size(); ++l) {
    const PaperLayer& layer = report.paper->layers[l];
    const LayerShape& shape = report.question->network.layers[l];
    Json json = {{"layer", layer.name},
                 {"kind", LayerKindName(report.question->graph[layer.number].kind)},
                 {"parallelism", layer.parallelism},
                 {"weights", shape.weights},
                 {"inputs_per_sample", shape.inputs},
                 {"outputs_per_sample", shape.outputs},
                 {"words", layer.communication.words},
                 {"alpha_messages", layer.communication.messages},
                 {"communication_seconds", KnownSeconds(report, layer.seconds)},
                 {"memory_bytes", Bytes(layer.state_bytes + layer.activation_bytes)}};
    if (layer.worth_splitting) json["worth_cutting"] = *layer.worth_splitting;
    layers.push_back(std::move(json));
  }
  return layers;
}

// The sums in the papers' closed forms.
Json NetworkJson(const NetworkShape& network) {
  int64_t outputs = 0;
  int64_t inputs = 0;
  for (const LayerShape& layer : network.layers) {
    outputs += layer.outputs;
    inputs += layer.first ? 0 : layer.inputs;
  }
  return {{"weights", network.weights()},
          {"convolution_weights", network.convolution_weights()},
          {"outputs_per_sample", outputs},
          {"inputs_per_sample", inputs}};
}

// Null if the strategy is not one of a paper.
Json PaperJson(const PlanReport& report) {
  if (!report.paper) return nullptr;
  const PaperCost& cost = *report.paper;
  Json json = {{"mesh", {{"data", cost.grid.pc}, {"model", cost.grid.pr}}},
               {"grid", cost.grid.ToString()},
               {"words_per_rank", cost.communication.words},
               {"alpha_messages", cost.communication.messages},
               {"communication_seconds", KnownSeconds(report, cost.communication_seconds)},
               {"compute_seconds", cost.compute_seconds},
               {"step_seconds", KnownSeconds(report, cost.step_seconds())},
               {"memory_bytes_per_rank", Bytes(cost.memory_bytes())},
               {"parameter_state_bytes", cost.state_bytes},
               {"activation_bytes", cost.activation_bytes},
               {"enough_samples", cost.enough_samples},
               {"network", NetworkJson(report.question->network)}};
  if (cost.closed_form_rows) {
    const bool group = cost.strategy == Strategy::kGroupHybrid;
    json[group ? "g_star" : "pr_star"] = *cost.closed_form_rows;
  }
  json["layers"] = PaperLayersJson(report);
  return json;
}

// --- Why this plan ---

Json VariationJson(const Variation& variation) {
  Json step;
  Json mesh;
  if (variation.candidate) {
    step = variation.candidate->prediction.times.step();
    mesh = variation.candidate->plan.mesh.ToString();
  }
  return {{"what", variation.what},
          {"factor", variation.factor},
          {"value", variation.value},
          {"step_seconds", step},
          {"mesh", mesh},
          {"changes", variation.changes()},
          {"other_mesh", variation.other_mesh},
          {"other_layers", variation.other_layers},
          {"other_blocks", variation.other_blocks},
          {"note", variation.note}};
}

Json ComparedPlanJson(const Candidate& candidate) {
  const Prediction& prediction = candidate.prediction;
  return {{"mesh", candidate.plan.mesh.ToString()},
          {"words_per_rank", prediction.elements_per_rank},
          {"communication_seconds", prediction.communication_seconds()},
          {"step_seconds", prediction.times.step()},
          {"memory_bytes_per_rank", prediction.memory_bytes}};
}

// Figures of papers may be compared with one another, as may figures of Cadre's cost model, but not
// one with the other.
Json ComparedJson(const ComparedStrategy& row) {
  Json json = {{"strategy", StrategyName(row.strategy)}};
  if (row.paper) {
    json.update({{"grid", row.paper->grid.ToString()},
                 {"words_per_rank", row.paper->communication.words},
                 {"alpha_messages", row.paper->communication.messages},
                 {"communication_seconds", row.paper->communication_seconds},
                 {"memory_bytes_per_rank", row.paper->memory_bytes()}});
  } else if (row.predicted && row.strategy == Strategy::kAuto) {
    const Prediction& prediction = row.predicted->prediction;
    json.update({{"words_per_rank", prediction.elements_per_rank},
                 {"communication_seconds", prediction.communication_seconds()},
                 {"memory_bytes_per_rank", prediction.memory_bytes}});
  }
  json.update({{"step_seconds", OrNull(row.seconds)},
               {"ratio", OrNull(row.ratio)},
               {"engine", row.predicted ? ComparedPlanJson(*row.predicted) : Json()},
               {"note", row.note}});
  return json;
}

Json ComparisonJson(const StrategyComparison& comparison) {
  Json json = {{"strategies", Array(comparison.rows, ComparedJson)}};
  if (comparison.best_of_papers) {
    json["best_of_papers"] = StrategyName(*comparison.best_of_papers);
    json["best_of_papers_seconds"] = comparison.best_of_papers_seconds;
  }
  json.update({{"auto_seconds", OrNull(comparison.auto_seconds)},
               {"gain", OrNull(comparison.gain)},
               {"gain_note", comparison.gain_note},
               {"engine_gain", OrNull(comparison.predicted_gain)}});
  return json;
}

Json BatchChoiceJson(const BatchChoice& choice) {
  return {{"data_workers", choice.way.workers},
          {"devices", choice.way.model_devices},
          {"batch", choice.batch},
          {"epochs", choice.way.epochs},
          {"mesh", choice.mesh.ToString()},
          {"splits_model", choice.way.splits_model},
          {"places_layers", choice.places_layers},
          {"step_seconds", choice.way.step_seconds},
          {"seconds_to_target", choice.way.seconds}};
}

// `best` repeats one of the choices, so that scripts need not search for it.
Json ForecastJson(const EpochsForecast& forecast) {
  const auto& choices = forecast.choices;
  return {{"target_accuracy", Widen(forecast.target_accuracy)},
          {"samples", forecast.samples},
          {"epochs", OrNull(forecast.epochs)},
          {"seconds_to_target", OrNull(forecast.seconds)},
          {"note", forecast.note},
          {"left_out", forecast.left_out},
          {"choices", Array(choices, BatchChoiceJson)},
          {"best", forecast.best ? BatchChoiceJson(choices[*forecast.best]) : Json()},
          {"gain", OrNull(forecast.gain)},
          {"crossover_workers", OrNull(forecast.crossover)}};
}

Json GroupChoiceJson(const GroupChoice& choice) {
  const double epoch = choice.seconds_per_epoch;
  return {{"groups", choice.groups},
          {"ranks", choice.ranks},
          {"every_steps", choice.every_steps},
          {"mesh", choice.mesh.ToString()},
          {"step_seconds", choice.step_seconds},
          {"averaging_seconds", choice.averaging_seconds},
          {"exposed_averaging_seconds", choice.exposed_seconds},
          {"averaging_seconds_per_step", choice.averaging_share()},
          {"bytes_per_average", choice.bytes_per_average()},
          {"bytes_up", choice.bytes_up},
          {"bytes_down", choice.bytes_down},
          {"seconds_per_sample", choice.seconds_per_sample},
          {"seconds_per_epoch", epoch > 0 ? Json(epoch) : Json()},
          {"epochs", OrNull(choice.epochs)},
          {"seconds_to_target", OrNull(choice.seconds_to_target)}};
}

// A number of groups that cannot be used, and the reason.
Json RefusedJson(const RejectedGroups& refused) {
  return {{"groups", refused.groups}, {"ranks", refused.ranks}, {"why", refused.reason}};
}

// `more` is the next larger number of groups that was considered, with its time relative to the
// best.
Json GroupsJson(const GroupsResult& answer) {
  return {{"best", GroupChoiceJson(answer.best())},
          {"choices", Array(answer.choices, GroupChoiceJson)},
          {"refused", Array(answer.rejected, RefusedJson)},
          {"more", answer.more ? GroupChoiceJson(*answer.more) : Json()},
          {"more_takes", answer.more ? Json(answer.more_time_ratio) : Json()},
          {"crossover_groups", answer.crossover ? Json(answer.best().groups) : Json()},
          {"leaders", "every rank leads for its own slice"},
          {"why", answer.reason}};
}

// Cost of all collectives for each policy, not only for the one that the plan uses.
Json PoliciesJson(const PlanReport& report, double PolicyCost::*cost) {
  Json json;
  for (const PolicyCost& each : report.policies) {
    json[std::string(PolicyName(each.policy))] = each.*cost;
  }
  return json;
}

Json StepJson(const PlanReport& report) {
  if (!report.chosen || !report.question->problem.hardware.computes()) return nullptr;
  const Prediction& prediction = report.chosen->prediction;
  return {{"seconds", prediction.times.step()},
          {"exposed_seconds", prediction.times.exposed()},
          {"serial_seconds", prediction.serial_seconds}};
}

Json LinkJson(const PlanQuestion& question) {
  if (!question.link_known()) return nullptr;
  const HardwareModel& hardware = question.problem.hardware;
  return {{"alpha", hardware.link.alpha},
          {"beta", hardware.link.beta},
          {"gamma", hardware.link.gamma},
          {"kind", LinkKindText(hardware.link_kind)}};
}

// Only plans that were searched for, not those of a rule or a paper, have alternatives.
void AddSearch(const PlanReport& report, Json& json) {
  const SearchResult& searched = *report.searched;
  json.update({{"exact", searched.exact},
               {"exact_note", ExactNote(searched, report.question->problem.overlap)},
               {"meshes", searched.meshes},
               {"others", Array(searched.others, CandidateJson)}});
  if (!searched.unpinned) return;
  json["unpinned"] = CandidateJson(*searched.unpinned);
  json["pins_cost_seconds"] = *report.pins_cost();
}

}  // namespace

Json ToJson(const PlanReport& report) {
  const PlanQuestion& question = *report.question;
  const Strategy strategy = question.request.strategy;
  Json json = {{"strategy", report.by_rules() ? "rules" : StrategyName(strategy)},
               {"workers", question.problem.ranks},
               {"batch", question.problem.batch},
               {"collectives", PolicyName(question.problem.collectives)},
               {"link", LinkJson(question)}};
  json.update(report.uses_formulas ? PaperJson(report) : PlannedJson(report));
  if (report.uses_formulas) {
    json["engine"] = PlannedJson(report);
  } else if (strategy != Strategy::kAuto) {
    json["paper"] = PaperJson(report);
  }
  json["bytes_inside_group"] = report.bytes_inside;
  json["bytes_across_groups"] = report.bytes_across;
  if (report.searched) AddSearch(report, json);
  const auto& variations = report.variations;
  json.update({{"policies", PoliciesJson(report, &PolicyCost::seconds)},
               {"policies_all_reduced", PoliciesJson(report, &PolicyCost::all_reduced)},
               {"step", StepJson(report)},
               {"sensitivity", variations.empty() ? Json() : Array(variations, VariationJson)}});
  if (report.comparison) json["compare"] = ComparisonJson(*report.comparison);
  if (report.forecast) json["target"] = ForecastJson(*report.forecast);
  if (report.groups) json["groups"] = GroupsJson(*report.groups);
  return json;
}

}  // namespace cadre
