// A strided view of the elements of a tensor, for operations that only rearrange elements.
//
// Each dimension of a view is a list of factors, outermost first: an index along the dimension is a
// number whose digits have the factors' sizes as bases, and each digit moves by its factor's
// stride. So transposing and reshaping in any order never copy: a reshape regroups the factors, and
// splits one where a new dimension ends within it.
//
// Values; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace cadre {

struct Factor {
  int64_t size = 1;
  int64_t stride = 0;
  friend bool operator==(const Factor&, const Factor&) = default;
};

class View {
 public:
  // Limits the elements and strides of a view, so that positions do not overflow.
  static constexpr int64_t kMaxElements = int64_t{1} << 40;
  static constexpr size_t kMaxDims = 16;

  View() = default;
  // A whole row-major tensor. Requires: IsPossible(dims).
  explicit View(const std::vector<int64_t>& dims);
  // A view with one factor in each dimension. Requires: IsPossible for the sizes.
  View(const std::vector<Factor>& dims, int64_t offset);
  // No extent is below 0, and the limits hold.
  static bool IsPossible(const std::vector<int64_t>& dims);

  int rank() const { return static_cast<int>(dims_.size()); }
  std::vector<int64_t> sizes() const;
  int64_t size(int d) const;
  int64_t elements() const;
  int64_t offset() const { return offset_; }
  // The factors of a dimension: none has size 1, and no two neighbors are contiguous.
  const std::vector<Factor>& factors(int d) const { return dims_[d]; }
  // The factors of several dimensions as if they were one.
  std::vector<Factor> FactorsOf(int first, int end) const;
  // Whether the view is a row-major tensor of these elements from position 0 on.
  bool IsWhole() const;

  // Requires: a permutation of the dimensions.
  View Transposed(const std::vector<int64_t>& order) const;
  // Nothing if the elements differ in number, or a dimension would end within an indivisible
  // factor.
  std::optional<View> Reshaped(const std::vector<int64_t>& sizes) const;
  // Elements [begin, end) along a dimension. Nothing if they are not evenly spaced.
  std::optional<View> Sliced(int d, int64_t begin, int64_t end) const;
  // Without dimension d. Requires: 0 <= index < size(d).
  View Selected(int d, int64_t index) const;
  // Repeats dimensions of size 1, and adds leading ones. Nothing if the sizes do not fit.
  std::optional<View> Expanded(const std::vector<int64_t>& sizes) const;
  // With all strides and the offset multiplied by `times` and divided by `by`, as for rows whose
  // size changes. Requires: the divisions are exact.
  View Scaled(int64_t times, int64_t by) const;
  // With the factors of the last dimension replaced by one.
  View WithLast(Factor last) const;

  // The position of each element, in row-major order of the view.
  std::vector<int64_t> Positions() const;

  friend bool operator==(const View&, const View&) = default;

 private:
  std::vector<std::vector<Factor>> dims_;
  int64_t offset_ = 0;
};

// The product of the extents.
int64_t ProductOf(const std::vector<int64_t>& extents);

}  // namespace cadre
