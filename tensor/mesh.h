// Names for the ranks of a group: a grid with named axes, outermost first. A value.
//
// rank = row-major index over the axes: in {data: 2, model: 3}, rank 4 is data 1, model 1.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre {

// The axes that Cadre's plans use.
inline constexpr char kDataAxis[] = "data";
inline constexpr char kSpaceAxis[] = "space";
inline constexpr char kModelAxis[] = "model";

class Mesh {
 public:
  struct Axis {
    std::string name;
    int size = 1;
    friend bool operator==(const Axis&, const Axis&) = default;
  };

  Mesh() = default;
  // Requires: names differ, sizes >= 1.
  explicit Mesh(std::vector<Axis> axes) : axes_(std::move(axes)) {}

  const std::vector<Axis>& axes() const { return axes_; }
  // Product of the sizes; 1 for a mesh without axes.
  int ranks() const;
  // Ranks along the axis; 1 for an axis that the mesh does not have.
  int Size(absl::string_view axis) const;
  // Product of the sizes of several axes.
  int Size(const std::vector<std::string>& axes) const;
  // Where `rank` stands on the axis; 0 for an axis that the mesh does not have.
  int Coordinate(int rank, absl::string_view axis) const;
  // Row-major index of `rank` over several axes, in the order given.
  int Coordinate(int rank, const std::vector<std::string>& axes) const;
  // The ranks that differ from `rank` only along `axes`, itself included, ordered by
  // Coordinate(., axes). These are the members of a collective over `axes`.
  std::vector<int> Peers(int rank, const std::vector<std::string>& axes) const;
  // Like "{data: 2, model: 3}".
  std::string ToString() const;

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  std::vector<Axis> axes_;
};

}  // namespace cadre
