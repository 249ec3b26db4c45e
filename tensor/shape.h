// The extents of a tensor, outermost dimension first. A value.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace cadre {

class Shape {
 public:
  Shape() = default;
  // Requires: no negative extent. A zero extent is legal, since a rank's part may be empty.
  Shape(std::initializer_list<int64_t> dims) : dims_(dims) {}
  explicit Shape(std::vector<int64_t> dims) : dims_(std::move(dims)) {}

  int rank() const { return static_cast<int>(dims_.size()); }
  int64_t operator[](int i) const { return dims_[i]; }
  const std::vector<int64_t>& dims() const { return dims_; }
  // 1 for a scalar (no dimensions).
  int64_t elements() const;
  // Like "[64, 1, 28, 28]".
  std::string ToString() const;

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::vector<int64_t> dims_;
};

// [samples, dimensions of the sample].
Shape BatchShape(int64_t samples, const Shape& sample);

}  // namespace cadre
