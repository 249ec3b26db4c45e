// The legal splits of every operation, from one table.
//
// Idea. An operation is a loop nest over named indices, in the notation of einsum: a fully
// connected layer is y[samples, out] = sum over `in` of x[samples, in] W[out, in] + b[out]. For
// each index the table states which dimension of each tensor it is, if any. If mesh axes split an
// index, the layouts of all tensors follow:
//
//   dimension of the tensor                the axes split that dimension
//   not a dimension, of an input           replicated; its gradient is a partial sum
//   not a dimension, of the output         the output is a partial sum (a contracted index)
//   not a dimension, of a parameter        replicated; its gradient is a partial sum (kSummed) or,
//                                          like the output gradient, equal on all ranks (kSame)
//
// For a fully connected layer, splitting `samples` is data parallelism (the gradient of W is
// summed); `out` is model parallelism by columns (the gradient of x is summed) and `in` by rows
// (the output is summed; Shoeybi et al. 2019). For convolutions, splitting `height` is domain
// parallelism with halos. Several indices at a time give the combinations of Gholami et al. 2018.
// Splits by named dimensions come from Mesh-TensorFlow (Shazeer et al. 2018) and GSPMD (Xu et al.
// 2021).
//
// Invariants. An axis splits at most one index of a layer. If an index is a dimension of an input
// and of the output, both are split into the same parts, so no communication is necessary inside
// the layer except for halos and partial sums; tensor/move.h redistributes tensors between layers.
//
// Limits. `divisible` restricts indices whose parts must not be cut (groups of a convolution,
// channels of a flatten). Batch norm and the loss need statistics of the whole batch; their layers
// reduce them. Attention splits heads, not tokens. LegalSplits enumerates all splits, exponentially
// in the number of axes: meshes have at most three.
#include "model/op_indices.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

using Axes = std::vector<std::string>;

constexpr char kSamples[] = "samples";
constexpr int kHeight = 1;
constexpr int kWidth = 2;
constexpr int kChannels = 3;

struct ParameterPlace {
  absl::string_view name;
  IndexPlace place;
};

// Every input has the index at the same place; parameters that are not named are summed.
OpIndex Index(const GraphLayer& layer, absl::string_view name, IndexPlace input, IndexPlace output,
              std::initializer_list<ParameterPlace> parameters = {}) {
  OpIndex index{.name = std::string(name), .output = output};
  index.inputs.assign(layer.input_shapes.size(), input);
  for (const LayerParameter& parameter : layer.parameters) {
    const auto* named = std::find_if(parameters.begin(), parameters.end(),
                                     [&](const auto& p) { return p.name == parameter.name; });
    index.parameters.push_back(named == parameters.end() ? IndexPlace::Summed() : named->place);
  }
  return index;
}

// The same dimension of input and output.
OpIndex Along(const GraphLayer& layer, absl::string_view name, int dimension) {
  return Index(layer, name, IndexPlace::Dimension(dimension), IndexPlace::Dimension(dimension));
}

// The names of the dimensions of one sample.
std::vector<std::string> DimensionNames(const Shape& sample) {
  if (sample.rank() == 3) return {"height", "width", "channels"};
  if (sample.rank() == 2) return {"tokens", "features"};
  return {"features"};
}

// Samples, and the first `dimensions` dimensions of a sample.
std::vector<OpIndex> Leading(const GraphLayer& layer, int dimensions) {
  std::vector<OpIndex> indices = {Along(layer, kSamples, 0)};
  const std::vector<std::string> names = DimensionNames(layer.input());
  for (int d = 0; d < dimensions; ++d) {
    indices.push_back(Along(layer, names[d], d + 1));
  }
  return indices;
}

int LastDimension(const GraphLayer& layer) { return layer.input().rank(); }

// The indices of all dimensions except the last one, along which the operation mixes elements.
std::vector<OpIndex> AllButLast(const GraphLayer& layer) {
  return Leading(layer, layer.input().rank() - 1);
}

