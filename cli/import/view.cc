#include "cli/import/view.h"

#include <algorithm>

#include "glog/logging.h"

namespace cadre {
namespace {

// Appends a factor to a dimension and keeps the dimension's form: sizes above 1, neighbors merged
// where the outer one continues the inner one.
void Append(std::vector<Factor>& dim, Factor factor) {
  if (factor.size == 1) return;
  if (!dim.empty() && dim.back().stride == factor.size * factor.stride) {
    dim.back() = {dim.back().size * factor.size, factor.stride};
  } else {
    dim.push_back(factor);
  }
}

}  // namespace

int64_t ProductOf(const std::vector<int64_t>& extents) {
  int64_t product = 1;
  for (const int64_t extent : extents) product *= extent;
  return product;
}

bool View::IsPossible(const std::vector<int64_t>& dims) {
  if (dims.size() > kMaxDims) return false;
  int64_t elements = 1;
  for (const int64_t dim : dims) {
    if (dim < 0 || dim > kMaxElements) return false;
    if (dim > 0 && elements > kMaxElements / dim) return false;
    elements *= std::max<int64_t>(dim, 1);
  }
  return true;
}

View::View(const std::vector<int64_t>& dims) : dims_(dims.size()) {
  int64_t stride = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    Append(dims_[d], {dims[d], stride});
    stride *= dims[d];
  }
}

View::View(const std::vector<Factor>& dims, int64_t offset) : dims_(dims.size()), offset_(offset) {
  for (size_t d = 0; d < dims.size(); ++d) Append(dims_[d], dims[d]);
}

int64_t View::size(int d) const {
  int64_t size = 1;
  for (const Factor& factor : dims_[d]) size *= factor.size;
  return size;
}

std::vector<int64_t> View::sizes() const {
  std::vector<int64_t> sizes;
  for (int d = 0; d < rank(); ++d) sizes.push_back(size(d));
  return sizes;
}

int64_t View::elements() const { return ProductOf(sizes()); }

std::vector<Factor> View::FactorsOf(int first, int end) const {
  std::vector<Factor> all;
  for (int d = first; d < end; ++d) {
    for (const Factor& factor : dims_[d]) Append(all, factor);
  }
  return all;
}

bool View::IsWhole() const {
  const std::vector<Factor> all = FactorsOf(0, rank());
  return offset_ == 0 && (all.empty() || (all.size() == 1 && all[0].stride == 1));
}

View View::Transposed(const std::vector<int64_t>& order) const {
  View view;
  view.offset_ = offset_;
  for (const int64_t d : order) view.dims_.push_back(dims_[d]);
  return view;
}

std::optional<View> View::Reshaped(const std::vector<int64_t>& sizes) const {
  if (!IsPossible(sizes) || ProductOf(sizes) != elements()) return std::nullopt;
  View view;
  view.offset_ = offset_;
  view.dims_.resize(sizes.size());
  if (elements() == 0) return View(sizes);
  std::vector<Factor> left = FactorsOf(0, rank());
  std::reverse(left.begin(), left.end());  // the next factor is at the back
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t rest = sizes[d];
    while (rest > 1) {
      Factor& next = left.back();
      if (next.size <= rest) {
        if (rest % next.size != 0) return std::nullopt;
        rest /= next.size;
        Append(view.dims_[d], next);
        left.pop_back();
        continue;
      }
      if (next.size % rest != 0) return std::nullopt;
      next.size /= rest;
      Append(view.dims_[d], {rest, next.stride * next.size});
      rest = 1;
    }
  }
  return view;
}

std::optional<View> View::Sliced(int d, int64_t begin, int64_t end) const {
  if (begin < 0 || end > size(d) || begin > end) return std::nullopt;
  if (begin == 0 && end == size(d)) return *this;
  View view = *this;
  if (end - begin == 1) {
    view = Selected(d, begin);
    view.dims_.insert(view.dims_.begin() + d, std::vector<Factor>());
    return view;
  }
  if (dims_[d].size() != 1) return std::nullopt;
  view.offset_ += begin * dims_[d][0].stride;
  view.dims_[d][0].size = end - begin;
  return view;
}

View View::Selected(int d, int64_t index) const {
  CHECK(index >= 0 && index < size(d)) << index << " of " << size(d);
  View view = *this;
  for (auto factor = dims_[d].rbegin(); factor != dims_[d].rend(); ++factor) {
    view.offset_ += index % factor->size * factor->stride;
    index /= factor->size;
  }
  view.dims_.erase(view.dims_.begin() + d);
  return view;
}

std::optional<View> View::Expanded(const std::vector<int64_t>& sizes) const {
  if (!IsPossible(sizes)) return std::nullopt;
  // As in NumPy, dimensions are aligned at the end, and 1 on either side adapts to the other.
  const size_t rank_after = std::max(sizes.size(), dims_.size());
  View view;
  view.offset_ = offset_;
  for (size_t back = rank_after; back > 0; --back) {
    const int64_t wanted = back <= sizes.size() ? sizes[sizes.size() - back] : 1;
    const int d = rank() - static_cast<int>(back);
    const int64_t here = d >= 0 ? size(d) : 1;
    if (wanted == here || wanted == 1) {
      view.dims_.push_back(d >= 0 ? dims_[d] : std::vector<Factor>());
    } else if (here == 1) {
      view.dims_.push_back({{wanted, 0}});
    } else {
      return std::nullopt;
    }
  }
  if (!IsPossible(view.sizes())) return std::nullopt;
  return view;
}

View View::Scaled(int64_t times, int64_t by) const {
  View view = *this;
  const auto scale = [&](int64_t& value) {
    CHECK_EQ(value * times % by, 0);
    value = value * times / by;
  };
  scale(view.offset_);
  for (std::vector<Factor>& dim : view.dims_) {
    for (Factor& factor : dim) scale(factor.stride);
  }
  return view;
}

View View::WithLast(Factor last) const {
  View view = *this;
  view.dims_.back().clear();
  Append(view.dims_.back(), last);
  return view;
}

std::vector<int64_t> View::Positions() const {
  const std::vector<Factor> factors = FactorsOf(0, rank());
  std::vector<int64_t> positions = {offset_};
  positions.reserve(elements());
  if (elements() == 0) return {};
  for (const Factor& factor : factors) {
    std::vector<int64_t> longer;
    longer.reserve(positions.size() * factor.size);
    for (const int64_t position : positions) {
      for (int64_t i = 0; i < factor.size; ++i) longer.push_back(position + i * factor.stride);
    }
    positions = std::move(longer);
  }
  return positions;
}

}  // namespace cadre
