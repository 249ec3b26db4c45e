// The indices that each operation loops over, and the layouts of its tensors if mesh axes split
// these indices. The planner and the workers use the same table. Every assignment of mesh axes to
// indices is a legal plan for the layer.
//
//   operation              indices
//   convolution            samples, height*, width*, out, in         (groups > 1: samples, height*,
//                                                                    width*, groups)
//   max/average pool       samples, height*, width*, channels
//   global average pool    samples, height+, width+, channels
//   fully connected        samples, (tokens,) out, in                (without `out` if the loss
//                                                                    samples its classes)
//   activations, dropout,  samples and every other dimension
//   add, multiply
//   batch norm             samples, height, width, channels
//   local response norm    samples, height, width
//   concat                 samples, height, width (tokens)
//   flatten                samples, channels (parts must divide the channels)
//   embedding              samples, tokens, features
//   layer norm             samples, tokens
//   bias                   samples, features
//   to tokens              samples, channels
//   class token            samples, features
//   take token             samples, features
//   attention              samples, heads
//   lstm                   samples
//   dot-product attention  samples
//   softmax cross-entropy  samples, (tokens)
//
// Layers that share a weight have no index but `samples`, which all axes of the mesh must split.
// Any other layer may be placed at coordinates of axes that do not split it.
//
// * split with a halo.  + the output is a partial sum, as for `in` and `heads`.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/graph.h"
#include "model/ops/operation.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/box.h"
#include "tensor/layout.h"
#include "tensor/mesh.h"

namespace cadre {

std::vector<OpIndex> IndicesOf(const GraphLayer& layer);

// Name of the index that a pin of this kind splits: "samples", "out", "in" or "height"; empty for
// other values.
absl::string_view IndexOfParallelism(v1::LayerPin::Parallelism parallelism);
// A list such as "data, model" of the parallelisms whose index the layer has; of all parallelisms
// if `layer` is null.
std::string ParallelismsOf(const GraphLayer* layer);
bool HasIndex(const GraphLayer& layer, absl::string_view index);

// An index split over mesh axes, outermost first.
struct IndexSplit {
  std::string index;
  std::vector<std::string> axes;
  friend bool operator==(const IndexSplit&, const IndexSplit&) = default;
};

// The layouts of a layer's tensors for a split of its indices.
struct LayerLayouts {
  std::string name;
  std::vector<IndexSplit> splits;
  // Only the ranks at these coordinates compute the layer; empty: all ranks. In the mesh's order,
  // without axes of one rank. All layouts below have the same coordinates.
  std::vector<AxisCoordinate> at;
  // Inputs are never partial sums.
  std::vector<Layout> inputs;
  // The output may be a partial sum.
  Layout output;
  // `inputs`, with the axes over which the gradient is a partial sum.
  std::vector<Layout> input_gradients;
  std::vector<Layout> parameters;
  // By parameter: axes over which the gradient is a partial sum, in the mesh's order. It is equal
  // on all ranks along axes that are neither listed here nor split the parameter.
  std::vector<std::vector<std::string>> gradient_sums;

  // Axes of an index; empty if it is not split.
  const std::vector<std::string>& axes(const std::string& index) const;
};

// The layouts that follow from the splits and coordinates. Errors: InvalidArgument with the layer's
// name for an unknown or repeated index or axis, a number of parts that violates `divisible`, or a
// coordinate that does not exist.
absl::StatusOr<LayerLayouts> LayOut(const GraphLayer& layer, const Mesh& mesh,
                                    std::vector<IndexSplit> splits,
                                    const std::vector<AxisCoordinate>& at = {});

// The box of input `i` that the layer requires to compute `output_box`: `input_part`, which is the
// LocalBox of the input's layout on the same rank, widened by the halo. All boxes include the
// samples.
Box NeededInput(const GraphLayer& layer, int i, const Box& input_part, const Box& output_box);

// All splits of the layer's indices over the mesh's axes, with every order of the axes of an index,
// and the case without splits. Axes of size 1 are not used.
std::vector<std::vector<IndexSplit>> LegalSplits(const GraphLayer& layer, const Mesh& mesh);

}  // namespace cadre