bool HasHalo(int64_t reach, int64_t stride, int64_t padding) {
  return reach != 1 || stride != 1 || padding != 0;
}

std::vector<OpIndex> WindowIndices(const GraphLayer& layer) {
  std::vector<OpIndex> indices = Leading(layer, 2);
  const Window& window = layer.window;
  indices[kHeight].halo =
      HasHalo(window.reach_height(), window.stride_height, window.padding_height);
  indices[kWidth].halo = HasHalo(window.reach_width(), window.stride_width, window.padding_width);
  return indices;
}

// y = W x: the two sides of a matrix, which is parameter "weight" with the sides as its first two
// dimensions; `last` is the dimension of x and y that it maps.
void AddMatrixSides(const GraphLayer& layer, int last, std::vector<OpIndex>& indices) {
  indices.push_back(
      Index(layer, "out", IndexPlace::Summed(), IndexPlace::Dimension(last),
            {{"weight", IndexPlace::Dimension(0)}, {"bias", IndexPlace::Dimension(0)}}));
  indices.push_back(Index(layer, "in", IndexPlace::Dimension(last), IndexPlace::Summed(),
                          {{"weight", IndexPlace::Dimension(1)}, {"bias", IndexPlace::Same()}}));
}

std::vector<OpIndex> ConvolutionIndices(const GraphLayer& layer) {
  std::vector<OpIndex> indices = WindowIndices(layer);
  if (layer.groups == 1) {
    AddMatrixSides(layer, kChannels, indices);
    return indices;
  }
  indices.push_back(
      Index(layer, "groups", IndexPlace::Dimension(kChannels), IndexPlace::Dimension(kChannels),
            {{"weight", IndexPlace::Dimension(0)}, {"bias", IndexPlace::Dimension(0)}}));
  indices.back().divisible = layer.groups;
  return indices;
}

std::vector<OpIndex> PoolIndices(const GraphLayer& layer) {
  std::vector<OpIndex> indices = WindowIndices(layer);
  indices.push_back(Along(layer, "channels", kChannels));
  return indices;
}

std::vector<OpIndex> GlobalPoolIndices(const GraphLayer& layer) {
  return {Along(layer, kSamples, 0),
          Index(layer, "height", IndexPlace::Dimension(kHeight), IndexPlace::Summed()),
          Index(layer, "width", IndexPlace::Dimension(kWidth), IndexPlace::Summed()),
          Index(layer, "channels", IndexPlace::Dimension(kChannels), IndexPlace::Dimension(1))};
}

std::vector<OpIndex> FullyConnectedIndices(const GraphLayer& layer) {
  if (layer.shares_weight) return {Along(layer, kSamples, 0)};
  std::vector<OpIndex> indices = AllButLast(layer);
  AddMatrixSides(layer, LastDimension(layer), indices);
  // Any class may be sampled, or be the label of any row.
  if (layer.sampled_classes > 0) {
    std::erase_if(indices, [](const OpIndex& index) { return index.name == "out"; });
  }
  return indices;
}

std::vector<OpIndex> BatchNormIndices(const GraphLayer& layer) {
  std::vector<OpIndex> indices = Leading(layer, layer.input().rank());
  for (IndexPlace& place : indices.back().parameters) place = IndexPlace::Dimension(0);
  return indices;
}

// Flattening is channel by channel, so a part of the channels is a part of the features.
std::vector<OpIndex> FlattenIndices(const GraphLayer& layer) {
  const int last = LastDimension(layer);
  std::vector<OpIndex> indices = {
      Along(layer, kSamples, 0),
      Index(layer, "channels", IndexPlace::Dimension(last), IndexPlace::Dimension(1))};
  indices.back().divisible = layer.input()[last - 1];
  return indices;
}

// One factor per channel is replicated along the image, so its gradient is a partial sum.
std::vector<OpIndex> MultiplyIndices(const GraphLayer& layer) {
  std::vector<OpIndex> indices = Leading(layer, layer.input().rank());
  if (layer.input(1) == layer.input(0)) return indices;
  indices[kHeight].inputs[1] = indices[kWidth].inputs[1] = IndexPlace::Summed();
  indices[kChannels].inputs[1] = IndexPlace::Dimension(1);
  return indices;
}

