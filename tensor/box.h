// An axis-aligned region of a tensor in coordinates of the whole tensor, and copies between
// regions.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensor/shape.h"
#include "tensor/values.h"

namespace cadre {

// Elements with begin[d] <= index[d] < end[d].
struct Box {
  std::vector<int64_t> begin;
  std::vector<int64_t> end;

  // All elements of a tensor of `shape`.
  static Box Whole(const Shape& shape);
  Shape shape() const;
  bool empty() const;
  std::string ToString() const;
  friend bool operator==(const Box&, const Box&) = default;
};

// Requires: equal numbers of dimensions. The result may be empty.
Box Intersect(const Box& a, const Box& b);

// Copies the elements of `region` from a row-major tensor on the host that holds `from_box` to one
// that holds `to_box`. Requires: region lies inside both boxes; the views have the sizes of their
// boxes, and one type.
void CopyBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
             const Box& region);

// The same, but adds to the elements of `to`, and rounds each sum of bf16.
void AddBox(ConstValues from, const Box& from_box, Values to, const Box& to_box, const Box& region);

// Offset of `region` in a row-major tensor that holds `box`; nullopt if the elements of the region
// are not contiguous there. Requires: region lies inside box and is not empty.
std::optional<int64_t> RunIn(const Box& region, const Box& box);

}  // namespace cadre
