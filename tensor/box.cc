// Copies between row-major tensors that hold different boxes of one tensor.
//
// A region is copied in runs: sequences of elements that are contiguous in both tensors. A run
// covers the inner dimensions in which the region spans both boxes, and one more dimension. An
// odometer over the other dimensions visits the runs in row-major order. The cost per run is two
// offsets, so a region of whole rows is copied at the speed of memory, and a region of single
// columns element by element.
#include "tensor/box.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "tensor/elements.h"

namespace cadre {
namespace {

int64_t Extent(const Box& box, size_t dim) { return box.end[dim] - box.begin[dim]; }

// Row-major offset, in the tensor that holds `box`, of the element at `index`.
int64_t Offset(const Box& box, const std::vector<int64_t>& index) {
  int64_t offset = 0;
  for (size_t d = 0; d < index.size(); ++d) {
    offset = offset * Extent(box, d) + index[d] - box.begin[d];
  }
  return offset;
}

bool Inside(const Box& inner, const Box& outer) {
  for (size_t d = 0; d < inner.begin.size(); ++d) {
    if (inner.begin[d] < outer.begin[d] || inner.end[d] > outer.end[d]) return false;
  }
  return inner.begin.size() == outer.begin.size();
}

// Advances `index` to the next position over the first `dims` dimensions of `region`, the last
// dimension fastest. Returns false if there is none.
bool Advance(const Box& region, size_t dims, std::vector<int64_t>& index) {
  for (size_t d = dims; d-- > 0;) {
    if (++index[d] < region.end[d]) return true;
    index[d] = region.begin[d];
  }
  return false;
}

// Calls `with_run(from, to, size)` for each contiguous row of the region, with the addresses of its
// first element in both tensors.
template <typename T, typename WithRun>
void ForEachRun(ConstValues from, const Box& from_box, Values to, const Box& to_box,
                const Box& region, const WithRun& with_run) {
  CHECK_EQ(std::ssize(from), from_box.shape().elements()) << from_box.ToString();
  CHECK_EQ(std::ssize(to), to_box.shape().elements()) << to_box.ToString();
  if (region.empty()) return;
  CHECK(Inside(region, from_box) && Inside(region, to_box))
      << region.ToString() << " in " << from_box.ToString() << " and " << to_box.ToString();

  // The longest run: the inner dimensions in which the region spans both boxes, and one more.
  size_t outer = region.begin.size();
  int64_t run = 1;
  while (outer > 0) {
    --outer;
    run *= Extent(region, outer);
    if (Extent(region, outer) != Extent(from_box, outer) ||
        Extent(region, outer) != Extent(to_box, outer)) {
      break;
    }
  }
  std::vector<int64_t> index = region.begin;
  do {
    with_run(Data<T>(from) + Offset(from_box, index), Data<T>(to) + Offset(to_box, index), run);
  } while (Advance(region, outer, index));
}

}  // namespace

Box Box::Whole(const Shape& shape) {
  return {.begin = std::vector<int64_t>(shape.dims().size(), 0), .end = shape.dims()};
}

Shape Box::shape() const {
  std::vector<int64_t> dims(begin.size());
  for (size_t d = 0; d < dims.size(); ++d) dims[d] = Extent(*this, d);
  return Shape(std::move(dims));
}

bool Box::empty() const {
  for (size_t d = 0; d < begin.size(); ++d) {
    if (begin[d] >= end[d]) return true;
  }
  return false;
}

std::string Box::ToString() const {
  std::string text = "[";
  for (size_t d = 0; d < begin.size(); ++d) {
    absl::StrAppend(&text, d == 0 ? "" : ", ", begin[d], ":", end[d]);
  }
  return text + "]";
}

Box Intersect(const Box& a, const Box& b) {
  CHECK_EQ(a.begin.size(), b.begin.size()) << a.ToString() << " and " << b.ToString();
  Box both = a;
  for (size_t d = 0; d < a.begin.size(); ++d) {
    both.begin[d] = std::max(a.begin[d], b.begin[d]);
    both.end[d] = std::max(both.begin[d], std::min(a.end[d], b.end[d]));
  }
  return both;
}

void CopyBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
             const Box& region) {
  ByType(to.type(), [&](auto zero) {
    using T = decltype(zero);
    ForEachRun<T>(from, from_box, to, to_box, region,
                  [](const T* in, T* out, size_t n) { std::memcpy(out, in, n * sizeof *in); });
  });
}

void AddBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
            const Box& region) {
  ByType(to.type(), [&](auto zero) {
    using T = decltype(zero);
    ForEachRun<T>(from, from_box, to, to_box, region,
                  [](const T* __restrict in, T* __restrict out, size_t n) {
                    for (size_t i = 0; i < n; ++i) out[i] = RoundedSum(out[i], in[i]);
                  });
  });
}

std::optional<int64_t> RunIn(const Box& region, const Box& box) {
  CHECK(!region.empty() && Inside(region, box)) << region.ToString() << " in " << box.ToString();
  // From the innermost dimension: whole dimensions, then a part of one, then single indices.
  bool whole_so_far = true;
  for (size_t d = region.begin.size(); d-- > 0;) {
    if (!whole_so_far && Extent(region, d) != 1) return std::nullopt;
    if (Extent(region, d) != Extent(box, d)) whole_so_far = false;
  }
  return Offset(box, region.begin);
}

}  // namespace cadre
