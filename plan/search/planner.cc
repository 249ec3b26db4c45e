#include "plan/search/planner.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/graph.h"
#include "model/op_indices.h"
#include "model/ops/operation.h"
#include "model/parameter_index.h"
#include "plan/norm_statistics.h"
#include "plan/plan.h"
#include "plan/plan_collectives.h"
#include "plan/recomputation.h"
#include "plan/search/plan_problem.h"

namespace cadre {
namespace {

using Axes = std::vector<std::string>;
using Splits = std::vector<IndexSplit>;

bool HasKind(const Graph& graph, LayerKind kind) {
  return std::any_of(graph.layers().begin(), graph.layers().end(),
                     [&](const GraphLayer& layer) { return layer.kind == kind; });
}

// The ranks that a spec requests, without overflow.
int RequestedRanks(uint32_t ranks) { return std::min<uint32_t>(ranks, 1 << 20); }

Mesh MeshFor(const v1::Cluster& cluster, const Graph& graph, int ranks) {
  const bool images = graph.input().rank() == 3;
  const int space = images ? LargestDivisor(ranks, RequestedRanks(cluster.space_ranks())) : 1;
  const int rest = ranks / space;
  int model = RequestedRanks(cluster.model_ranks());
  if (model == 0) model = HasKind(graph, LayerKind::kFullyConnected) ? rest : 1;
  model = LargestDivisor(rest, model);
  std::vector<Mesh::Axis> axes = {{kDataAxis, rest / model}};
  if (space > 1) axes.push_back({kSpaceAxis, space});
  axes.push_back({kModelAxis, model});
  return Mesh(std::move(axes));
}

// The pinned mesh and layers. model_ranks and space_ranks are left to the rules.
absl::StatusOr<Pins> PinsIn(const v1::Cluster& cluster, const Graph& graph, int ranks) {
  v1::RunSpec only;
  v1::Cluster& pinned = *only.mutable_cluster();
  pinned.set_ranks_per_group(cluster.ranks_per_group());
  *pinned.mutable_mesh() = cluster.mesh();
  *pinned.mutable_layer() = cluster.layer();
  return PinsOf(only, graph, ranks);
}

Axes operator+(Axes a, const Axes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Applies the rules. Axes of one rank are omitted, so that equal layouts compare equal.
class Rules {
 public:
  Rules(const Graph& graph, const Mesh& mesh, const Pins& pins)
      : graph_(graph), mesh_(mesh), pins_(pins) {
    data_ = AxesNamed(kDataAxis);
    space_ = AxesNamed(kSpaceAxis);
    model_ = AxesNamed(kModelAxis);
    products_ = HasKind(graph, LayerKind::kFullyConnected) || HasKind(graph, LayerKind::kAttention);
  }

  absl::StatusOr<std::vector<LayerLayouts>> Run() {
    for (const GraphLayer& layer : graph_.layers()) {
      Splits splits = SplitsOf(layer);
      std::vector<AxisCoordinate> at;
      if (!pins_.at.empty()) at = pins_.at[layers_.size()];
      for (const AxisCoordinate& each : at) {
        for (IndexSplit& split : splits) std::erase(split.axes, each.axis);
      }
      splits.erase(std::remove_if(splits.begin(), splits.end(),
                                  [](const IndexSplit& split) { return split.axes.empty(); }),
                   splits.end());
      CADRE_ASSIGN_OR_RETURN(LayerLayouts layouts, LayOut(layer, mesh_, std::move(splits), at));
      layers_.push_back(std::move(layouts));
    }
    return std::move(layers_);
  }

 private:
  Axes AxesNamed(const char* axis) const { return mesh_.Size(axis) > 1 ? Axes{axis} : Axes{}; }

  // The axes that split the samples of activations that are not images. They include `model` only
  // if no product needs it.
  Axes RowAxes() const { return products_ ? data_ : data_ + model_; }

  // The output layout of the producer of input `i`; null for the model's input.
  const Layout* ProducerLayout(const GraphLayer& layer, size_t i) const {
    const int producer = layer.inputs[i];
    return producer == Graph::kInput ? nullptr : &layers_[producer].output;
  }

  // All axes but `data` split the index.
  Splits PinnedSplits(const std::string& index) const {
    if (index == "samples") return {{index, data_ + space_ + model_}};
    return {{"samples", data_}, {index, space_ + model_}};
  }

  Splits SplitsOf(const GraphLayer& layer) const {
    const auto pin = pins_.layers.find(layer.name);
    if (pin != pins_.layers.end()) return PinnedSplits(pin->second);
    if (layer.shares_weight || layer.sampled_classes > 0) {
      return {{"samples", data_ + space_ + model_}};
    }
    const bool image = layer.input().rank() == 3;
    switch (Describe(layer.kind).split_rule) {
      case SplitRule::kAllSamples:
        return {{"samples", data_ + space_ + model_}};
      case SplitRule::kRowSamples:
        return {{"samples", RowAxes()}};
      case SplitRule::kImageSamples:
        return {{"samples", data_ + model_}};
      case SplitRule::kKeepSamples:
        return image ? Image(layer) : WholeFeatures(layer);
      case SplitRule::kKeepSplit:
        return image ? Image(layer) : Elementwise(layer);
      case SplitRule::kOutputs:
        return FullyConnected(layer);
      case SplitRule::kHeads:
        return {{"samples", RowAxes()}, {"heads", model_}};
    }
    return {};
  }

  // Data and domain parallel. With fewer rows than ranks, splitting rows would cost halos and leave
  // ranks without work.
  Splits Image(const GraphLayer& layer) const {
    int64_t rows = layer.input()[0];
    if (layer.output.rank() == 3) rows = std::min(rows, layer.output[0]);
    const bool split_rows = rows >= mesh_.Size(space_);
    return {{"samples", data_ + model_}, {"height", split_rows ? space_ : Axes{}}};
  }

  // A split by outputs gathers the input and the output. A split by inputs leaves the input split,
  // and the output is a partial sum, whose reduction moves as much as two gathers.
  Splits FullyConnected(const GraphLayer& layer) const {
    const int last = layer.input().rank();
    const Layout* producer = ProducerLayout(layer, 0);
    if (producer != nullptr && !producer->axes(last).empty() &&
        layer.output[last - 1] < layer.input()[last - 1]) {
      return {{"samples", producer->axes(0)}, {"in", producer->axes(last)}};
    }
    return {{"samples", data_}, {"out", model_ + space_}};
  }

  // Keeps the layout of the inputs if all inputs have the same one.
  Splits Elementwise(const GraphLayer& layer) const {
    const Layout* producer = ProducerLayout(layer, 0);
    for (size_t i = 0; i < layer.inputs.size(); ++i) {
      const Layout* other = ProducerLayout(layer, i);
      if (other == nullptr || !(other->split == producer->split)) return {{"samples", RowAxes()}};
    }
    return {{"samples", producer->axes(0)}, {"features", producer->axes(layer.input().rank())}};
  }

  Splits WholeFeatures(const GraphLayer& layer) const {
    const Layout* producer = ProducerLayout(layer, 0);
    return {{"samples", producer == nullptr ? RowAxes() : producer->axes(0)}};
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const Pins& pins_;
  Axes data_;
  Axes space_;
  Axes model_;
  // Whether any layer splits an index other than its samples over `model`.
  bool products_ = false;
  std::vector<LayerLayouts> layers_;
};

}  // namespace

absl::StatusOr<v1::Plan> MakePlan(const v1::RunSpec& spec, int ranks) {
  CADRE_ASSIGN_OR_RETURN(const Graph graph, Graph::FromModel(spec.model()));
  const ParameterIndex index = ParameterIndex::FromGraph(graph);
  CADRE_ASSIGN_OR_RETURN(const Plan plan, MakePlan(spec, ranks, graph, index, LinkProfile(),
                                                   v1::LinkProfile::KIND_UNSPECIFIED));
  return PlanToProto(plan, index);
}

absl::StatusOr<Plan> MakePlan(const v1::RunSpec& spec, int ranks, const Graph& graph,
                              const ParameterIndex& index, const LinkProfile& link,
                              v1::LinkProfile::Kind link_kind,
                              std::optional<int64_t> bucket_elements) {
  Plan plan;
  CADRE_ASSIGN_OR_RETURN(const Pins pins, PinsIn(spec.cluster(), graph, ranks));
  plan.mesh = pins.mesh.empty() ? MeshFor(spec.cluster(), graph, ranks) : Mesh(pins.mesh);
  CADRE_ASSIGN_OR_RETURN(plan.layers, Rules(graph, plan.mesh, pins).Run());
  if (spec.cluster().recompute() == v1::Recomputation::ALL) {
    plan.recomputed = RecomputationBlocks(graph);
  }
  plan = WithCollectives(std::move(plan), graph, index, spec.cluster().collectives(), link,
                         link_kind, bucket_elements);
  CADRE_RETURN_IF_ERROR(CheckPlan(plan, graph, index));
  CADRE_RETURN_IF_ERROR(CheckNormStatistics(spec, graph, plan));
  return plan;
}

}  // namespace cadre
