// Part of plan/plan.h: PrintPlan.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "plan/plan.h"
#include "plan/plan_collectives.h"

namespace cadre {
namespace {

std::string SplitsOf(const LayerLayouts& layer) {
  std::vector<std::string> terms;
  for (const IndexSplit& split : layer.splits) {
    terms.push_back(absl::StrCat(split.index, "/", absl::StrJoin(split.axes, "*")));
  }
  if (!layer.at.empty()) terms.push_back(ToText(layer.at));
  return terms.empty() ? "whole" : absl::StrJoin(terms, ", ");
}

// Only the first and the last name if there are many.
std::string NamesOf(const std::vector<int>& parameters, const ParameterIndex& index) {
  constexpr size_t kAll = 8;
  if (parameters.size() > kAll) {
    return absl::StrCat(index[parameters.front()].name, " ... ", index[parameters.back()].name,
                        " (", parameters.size(), " parameters)");
  }
  return absl::StrJoin(parameters, ", ",
                       [&](std::string* out, int p) { absl::StrAppend(out, index[p].name); });
}

// Whether a split index of the layer needs elements of neighbouring parts.
bool HasHalo(const GraphLayer& node, const LayerLayouts& layer, const Mesh& mesh) {
  const std::vector<OpIndex> indices = IndicesOf(node);
  return std::any_of(indices.begin(), indices.end(), [&](const OpIndex& index) {
    return index.halo && mesh.Size(layer.axes(index.name)) > 1;
  });
}

// The moves before layer `l`: one for each input whose layout or halo requires it.
void PrintMoves(const Plan& plan, const Graph& graph, int l, std::string& text) {
  const LayerLayouts& layer = plan.layers[l];
  const bool halo = HasHalo(graph[l], layer, plan.mesh);
  for (size_t i = 0; i < layer.inputs.size(); ++i) {
    const int producer = graph[l].inputs[i];
    if (producer == Graph::kInput) continue;
    const LayerLayouts& from = plan.layers[producer];
    if (from.output == layer.inputs[i] && !halo) continue;
    absl::StrAppendFormat(&text, "  %-20s of %s: %s -> %s%s\n", "(move)", from.name,
                          from.output.ToString(), layer.inputs[i].ToString(),
                          halo ? " with halo" : "");
  }
}

void PrintBucket(const Plan& plan, const ParameterIndex& index, size_t b, std::string& text) {
  const Bucket& bucket = plan.buckets[b];
  const BucketCost cost = CostOf(plan, index, bucket, bucket.algorithm, plan.link);
  absl::StrAppend(&text, "  bucket ", b, " over ", bucket.AxesText(), " by ",
                  AlgorithmName(bucket.algorithm), ", ", cost.bytes, " bytes");
  if (plan.link.known()) absl::StrAppendFormat(&text, ", %.4f ms", 1e3 * cost.seconds());
  absl::StrAppend(&text, ": ", NamesOf(bucket.parameters, index), "\n");
}

}  // namespace

std::string PrintPlan(const Plan& plan, const Graph& graph, const ParameterIndex& index) {
  std::string text = absl::StrCat("mesh ", plan.mesh.ToString(), "\n");
  for (int l = 0; l < graph.size(); ++l) {
    const LayerLayouts& layer = plan.layers[l];
    PrintMoves(plan, graph, l, text);
    absl::StrAppendFormat(&text, "  %-20s %-21s %s; %s -> %s", layer.name,
                          LayerKindName(graph[l].kind), SplitsOf(layer), layer.inputs[0].ToString(),
                          layer.output.ToString());
    for (size_t p = 0; p < layer.parameters.size(); ++p) {
      // Their coordinates are those of the layer.
      if (layer.parameters[p] == Layout{.at = layer.at}) continue;
      absl::StrAppend(&text, ", ", graph[l].parameters[p].name, " ",
                      layer.parameters[p].ToString());
    }
    absl::StrAppend(&text, "\n");
  }
  for (const Interval& block : plan.recomputed) {
    absl::StrAppend(&text, "  recomputed for backward: ", plan.layers[block.begin].name, " to ",
                    plan.layers[block.end - 1].name, "\n");
  }
  if (plan.link.known())
    absl::StrAppend(&text, "  link ", LinkText(plan.link, plan.link_kind), "\n");
  for (size_t b = 0; b < plan.buckets.size(); ++b) PrintBucket(plan, index, b, text);
  return text;
}

}  // namespace cadre
