// Part of plan/tape.h: what follows from the kind of a layer or from the plan, without a tape.
#include <algorithm>

#include "plan/tape.h"

namespace cadre {
namespace {

constexpr int kRowDimension = 1;

}  // namespace

Box LayerRegion::OutputRows(int64_t begin, int64_t end) const {
  Box rows = output;
  rows.begin[kRowDimension] = begin;
  rows.end[kRowDimension] = std::max(begin, end);
  return rows;
}

Box LayerRegion::InputRowsFor(const Window& window, int64_t begin, int64_t end) const {
  Box rows = inputs[0];
  const int64_t first = begin * window.stride_height - window.padding_height;
  const int64_t last =
      (end - 1) * window.stride_height - window.padding_height + window.reach_height();
  rows.begin[kRowDimension] =
      std::clamp(first, inputs[0].begin[kRowDimension], inputs[0].end[kRowDimension]);
  rows.end[kRowDimension] =
      begin < end ? std::clamp(last, rows.begin[kRowDimension], inputs[0].end[kRowDimension])
                  : rows.begin[kRowDimension];
  return rows;
}

Layout InputLayout(const Graph& graph, const Plan& plan) {
  const std::vector<int> consumers = graph.consumers(Graph::kInput);
  const LayerLayouts& first = plan.layers[consumers.front()];
  Layout layout;
  layout.split.push_back(first.inputs[0].axes(0));
  const bool same = std::all_of(consumers.begin(), consumers.end(),
                                [&](int l) { return plan.layers[l].at == first.at; });
  if (same) layout.at = first.at;
  return layout;
}

std::vector<bool> LayersWithGradient(const Graph& graph) {
  std::vector<bool> needs_gradient;
  for (const GraphLayer& layer : graph.layers()) {
    needs_gradient.push_back(
        layer.has_parameters() ||
        std::any_of(layer.inputs.begin(), layer.inputs.end(), [&](int producer) {
          return producer != Graph::kInput && needs_gradient[producer];
        }));
  }
  return needs_gradient;
}

}  // namespace cadre