std::vector<OpIndex> ToTokensIndices(const GraphLayer& layer) {
  return {Along(layer, kSamples, 0),
          Index(layer, "channels", IndexPlace::Dimension(kChannels), IndexPlace::Dimension(2))};
}

std::vector<OpIndex> ClassTokenIndices(const GraphLayer& layer) {
  return {Along(layer, kSamples, 0),
          Index(layer, "features", IndexPlace::Dimension(2), IndexPlace::Dimension(2),
                {{"weight", IndexPlace::Dimension(0)}})};
}

std::vector<OpIndex> TakeTokenIndices(const GraphLayer& layer) {
  return {Along(layer, kSamples, 0), Index(layer, "features", IndexPlace::Dimension(2),
                                           IndexPlace::Dimension(layer.output.rank()))};
}

std::vector<OpIndex> BiasIndices(const GraphLayer& layer) {
  const int last = LastDimension(layer);
  const int parameter_rank = layer.parameters[0].shape.rank();
  return {Along(layer, kSamples, 0),
          Index(layer, "features", IndexPlace::Dimension(last), IndexPlace::Dimension(last),
                {{"bias", IndexPlace::Dimension(parameter_rank - 1)}})};
}

std::vector<OpIndex> EmbeddingIndices(const GraphLayer& layer) {
  if (layer.shares_weight) return {Along(layer, kSamples, 0)};
  return {Along(layer, kSamples, 0),
          Index(layer, "tokens", IndexPlace::Dimension(1), IndexPlace::Dimension(1),
                {{"positions", IndexPlace::Dimension(0)}}),
          Index(layer, "features", IndexPlace::Summed(), IndexPlace::Dimension(2),
                {{"weight", IndexPlace::Dimension(1)}, {"positions", IndexPlace::Dimension(1)}})};
}

std::vector<OpIndex> AttentionIndices(const GraphLayer& layer) {
  return {Along(layer, kSamples, 0),
          Index(layer, "heads", IndexPlace::Summed(), IndexPlace::Summed(),
                {{"qkv_weight", IndexPlace::Dimension(0)},
                 {"qkv_bias", IndexPlace::Dimension(0)},
                 {"out_weight", IndexPlace::Dimension(1)},
                 {"out_bias", IndexPlace::Same()}})};
}

// The loss is one number, and every rank computes an addend of it.
std::vector<OpIndex> LossIndices(const GraphLayer& layer) {
  std::vector<OpIndex> indices = AllButLast(layer);
  for (OpIndex& index : indices) index.output = IndexPlace::Summed();
  return indices;
}

// Puts axes into the mesh's order and omits axes of one rank.
Axes Ordered(const Mesh& mesh, const Axes& axes) {
  Axes ordered;
  for (const Mesh::Axis& axis : mesh.axes()) {
    if (axis.size > 1 && std::find(axes.begin(), axes.end(), axis.name) != axes.end()) {
      ordered.push_back(axis.name);
    }
  }
  return ordered;
}

std::vector<AxisCoordinate> InMeshOrder(const Mesh& mesh, const std::vector<AxisCoordinate>& at) {
  std::vector<AxisCoordinate> ordered;
  for (const Mesh::Axis& axis : mesh.axes()) {
    std::copy_if(at.begin(), at.end(), std::back_inserter(ordered),
                 [&](const auto& each) { return axis.size > 1 && each.axis == axis.name; });
  }
  return ordered;
}

Axes Dividing(const Mesh& mesh, const Axes& axes) {
  Axes dividing;
  std::copy_if(axes.begin(), axes.end(), std::back_inserter(dividing),
               [&](const std::string& axis) { return mesh.Size(axis) > 1; });
  return dividing;
}

