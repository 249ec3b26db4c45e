// A half-open interval of indices: rows of a batch, positions in the parameter order, elements of a
// buffer.
//
// A value; thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cadre {

// [begin, end); empty when end <= begin.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;

  constexpr int64_t size() const { return end - begin; }
  constexpr bool empty() const { return end <= begin; }
  constexpr bool contains(int64_t index) const { return begin <= index && index < end; }
  constexpr bool contains(const Interval& other) const {
    return begin <= other.begin && other.end <= end;
  }

  friend bool operator==(const Interval&, const Interval&) = default;
};

// The common indices; an empty interval (not necessarily Interval{}) if there are none.
constexpr Interval Intersect(const Interval& a, const Interval& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

}  // namespace cadre
