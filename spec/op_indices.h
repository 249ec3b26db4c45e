// The indices of an operation: what it runs over, and what becomes of each tensor when mesh axes
// split an index. One table (op_indices.cc); planner and engine both read it, and every way to give
// the mesh's axes to indices of it is a legal plan for the layer.
//
//   operation              indices
//   convolution            samples, height*, width*, out, in         (groups > 1: samples, height*,
//                                                                    width*, groups)
//   max/average pool       samples, height*, width*, channels
//   global average pool    samples, height+, width+, channels
//   fully connected        samples, (tokens,) out, in
//   relu, gelu, sigmoid,   samples and every other dimension
//   tanh, dropout, add
//   batch norm             samples, height, width, channels
//   local response norm    samples, height, width
//   concat                 samples, height, width (tokens)
//   flatten                samples, channels (parts must divide the channels)
//   embedding              samples, tokens, features
//   layer norm             samples, tokens
//   attention              samples, heads
//   softmax cross-entropy  samples, (tokens)
//
// * neighbours' elements are needed at the borders: a halo.  + the output is a partial sum; so it
// is where `in` and `heads` are split.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "spec/graph.h"
#include "tensor/box.h"
#include "tensor/layout.h"
#include "tensor/mesh.h"

namespace cadre {

// Where an index stands in a tensor, if it is one of its dimensions; 0 is the samples.
struct IndexPlace {
  enum class Kind {
    kDimension,
    // Not a dimension: what is computed under a split is one addend of the whole. An output is a
    // partial sum; so is the gradient of an input, and of a parameter.
    kSummed,
    // Not a dimension, and the gradient is the same on all ranks (a bias under a split of `in`).
    kSame,
  };
  Kind kind = Kind::kSummed;
  int dimension = 0;

  static IndexPlace Dimension(int d) { return {Kind::kDimension, d}; }
  static IndexPlace Summed() { return {Kind::kSummed, 0}; }
  static IndexPlace Same() { return {Kind::kSame, 0}; }
  friend bool operator==(const IndexPlace&, const IndexPlace&) = default;
};

struct OpIndex {
  std::string name;
  // One per input, and one per parameter of the layer.
  std::vector<IndexPlace> inputs;
  IndexPlace output;
  std::vector<IndexPlace> parameters;
  // Parts into which it is split must divide this; 0: any number.
  int64_t divisible = 0;
  // A part of the output needs more of the input than the same part of it.
  bool halo = false;
};

std::vector<OpIndex> IndicesOf(const GraphLayer& layer);

// An index given to mesh axes, outermost first.
struct IndexSplit {
  std::string index;
  std::vector<std::string> axes;
  friend bool operator==(const IndexSplit&, const IndexSplit&) = default;
};

// What a split of a layer's indices makes of its tensors.
struct LayerLayouts {
  std::string name;
  std::vector<IndexSplit> splits;
  // Complete: never a partial sum.
  std::vector<Layout> inputs;
  // May be a partial sum.
  Layout output;
  // As `inputs`, with the axes over which the layer leaves the gradient a partial sum.
  std::vector<Layout> input_gradients;
  std::vector<Layout> parameters;
  // By parameter: axes over which the gradient is a partial sum, in the mesh's order. Over the
  // axes that neither split the parameter nor are named here, it is the same on all ranks.
  std::vector<std::vector<std::string>> gradient_sums;

  // Axes of an index; empty where it is not split.
  const std::vector<std::string>& axes(const std::string& index) const;
};

// Errors: InvalidArgument naming the layer: an index or axis that is not there or is used twice, or
// parts that do not divide what they must.
absl::StatusOr<LayerLayouts> LayOut(const GraphLayer& layer, const Mesh& mesh,
                                    std::vector<IndexSplit> splits);

// [samples, then the sample's shape].
Shape BatchShape(int64_t samples, const Shape& sample);

// What input `i` must hold for the layer to compute `output_box` of its output: the part that the
// layout says, widened by the halo. Boxes are of whole batches. `input_part`: LocalBox of the
// input's layout on the same rank.
Box NeededInput(const GraphLayer& layer, int i, const Box& input_part, const Box& output_box);

// Every split of the layer's indices over the mesh's axes, in every order where several split one
// index; axes of size 1 stay unused. The one without splits is among them. For tests and search.
std::vector<std::vector<IndexSplit>> LegalSplits(const GraphLayer& layer, const Mesh& mesh);

}  // namespace cadre
