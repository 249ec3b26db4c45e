// Part of plan/tape.h: what follows from the kind of a layer or from the plan, without a tape.
#include <algorithm>

#include "plan/tape.h"

namespace cadre {
namespace {

constexpr int kRowDimension = 1;

// The minimum work of an interior that is computed while the halo is received. Receiving a halo
// takes tens of microseconds even on fast links; with less work, splitting costs more than it
// saves.
constexpr int64_t kMinInteriorFlops = 4 << 20;

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

void FindInterior(const GraphLayer& layer, const Move& move, LayerRegion& here) {
  if (layer.kind != LayerKind::kConvolution || move.steps.size() != 1 || move.steps[0].sums) {
    return;
  }
  const Box& needed = here.inputs[0];
  const Box& held = move.steps[0].have;
  for (size_t d = 0; d < needed.begin.size(); ++d) {
    if (d != kRowDimension && (held.begin[d] > needed.begin[d] || held.end[d] < needed.end[d]))
      return;
  }
  int64_t begin = here.output.begin[kRowDimension];
  int64_t end = here.output.end[kRowDimension];
  const auto is_held = [&](int64_t row) {
    const Box rows = here.InputRowsFor(layer.window, row, row + 1);
    return rows.begin[kRowDimension] >= held.begin[kRowDimension] &&
           rows.end[kRowDimension] <= held.end[kRowDimension];
  };
  while (begin < end && !is_held(begin)) ++begin;
  while (begin < end && !is_held(end - 1)) --end;
  const int64_t rows = here.OutputRows(begin, end).shape().elements();
  if (rows == 0 || layer.flops / layer.output.elements() * rows < kMinInteriorFlops) return;
  here.held = held;
  here.interior_begin = begin;
  here.interior_end = end;
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

}  // namespace cadre
