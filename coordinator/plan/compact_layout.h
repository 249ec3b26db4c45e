// Layouts and meshes without names: what the planner compares and counts by the million.
//
// A mesh is the sizes of its axes, those of one rank left out; a layout is, for each dimension, the
// numbers of the axes that split it, outermost first.
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

// Axes of a mesh that have more than one rank, by number.
inline constexpr int kMostCompactAxes = 16;
using AxisSet = uint32_t;  // bit a: axis a

// A short list of axis numbers.
struct AxisList {
  uint64_t packed = 0;
  int count = 0;

  int operator[](int i) const { return static_cast<int>(packed >> (4 * i)) & 15; }
  void push_back(int axis) { packed |= static_cast<uint64_t>(axis) << (4 * count++); }
  friend bool operator==(const AxisList&, const AxisList&) = default;
};

// Dimensions of an activation, samples first.
inline constexpr int kMostDimensions = 4;

struct CompactLayout {
  std::array<AxisList, kMostDimensions> split;
  AxisSet partial = 0;
  friend bool operator==(const CompactLayout&, const CompactLayout&) = default;
};

class CompactMesh {
 public:
  // Requires: at most kMostCompactAxes axes of more than one rank.
  explicit CompactMesh(const Mesh& mesh);

  int axes() const { return static_cast<int>(sizes_.size()); }
  int size(int axis) const { return sizes_[static_cast<size_t>(axis)]; }
  const std::string& name(int axis) const { return names_[static_cast<size_t>(axis)]; }
  // Number of a name; -1 for axes of one rank and names that are not there.
  int Find(const std::string& name) const;
  double Ranks(const AxisList& axes) const;
  double Ranks(AxisSet axes) const;

  // Requires: the layout is of this mesh, of at most kMostDimensions, and has no `only`.
  CompactLayout Compact(const Layout& layout) const;
  // In the mesh's order.
  std::vector<std::string> Names(AxisSet axes) const;

 private:
  std::vector<std::string> names_;
  std::vector<int> sizes_;
};

AxisSet SetOf(const AxisList& axes);
// Axes that split some dimension.
AxisSet PlacingAxes(const CompactLayout& layout);

// Extents of a batch of activations; samples may be a fraction (of a step's batch).
struct Extents {
  int count = 0;
  std::array<double, kMostDimensions> extent = {1, 1, 1, 1};

  double elements() const { return extent[0] * extent[1] * extent[2] * extent[3]; }
};
Extents ExtentsOf(double samples, const Shape& sample);

}  // namespace cadre