// The layout of one tensor under the splits. Stores in `sums` the axes over which the tensor is a
// partial sum.
Layout LayoutOf(const Mesh& mesh, const std::vector<IndexSplit>& splits,
                const std::vector<IndexPlace>& places, int dimensions, Axes& sums) {
  Layout layout;
  layout.split.resize(dimensions);
  for (size_t s = 0; s < splits.size(); ++s) {
    const Axes axes = Dividing(mesh, splits[s].axes);
    if (places[s].kind == IndexPlace::Kind::kDimension) {
      layout.split[places[s].dimension] = axes;
    } else if (places[s].kind == IndexPlace::Kind::kSummed) {
      sums.insert(sums.end(), axes.begin(), axes.end());
    }
  }
  sums = Ordered(mesh, sums);
  return layout;
}

absl::Status Bad(const GraphLayer& layer, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("layer '", layer.name, "': ", what));
}

absl::Status CheckAxis(const GraphLayer& layer, const Mesh& mesh, const std::string& axis,
                       std::set<std::string>& used) {
  const bool known = std::any_of(mesh.axes().begin(), mesh.axes().end(),
                                 [&](const Mesh::Axis& a) { return a.name == axis; });
  if (!known) {
    return Bad(layer, absl::StrCat("axis '", absl::CEscape(axis), "' is not in the mesh ",
                                   mesh.ToString()));
  }
  if (!used.insert(axis).second) return Bad(layer, absl::StrCat("axis '", axis, "' twice"));
  return absl::OkStatus();
}

absl::Status CheckAxes(const GraphLayer& layer, const Mesh& mesh, const IndexSplit& split,
                       std::set<std::string>& used) {
  for (const std::string& axis : split.axes) {
    CADRE_RETURN_IF_ERROR(CheckAxis(layer, mesh, axis, used));
  }
  return absl::OkStatus();
}

absl::Status CheckCoordinate(const GraphLayer& layer, const Mesh& mesh, const AxisCoordinate& at,
                             std::set<std::string>& used) {
  CADRE_RETURN_IF_ERROR(CheckAxis(layer, mesh, at.axis, used));
  const int size = mesh.Size(at.axis);
  if (at.coordinate >= 0 && at.coordinate < size) return absl::OkStatus();
  return Bad(layer, absl::StrCat("there is no coordinate ", ToText({at}), "; axis ", at.axis,
                                 " has the coordinates 0 to ", size - 1));
}

// The rows of the input that outputs [begin, end) depend on, clipped to the image.
void Widen(int64_t begin, int64_t end, int64_t extent, int64_t reach, int64_t stride,
           int64_t padding, int64_t& from, int64_t& to) {
  if (begin >= end) {
    to = from;
    return;
  }
  from = std::clamp<int64_t>(begin * stride - padding, 0, extent);
  to = std::clamp<int64_t>((end - 1) * stride - padding + reach, from, extent);
}

bool IsWindowed(LayerKind kind) {
  return kind == LayerKind::kConvolution || kind == LayerKind::kMaxPool ||
         kind == LayerKind::kAveragePool;
}

}  // namespace

absl::string_view IndexOfParallelism(v1::LayerPin::Parallelism parallelism) {
  switch (parallelism) {
    case v1::LayerPin::DATA:
      return "samples";
    case v1::LayerPin::MODEL:
      return "out";
    case v1::LayerPin::MODEL_IN:
      return "in";
    case v1::LayerPin::DOMAIN:
      return "height";
    default:
      return "";
  }
}

std::string ParallelismsOf(const GraphLayer* layer) {
  std::vector<std::string> names;
  for (int n = v1::LayerPin::DATA; n <= v1::LayerPin::DOMAIN; ++n) {
    const auto each = static_cast<v1::LayerPin::Parallelism>(n);
    if (layer == nullptr || HasIndex(*layer, IndexOfParallelism(each))) {
      names.push_back(EnumText(each));
    }
  }
  return absl::StrJoin(names, ", ");
}

bool HasIndex(const GraphLayer& layer, absl::string_view index) {
  const std::vector<OpIndex> indices = IndicesOf(layer);
  return std::any_of(indices.begin(), indices.end(),
                     [&](const OpIndex& each) { return each.name == index; });
}

