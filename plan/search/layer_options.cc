// An option is a vector with one entry per axis: the index that the axis splits. Options are
// enumerated axis by axis and filtered: parts must divide evenly if the operation requires it, and
// no part may be empty. The input and output layouts follow from the table of model/op_indices.h.
#include "plan/search/layer_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/ops/operation.h"
#include "plan/norm_statistics.h"
#include "plan/search/layer_bytes.h"

namespace cadre {
namespace {

// A product may be replicated on several ranks if it is at most this part of the model's work.
constexpr double kSmallWork = 0.02;

bool IsImage(const GraphLayer& layer) { return layer.input().rank() == 3; }

int64_t ExtentOf(const GraphLayer& layer, const OpIndex& index) {
  constexpr int64_t kAny = int64_t{1} << 40;
  if (index.divisible > 0) return index.divisible;
  int64_t extent = kAny;
  const auto look = [&](const IndexPlace& place, const Shape& sample) {
    if (place.kind != IndexPlace::Kind::kDimension || place.dimension == 0) return;
    extent = std::min(extent, sample[place.dimension - 1]);
  };
  for (size_t i = 0; i < index.inputs.size(); ++i) look(index.inputs[i], layer.input_shapes[i]);
  look(index.output, layer.output);
  if (index.name == "heads") return layer.parameters[0].shape[0];
  return extent;
}

int Find(const std::vector<OpIndex>& indices, absl::string_view name) {
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i].name == name) return i;
  }
  return -1;
}

// The index that enumerates the outputs of a layer with weights.
int OutputIndex(const std::vector<OpIndex>& indices) {
  for (const char* name : {"out", "groups", "heads", "channels", "features"}) {
    if (const int found = Find(indices, name); found >= 0) return found;
  }
  return -1;
}

// The index that the strategy assigns to every axis but `data`; -1: none.
int StrategyIndex(Strategy strategy, const GraphLayer& layer, const std::vector<OpIndex>& indices) {
  if (!layer.has_parameters()) return -1;
  switch (strategy) {
    case Strategy::kAuto:
      return -1;
    case Strategy::kBatch:
      return Find(indices, "samples");
    case Strategy::kModel:
    case Strategy::kUniformGrid:
      return OutputIndex(indices);
    case Strategy::kConvBatchFcGrid:
    case Strategy::kGroupHybrid:
      return IsImage(layer) ? Find(indices, "samples") : OutputIndex(indices);
    case Strategy::kConvDomainFcGrid:
      return IsImage(layer) ? Find(indices, "height") : OutputIndex(indices);
  }
  return -1;
}

int PinnedIndex(const Pins& pins, const GraphLayer& layer, const std::vector<OpIndex>& indices) {
  const auto pin = pins.layers.find(layer.name);
  return pin == pins.layers.end() ? -1 : Find(indices, pin->second);
}

std::vector<int8_t> ChoicesOf(const LayerClass& layer_class, const std::string& axis) {
  std::vector<int8_t> choices;
  for (size_t i = 0; i < layer_class.indices.size(); ++i) {
    const std::string& name = layer_class.indices[i].name;
    const bool samples = name == "samples";
    const bool rows = name == "height";
    if (name == "width" || (axis == kDataAxis && !samples) || (rows && axis != kSpaceAxis)) {
      continue;
    }
    choices.push_back(i);
  }
  if (layer_class.may_replicate && axis != kDataAxis) choices.push_back(-1);
  return choices;
}

CompactLayout LayoutOf(const std::vector<int8_t>& index, const std::vector<IndexPlace>& places) {
  CompactLayout layout;
  for (size_t axis = 0; axis < index.size(); ++axis) {
    if (index[axis] < 0) continue;
    const IndexPlace& place = places[index[axis]];
    if (place.kind == IndexPlace::Kind::kDimension) {
      layout.split[place.dimension].push_back(axis);
    } else if (place.kind == IndexPlace::Kind::kSummed) {
      layout.partial |= AxisSet{1} << axis;
    }
  }
  return layout;
}

LayerOption MakeOption(const LayerClass& layer_class, std::vector<int8_t> index) {
  std::vector<IndexPlace> inputs, outputs;
  for (const OpIndex& each : layer_class.indices) {
    inputs.push_back(each.inputs[0]);
    outputs.push_back(each.output);
  }
  LayerOption option;
  option.input = LayoutOf(index, inputs);
  option.gradient_partial = option.input.partial;
  option.input.partial = 0;
  option.output = LayoutOf(index, outputs);
  option.index = std::move(index);
  return option;
}

// Whether every index that must be split evenly is.
bool DividesEvenly(const LayerClass& layer_class, const CompactMesh& mesh,
                   const std::vector<int8_t>& index) {
  for (size_t i = 0; i < layer_class.indices.size(); ++i) {
    const int64_t divisible = layer_class.indices[i].divisible;
    if (divisible > 0 && divisible % PartsOf(mesh, index, i) != 0) return false;
  }
  return true;
}

bool NoPartEmpty(const LayerClass& layer_class, const CompactMesh& mesh,
                 const std::vector<int8_t>& index) {
  for (size_t i = 0; i < layer_class.indices.size(); ++i) {
    if (PartsOf(mesh, index, i) > layer_class.extents[i]) return false;
  }
  return true;
}

bool HasStatistics(const LayerClass& layer_class, const CompactMesh& mesh,
                   const std::vector<int8_t>& way) {
  const auto parts = [&](const char* index) {
    const int found = Find(layer_class.indices, index);
    return found < 0 ? 1 : PartsOf(mesh, way, found);
  };
  return !HasRankWithOneValue(*layer_class.example,
                              {parts("samples"), parts("height"), parts("width")},
                              layer_class.micro_batches);
}

