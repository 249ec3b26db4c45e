// Layouts and meshes with numbers in place of names, so that the search can compare millions of
// them cheaply.
//
// A compact mesh lists the sizes of its axes, without axes of one rank; a compact layout lists, for
// each dimension, the numbers of the axes that split it, outermost first.
//
// Values; thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/layout.h"
#include "tensor/mesh.h"
#include "tensor/shape.h"

namespace cadre {

// Axes with more than one rank are numbered in the mesh's order; a mesh has at most so many.
inline constexpr int kMaxCompactAxes = 16;
using AxisSet = uint32_t;  // bit a: axis a

// A short list of axis numbers, four bits each.
struct AxisList {
  uint64_t packed = 0;
  int count = 0;

  int operator[](int i) const { return packed >> (4 * i) & 15; }
  void push_back(uint64_t axis) { packed |= axis << (4 * count++); }
  friend bool operator==(const AxisList&, const AxisList&) = default;
};

// Maximum number of dimensions of an activation, including the samples, which are the first.
inline constexpr int kMaxDimensions = 4;

struct CompactLayout {
  // By dimension.
  std::array<AxisList, kMaxDimensions> split;
  // The axes over which the tensor is a partial sum.
  AxisSet partial = 0;
  friend bool operator==(const CompactLayout&, const CompactLayout&) = default;
};

class CompactMesh {
 public:
  // Requires: at most kMaxCompactAxes axes of more than one rank.
  explicit CompactMesh(const Mesh& mesh);

  int axes() const { return std::ssize(sizes_); }
  int size(int axis) const { return sizes_[axis]; }
  const std::string& name(int axis) const { return names_[axis]; }
  // The number of an axis; -1 for unknown names and for axes of one rank.
  int Find(const std::string& name) const;
  // The product of the sizes of these axes.
  double Ranks(const AxisList& axes) const;
  double Ranks(AxisSet axes) const;

  // Requires: the layout belongs to this mesh and has at most kMaxDimensions dimensions.
  CompactLayout Compact(const Layout& layout) const;
  // In the mesh's order.
  std::vector<std::string> Names(AxisSet axes) const;

 private:
  std::vector<std::string> names_;
  std::vector<int> sizes_;
};

AxisSet SetOf(const AxisList& axes);
// The axes that split some dimension.
AxisSet SplittingAxes(const CompactLayout& layout);

// Extents of an activation of several samples. The number of samples may be a fraction.
struct Extents {
  int count = 0;
  std::array<double, kMaxDimensions> extent = {1, 1, 1, 1};
};
Extents ExtentsOf(double samples, const Shape& sample);

}  // namespace cadre
