#include "tensor/mesh.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre {

int Mesh::ranks() const {
  int product = 1;
  for (const Axis& axis : axes_) product *= axis.size;
  return product;
}

int Mesh::Size(absl::string_view name) const {
  for (const Axis& axis : axes_) {
    if (axis.name == name) return axis.size;
  }
  return 1;
}

int Mesh::Size(const std::vector<std::string>& axes) const {
  int product = 1;
  for (const std::string& name : axes) product *= Size(name);
  return product;
}

int Mesh::Coordinate(int rank, absl::string_view name) const {
  int stride = ranks();
  for (const Axis& axis : axes_) {
    stride /= axis.size;
    if (axis.name == name) return rank / stride % axis.size;
  }
  return 0;
}

int Mesh::Coordinate(int rank, const std::vector<std::string>& axes) const {
  int index = 0;
  for (const std::string& name : axes) index = index * Size(name) + Coordinate(rank, name);
  return index;
}

bool Mesh::IsAt(int rank, const std::vector<AxisCoordinate>& coordinates) const {
  return std::all_of(coordinates.begin(), coordinates.end(), [&](const AxisCoordinate& each) {
    return Coordinate(rank, each.axis) == each.coordinate;
  });
}

std::vector<int> Mesh::Peers(int rank, const std::vector<std::string>& axes) const {
  std::vector<int> peers;
  for (int other = 0; other < ranks(); ++other) {
    const bool same_elsewhere = std::all_of(axes_.begin(), axes_.end(), [&](const Axis& axis) {
      return std::find(axes.begin(), axes.end(), axis.name) != axes.end() ||
             Coordinate(other, axis.name) == Coordinate(rank, axis.name);
    });
    if (same_elsewhere) peers.push_back(other);
  }
  std::sort(peers.begin(), peers.end(),
            [&](int a, int b) { return Coordinate(a, axes) < Coordinate(b, axes); });
  return peers;
}

std::string Mesh::ToString() const {
  return absl::StrCat("{",
                      absl::StrJoin(axes_, ", ",
                                    [](std::string* out, const Axis& axis) {
                                      absl::StrAppend(out, axis.name, ": ", axis.size);
                                    }),
                      "}");
}

std::string ToText(const std::vector<AxisCoordinate>& coordinates) {
  return absl::StrJoin(coordinates, ", ", [](std::string* out, const AxisCoordinate& each) {
    absl::StrAppend(out, each.axis, "@", each.coordinate);
  });
}

}  // namespace cadre