std::vector<OpIndex> IndicesOf(const GraphLayer& layer) {
  switch (layer.kind) {
    case LayerKind::kConvolution:
      return ConvolutionIndices(layer);
    case LayerKind::kMaxPool:
    case LayerKind::kAveragePool:
      return PoolIndices(layer);
    case LayerKind::kGlobalAveragePool:
      return GlobalPoolIndices(layer);
    case LayerKind::kFullyConnected:
      return FullyConnectedIndices(layer);
    case LayerKind::kRelu:
    case LayerKind::kGelu:
    case LayerKind::kSigmoid:
    case LayerKind::kTanh:
    case LayerKind::kRelu6:
    case LayerKind::kHardSwish:
    case LayerKind::kHardSigmoid:
    case LayerKind::kSilu:
    case LayerKind::kDropout:
    case LayerKind::kAdd:
      return Leading(layer, layer.input().rank());
    case LayerKind::kMultiply:
      return MultiplyIndices(layer);
    case LayerKind::kToTokens:
      return ToTokensIndices(layer);
    case LayerKind::kClassToken:
      return ClassTokenIndices(layer);
    case LayerKind::kTakeToken:
      return TakeTokenIndices(layer);
    case LayerKind::kBias:
      return BiasIndices(layer);
    case LayerKind::kBatchNorm:
      return BatchNormIndices(layer);
    case LayerKind::kLocalResponseNorm:
    case LayerKind::kConcat:
    case LayerKind::kLayerNorm:
      return AllButLast(layer);
    case LayerKind::kFlatten:
      return FlattenIndices(layer);
    case LayerKind::kEmbedding:
      return EmbeddingIndices(layer);
    case LayerKind::kAttention:
      return AttentionIndices(layer);
    case LayerKind::kLstm:
    case LayerKind::kDotProductAttention:
      return {Along(layer, kSamples, 0)};
    case LayerKind::kSoftmaxCrossEntropy:
      return LossIndices(layer);
  }
  return {};
}

const std::vector<std::string>& LayerLayouts::axes(const std::string& index) const {
  // Never destroyed: safe to use during the destruction of static objects.
  static const auto& none = *new std::vector<std::string>();
  const auto split = std::find_if(splits.begin(), splits.end(),
                                  [&](const IndexSplit& s) { return s.index == index; });
  return split == splits.end() ? none : split->axes;
}

