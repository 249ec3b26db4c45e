// The distribution of one tensor over the ranks of a mesh: the axes that split each dimension, and
// the axes over which the tensor is a partial sum. Data, model and domain parallelism are special
// cases. A value.
#pragma once

#include <string>
#include <vector>

#include "tensor/box.h"
#include "tensor/mesh.h"
#include "tensor/shape.h"

namespace cadre {

struct Layout {
  // Axes that split each dimension, outermost first. Empty, or missing at the end of the list: not
  // split.
  std::vector<std::vector<std::string>> split;
  // Axes over which the tensor is the sum of the values of the ranks.
  std::vector<std::string> partial_sum;
  // Only the ranks at these coordinates hold the tensor, in the mesh's order; empty: all ranks. The
  // axes neither split the tensor nor is it a partial sum over them.
  std::vector<AxisCoordinate> at;

  static Layout Replicated() { return {}; }
  // Splits dimension `dim` over `axes`.
  static Layout Split(int dim, std::vector<std::string> axes);

  // Axes of `dim`; may be empty.
  const std::vector<std::string>& axes(int dim) const;
  // Like "{0: data*model} + partial(model) on stage@1"; "replicated" for the empty layout.
  std::string ToString() const;

  // Equal up to trailing replicated dimensions.
  friend bool operator==(const Layout& a, const Layout& b);
};

// The first element of part i if n elements are split into `parts` near-equal parts: part i is [n *
// i / parts, n * (i + 1) / parts). All splits of samples, features, slices and shards use it.
int64_t PartBegin(int64_t n, int64_t i, int64_t parts);

// The region of a tensor of `shape` that `rank` holds; empty along dimension 0 if the rank is not
// at the layout's coordinates. Requires: every axis of the layout splits at most one dimension; a
// layout with coordinates has a shape of at least one dimension.
Box LocalBox(const Shape& shape, const Layout& layout, const Mesh& mesh, int rank);

}  // namespace cadre
