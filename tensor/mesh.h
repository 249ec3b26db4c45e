// The ranks of a group as a grid with named axes, outermost first. A value.
//
// rank = row-major index over the axes: in {data: 2, model: 3}, rank 4 is data 1, model 1.
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre {

// The names of the axes that plans use.
inline constexpr char kDataAxis[] = "data";
inline constexpr char kSpaceAxis[] = "space";
inline constexpr char kModelAxis[] = "model";
inline constexpr char kStageAxis[] = "stage";

// A coordinate of one axis.
struct AxisCoordinate {
  std::string axis;
  int coordinate = 0;
  friend auto operator<=>(const AxisCoordinate&, const AxisCoordinate&) = default;
};
// "stage@1, model@0".
std::string ToText(const std::vector<AxisCoordinate>& coordinates);

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
  // Ranks along the axis; 1 for unknown axes.
  int Size(absl::string_view axis) const;
  // Product of the sizes of several axes.
  int Size(const std::vector<std::string>& axes) const;
  // Coordinate of `rank` along the axis; 0 for unknown axes.
  int Coordinate(int rank, absl::string_view axis) const;
  // Row-major index of `rank` over several axes, in this order.
  int Coordinate(int rank, const std::vector<std::string>& axes) const;
  // Whether `rank` has all these coordinates.
  bool IsAt(int rank, const std::vector<AxisCoordinate>& coordinates) const;
  // The members of a collective over `axes`: the ranks that differ from `rank` only along `axes`,
  // including itself, ordered by Coordinate(., axes).
  std::vector<int> Peers(int rank, const std::vector<std::string>& axes) const;
  // Like "{data: 2, model: 3}".
  std::string ToString() const;

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  std::vector<Axis> axes_;
};

}  // namespace cadre