// `data` splits samples, all other axes one index.
std::vector<int8_t> AllAxesTo(const LayerClass& layer_class, const CompactMesh& mesh, int index) {
  std::vector<int8_t> all;
  const int samples = Find(layer_class.indices, "samples");
  for (int a = 0; a < mesh.axes(); ++a) {
    all.push_back(mesh.name(a) == kDataAxis ? samples : index);
  }
  return all;
}

std::vector<LayerOption> FreeOptions(const LayerClass& layer_class, const CompactMesh& mesh) {
  std::vector<std::vector<int8_t>> ways = {{}};
  for (int a = 0; a < mesh.axes(); ++a) {
    std::vector<std::vector<int8_t>> longer;
    for (const std::vector<int8_t>& way : ways) {
      for (const int8_t choice : ChoicesOf(layer_class, mesh.name(a))) {
        longer.push_back(way);
        longer.back().push_back(choice);
      }
    }
    ways = std::move(longer);
  }
  std::vector<LayerOption> options;
  for (std::vector<int8_t>& way : ways) {
    if (!DividesEvenly(layer_class, mesh, way) || !NoPartEmpty(layer_class, mesh, way) ||
        !HasStatistics(layer_class, mesh, way)) {
      continue;
    }
    options.push_back(MakeOption(layer_class, std::move(way)));
  }
  return options;
}

}  // namespace

int64_t PartsOf(const CompactMesh& mesh, const std::vector<int8_t>& option, int index) {
  int64_t parts = 1;
  for (int a = 0; a < mesh.axes(); ++a) {
    if (option[a] == index) parts *= mesh.size(a);
  }
  return parts;
}

LayerClass ClassOf(const PlanProblem& problem, int layer) {
  const GraphLayer& example = (*problem.graph)[layer];
  LayerClass layer_class{.indices = IndicesOf(example),
                         .example = &example,
                         .micro_batches = MicroBatchSizes(problem)};
  for (const OpIndex& index : layer_class.indices)
    layer_class.extents.push_back(ExtentOf(example, index));
  layer_class.pinned_index = PinnedIndex(problem.pins, example, layer_class.indices);
  layer_class.strategy_index = StrategyIndex(problem.strategy, example, layer_class.indices);
  double work = 0;
  for (const GraphLayer& each : problem.graph->layers()) work += each.flops;
  layer_class.may_replicate = !example.shares_weight &&
                              (!Describe(example.kind).is_product ||
                               (problem.hardware.computes() && example.flops <= kSmallWork * work));
  return layer_class;
}

std::string ClassKey(const PlanProblem& problem, int layer) {
  const GraphLayer& graph_layer = (*problem.graph)[layer];
  std::string key = absl::StrCat(LayerKindName(graph_layer.kind), graph_layer.output.ToString());
  for (const Shape& input : graph_layer.input_shapes) absl::StrAppend(&key, input.ToString());
  const Window& w = graph_layer.window;
  absl::StrAppend(&key, "/", w.kernel_height, "/", w.kernel_width, "/", w.stride_height, "/",
                  w.stride_width, "/", w.padding_height, "/", w.padding_width, "/", w.dilation, "/",
                  graph_layer.groups, "/", graph_layer.flops, "/", graph_layer.shares_weight, "/",
                  graph_layer.sampled_classes, "/", FollowsNorm(*problem.graph, graph_layer), "/",
                  graph_layer.settings.batch_norm().per_rank());
  for (const LayerParameter& parameter : graph_layer.parameters) {
    absl::StrAppend(&key, parameter.name, parameter.shape.ToString());
  }
  const auto pin = problem.pins.layers.find(graph_layer.name);
  if (pin != problem.pins.layers.end()) absl::StrAppend(&key, "=", pin->second);
  return key;
}

bool StrategyApplies(const LayerClass& layer_class, const CompactMesh& mesh) {
  const std::vector<int8_t> way = AllAxesTo(layer_class, mesh, layer_class.strategy_index);
  return DividesEvenly(layer_class, mesh, way) && NoPartEmpty(layer_class, mesh, way) &&
         HasStatistics(layer_class, mesh, way);
}

std::vector<LayerOption> OptionsOf(const LayerClass& layer_class, const CompactMesh& mesh) {
  if (layer_class.pinned_index >= 0) {
    std::vector<int8_t> way = AllAxesTo(layer_class, mesh, layer_class.pinned_index);
    if (!DividesEvenly(layer_class, mesh, way) || !HasStatistics(layer_class, mesh, way)) return {};
    return {MakeOption(layer_class, std::move(way))};
  }
  if (layer_class.strategy_index >= 0 && StrategyApplies(layer_class, mesh))
    return {MakeOption(layer_class, AllAxesTo(layer_class, mesh, layer_class.strategy_index))};
  return FreeOptions(layer_class, mesh);
}

std::vector<IndexSplit> SplitsOf(const LayerClass& layer_class, const CompactMesh& mesh,
                                 const LayerOption& option) {
  std::vector<IndexSplit> splits;
  for (int i = 0; i < std::ssize(layer_class.indices); ++i) {
    IndexSplit split{layer_class.indices[i].name, {}};
    for (int a = 0; a < mesh.axes(); ++a) {
      if (option.index[a] == i) split.axes.push_back(mesh.name(a));
    }
    if (!split.axes.empty()) splits.push_back(std::move(split));
  }
  return splits;
}

}  // namespace cadre
