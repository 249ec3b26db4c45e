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

absl::StatusOr<OpIndex> IndexNamed(const GraphLayer& layer, const std::string& name) {
  const std::vector<OpIndex> indices = IndicesOf(layer);
  const auto index = std::find_if(indices.begin(), indices.end(),
                                  [&](const OpIndex& i) { return i.name == name; });
  if (index != indices.end()) return *index;
  if (layer.sampled_classes > 0 && name == "out") {
    return Bad(layer, "the loss samples its outputs, so they cannot be split");
  }
  return Bad(layer, absl::StrCat("a ", LayerKindName(layer.kind), " has no index '", name,
                                 "', only ", absl::StrJoin(indices, ", ", [](auto* out, auto& i) {
                                   absl::StrAppend(out, i.name);
                                 })));
}

// The index of each split. Errors: as LayOut.
absl::StatusOr<std::vector<OpIndex>> IndicesOfSplits(const GraphLayer& layer, const Mesh& mesh,
                                                     const std::vector<IndexSplit>& splits,
                                                     const std::vector<AxisCoordinate>& at) {
  std::vector<OpIndex> split_indices;
  std::set<std::string> names, used;
  for (const IndexSplit& split : splits) {
    CADRE_ASSIGN_OR_RETURN(OpIndex index, IndexNamed(layer, split.index));
    if (!names.insert(split.index).second) {
      return Bad(layer, absl::StrCat("index '", split.index, "' is split twice"));
    }
    CADRE_RETURN_IF_ERROR(CheckAxes(layer, mesh, split, used));
    const int parts = mesh.Size(split.axes);
    if (index.divisible > 0 && index.divisible % parts != 0) {
      return Bad(layer, absl::StrCat(parts, " parts of index '", split.index,
                                     "' do not divide its ", index.divisible));
    }
    split_indices.push_back(std::move(index));
  }
  if (layer.shares_weight && mesh.Size(Ordered(mesh, {used.begin(), used.end()})) != mesh.ranks()) {
    return Bad(layer, "shares its weight, so every axis of the mesh must split its samples");
  }
  for (const AxisCoordinate& each : at) {
    CADRE_RETURN_IF_ERROR(CheckCoordinate(layer, mesh, each, used));
  }
  return split_indices;
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
  return Describe(layer.kind).indices(layer);
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
  CADRE_ASSIGN_OR_RETURN(const std::vector<OpIndex> split_indices,
                         IndicesOfSplits(layer, mesh, splits, at));
  LayerLayouts layouts{
      .name = layer.name, .splits = std::move(splits), .at = InMeshOrder(mesh, at)};
  const auto lay_out = [&](int dimensions, const std::function<IndexPlace(const OpIndex&)>& place,
                           Axes& sums) {
    std::vector<IndexPlace> places;
    for (const OpIndex& index : split_indices) places.push_back(place(index));
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
  if (!Describe(layer.kind).has_window) return input_part;
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
  widen(1, window.reach_height(), window.stride_height, window.padding_height);
  widen(2, window.reach_width(), window.stride_width, window.padding_width);
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