absl::StatusOr<LayerLayouts> LayOut(const GraphLayer& layer, const Mesh& mesh,
                                    std::vector<IndexSplit> splits,
                                    const std::vector<AxisCoordinate>& at) {
  const std::vector<OpIndex> indices = IndicesOf(layer);
  std::vector<const OpIndex*> split_indices;  // one per split
  std::set<std::string> names, used;
  for (const IndexSplit& split : splits) {
    const auto index = std::find_if(indices.begin(), indices.end(),
                                    [&](const OpIndex& i) { return i.name == split.index; });
    if (index == indices.end()) {
      if (layer.sampled_classes > 0 && split.index == "out") {
        return Bad(layer, "the loss samples its outputs, so they cannot be split");
      }
      return Bad(layer,
                 absl::StrCat("a ", LayerKindName(layer.kind), " has no index '", split.index,
                              "', only ", absl::StrJoin(indices, ", ", [](auto* out, auto& i) {
                                absl::StrAppend(out, i.name);
                              })));
    }
    if (!names.insert(split.index).second) {
      return Bad(layer, absl::StrCat("index '", split.index, "' is split twice"));
    }
    CADRE_RETURN_IF_ERROR(CheckAxes(layer, mesh, split, used));
    const int parts = mesh.Size(split.axes);
    if (index->divisible > 0 && index->divisible % parts != 0) {
      return Bad(layer, absl::StrCat(parts, " parts of index '", split.index,
                                     "' do not divide its ", index->divisible));
    }
    split_indices.push_back(&*index);
  }
  if (layer.shares_weight && mesh.Size(Ordered(mesh, {used.begin(), used.end()})) != mesh.ranks()) {
    return Bad(layer, "shares its weight, so every axis of the mesh must split its samples");
  }

  for (const AxisCoordinate& each : at)
    CADRE_RETURN_IF_ERROR(CheckCoordinate(layer, mesh, each, used));

  LayerLayouts layouts{
      .name = layer.name, .splits = std::move(splits), .at = InMeshOrder(mesh, at)};
  const auto lay_out = [&](int dimensions, const std::function<IndexPlace(const OpIndex&)>& place,
                           Axes& sums) {
    std::vector<IndexPlace> places;
    for (const OpIndex* index : split_indices) places.push_back(place(*index));
    Layout layout = LayoutOf(mesh, layouts.splits, places, dimensions, sums);
    layout.at = layouts.at;
    return layout;
  };
  for (size_t i = 0; i < layer.input_shapes.size(); ++i) {
    Axes sums;
    layouts.inputs.push_back(lay_out(
        layer.input_shapes[i].rank() + 1, [&](const OpIndex& o) { return o.inputs[i]; }, sums));
    layouts.input_gradients.push_back(layouts.inputs.back());
    layouts.input_gradients.back().partial_sum = std::move(sums);
  }
  Axes output_sums;
  layouts.output = lay_out(
      layer.output.rank() + 1, [](const OpIndex& o) { return o.output; }, output_sums);
  layouts.output.partial_sum = std::move(output_sums);
  for (size_t p = 0; p < layer.parameters.size(); ++p) {
    Axes sums;
    layouts.parameters.push_back(lay_out(
        layer.parameters[p].shape.rank(), [&](const OpIndex& o) { return o.parameters[p]; }, sums));
    layouts.gradient_sums.push_back(std::move(sums));
  }
  return layouts;
}

Box NeededInput(const GraphLayer& layer, int i, const Box& input_part, const Box& output_box) {
  if (!IsWindowed(layer.kind)) return input_part;
  Box needed = input_part;
  const Window& window = layer.window;
  const auto widen = [&](int dim, int64_t reach, int64_t stride, int64_t padding) {
    const int64_t extent = layer.input(i)[dim - 1];
    const bool whole = input_part.begin[dim] == 0 && input_part.end[dim] == extent &&
                       output_box.begin[dim] == 0 && output_box.end[dim] == layer.output[dim - 1];
    if (whole) return;
    Widen(output_box.begin[dim], output_box.end[dim], extent, reach, stride, padding,
          needed.begin[dim], needed.end[dim]);
  };
  widen(kHeight, window.reach_height(), window.stride_height, window.padding_height);
  widen(kWidth, window.reach_width(), window.stride_width, window.padding_width);
  return needed;
}

std::vector<std::vector<IndexSplit>> LegalSplits(const GraphLayer& layer, const Mesh& mesh) {
  const std::vector<OpIndex> indices = IndicesOf(layer);
  // One list of axes per index, grown axis by axis.
  std::vector<std::vector<Axes>> given = {std::vector<Axes>(indices.size())};
  for (const Mesh::Axis& axis : mesh.axes()) {
    if (axis.size == 1) continue;
    const size_t before = given.size();
    for (size_t g = 0; g < before; ++g) {
      for (size_t i = 0; i < indices.size(); ++i) {
        // At every place among the axes that the index has already.
        for (size_t at = 0; at <= given[g][i].size(); ++at) {
          given.push_back(given[g]);
          Axes& axes = given.back()[i];
          axes.insert(axes.begin() + at, axis.name);
        }
      }
    }
  }
  std::vector<std::vector<IndexSplit>> legal;
  for (const std::vector<Axes>& axes : given) {
    std::vector<IndexSplit> splits;
    for (size_t i = 0; i < indices.size(); ++i) {
      if (!axes[i].empty()) splits.push_back({indices[i].name, axes[i]});
    }
    if (LayOut(layer, mesh, splits).ok()) legal.push_back(std::move(splits));
  }
  return legal;
}

}  // namespace cadre
