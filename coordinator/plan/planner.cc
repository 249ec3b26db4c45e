#include "coordinator/plan/planner.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "spec/graph.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"

namespace cadre {
namespace {

using Axes = std::vector<std::string>;

// Bytes at which a bucket is full: enough that the latency of a collective is small beside its
// transfer on the slowest links (10 Gbit/s, 50 us), little enough that the first bucket is on its
// way early.
constexpr int64_t kBucketBytes = 4 << 20;

int ModelRanks(const v1::RunSpec& spec, const Graph& graph, int ranks) {
  const bool shardable =
      std::any_of(graph.layers().begin(), graph.layers().end(),
                  [](const GraphLayer& layer) { return layer.kind == LayerKind::kFullyConnected; });
  int wanted = static_cast<int>(spec.cluster().model_ranks());
  if (wanted == 0) wanted = shardable ? ranks : 1;
  wanted = std::min(wanted, ranks);
  while (ranks % wanted != 0) --wanted;
  return wanted;
}

// Axes of size 1 split nothing and are left out, so that equal layouts are written alike.
Axes Present(const Mesh& mesh, const Axes& axes) {
  Axes present;
  std::copy_if(axes.begin(), axes.end(), std::back_inserter(present),
               [&](const std::string& axis) { return mesh.Size(axis) > 1; });
  return present;
}

LayerLayouts LayOut(const GraphLayer& node, const Mesh& mesh, const Layout& before) {
  const Axes all = Present(mesh, {kDataAxis, kModelAxis});
  const Axes data = Present(mesh, {kDataAxis});
  const Axes model = Present(mesh, {kModelAxis});
  LayerLayouts layouts{.name = node.name};
  switch (node.kind) {
    case LayerKind::kConvolution:
    case LayerKind::kMaxPool:
    case LayerKind::kAveragePool:
      layouts.input = layouts.output = Layout::Split(0, all);
      break;
    case LayerKind::kRelu:
      layouts.input = layouts.output = before;
      break;
    case LayerKind::kFullyConnected:
      layouts.input = Layout::Split(0, data);
      layouts.output = Layout{.split = {data, model}};
      break;
    case LayerKind::kSoftmaxCrossEntropy:
      // Where the samples are split already they stay; features must be whole.
      layouts.input = Layout::Split(0, before.axes(0));
      break;
  }
  if (node.kind == LayerKind::kConvolution) layouts.parameters.assign(2, Layout::Replicated());
  if (node.kind == LayerKind::kFullyConnected) {
    layouts.parameters.assign(2, Layout::Split(0, model));
  }
  return layouts;
}

// Last layer first: the order in which backward finishes.
std::vector<Bucket> MakeBuckets(const std::vector<LayerLayouts>& layers,
                                const ParameterIndex& index) {
  std::vector<Bucket> buckets;
  int64_t bytes = 0;
  for (int l = static_cast<int>(layers.size()) - 1; l >= 0; --l) {
    std::vector<int> parameters;
    int64_t layer_bytes = 0;
    for (int p = 0; p < static_cast<int>(index.parameters().size()); ++p) {
      if (index[p].layer != l) continue;
      parameters.push_back(p);
      layer_bytes += index[p].shape.elements() * static_cast<int64_t>(sizeof(float));
    }
    if (parameters.empty()) continue;
    const Axes& axes = layers[static_cast<size_t>(l)].input.axes(0);
    const bool joins =
        !buckets.empty() && buckets.back().axes == axes && bytes + layer_bytes <= kBucketBytes;
    if (!joins) {
      buckets.push_back({.axes = axes, .algorithm = "ring"});
      bytes = 0;
    }
    std::vector<int>& into = buckets.back().parameters;
    into.insert(into.end(), parameters.begin(), parameters.end());
    bytes += layer_bytes;
  }
  for (Bucket& bucket : buckets) std::sort(bucket.parameters.begin(), bucket.parameters.end());
  return buckets;
}

}  // namespace

absl::StatusOr<v1::Plan> MakePlan(const v1::RunSpec& spec, int ranks) {
  CADRE_ASSIGN_OR_RETURN(const Graph graph, Graph::FromModel(spec.model()));
  CADRE_ASSIGN_OR_RETURN(const ParameterIndex index, ParameterIndex::FromModel(spec.model()));
  const int model = ModelRanks(spec, graph, ranks);
  Plan plan;
  plan.mesh = Mesh({{kDataAxis, ranks / model}, {kModelAxis, model}});
  Layout before = Layout::Split(0, Present(plan.mesh, {kDataAxis, kModelAxis}));
  for (const GraphLayer& node : graph.layers()) {
    plan.layers.push_back(LayOut(node, plan.mesh, before));
    before = plan.layers.back().output;
  }
  plan.buckets = MakeBuckets(plan.layers, index);
  CADRE_RETURN_IF_ERROR(CheckPlan(plan, graph, index));
  return PlanToProto(plan, index);
}

}  // namespace cadre
