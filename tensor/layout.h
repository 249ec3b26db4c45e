// How one tensor lies on a mesh: which axes split which dimension, and over which axes it is a sum
// that has not been taken. A value; data, model and domain parallelism are three of its values.
#pragma once

#include <string>
#include <vector>

#include "tensor/box.h"
#include "tensor/mesh.h"
#include "tensor/shape.h"

namespace cadre {

struct Layout {
  // Axes that split each dimension, outermost first; an empty list: replicated. May be shorter than
  // the tensor's rank: what is not named is replicated.
  std::vector<std::vector<std::string>> split;
  // Axes over whose ranks the tensor is the sum of what they hold.
  std::vector<std::string> partial_sum;
  // Where not empty, only ranks that stand at these coordinates hold anything (operator placement).
  struct Coordinate {
    std::string axis;
    int at = 0;
    friend bool operator==(const Coordinate&, const Coordinate&) = default;
  };
  std::vector<Coordinate> only;

  static Layout Replicated() { return {}; }
  // Splits dimension `dim` over `axes`.
  static Layout Split(int dim, std::vector<std::string> axes);

  // Axes of `dim`, empty where replicated.
  const std::vector<std::string>& axes(int dim) const;
  // Like "{0: data*model} + partial(model)"; "replicated" for the empty layout.
  std::string ToString() const;

  // Equal up to trailing replicated dimensions.
  friend bool operator==(const Layout& a, const Layout& b);
};

// Part i of n elements cut into `parts` near-equal parts: [n * i / parts, n * (i + 1) / parts).
// This one rule is used for samples, features, slices and shards alike, so that they agree.
int64_t PartBegin(int64_t n, int64_t i, int64_t parts);

// The part of a tensor of `shape` that `rank` holds; empty on ranks outside `only`.
// Requires: every axis of the layout splits at most one dimension.
Box LocalBox(const Shape& shape, const Layout& layout, const Mesh& mesh, int rank);

}  // namespace cadre
