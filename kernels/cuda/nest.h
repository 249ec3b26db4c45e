// A walk: a loop nest over the elements of a region that two buffers, `a` and `b`, hold. Each loop
// has an extent and, for each buffer, a step: the stride in elements. Kernels use walks to copy,
// add and drop elements of boxes (tensor/box.h).
//
// Plain values that are passed to kernels. Include only from *.cu.
#pragma once

#include <cstdint>
#include <vector>

#include "glog/logging.h"
#include "kernels/cuda/elements.h"
#include "tensor/box.h"

namespace cadre {

struct NestLoop {
  int64_t extent = 0, a_step = 0, b_step = 0;
};

// A walk as the host builds it. The innermost loop is last; extents are positive. The walk begins
// at elements a_begin and b_begin of the two buffers.
struct NestLoops {
  std::vector<NestLoop> loops;
  int64_t a_begin = 0, b_begin = 0;
};

// A walk as a kernel receives it, of fixed size. After Grouped, `elements` and the innermost extent
// count groups of neighbouring elements.
struct Nest {
  static constexpr int kMaxLoops = 6;
  int loops = 0;
  int64_t extent[kMaxLoops] = {};
  int64_t a_step[kMaxLoops] = {}, b_step[kMaxLoops] = {};
  int64_t a_begin = 0, b_begin = 0;
  int64_t elements = 1;
};

// Computes the positions of element `index` of the walk in both buffers.
__device__ inline void Locate(const Nest& nest, int64_t index, int64_t* a, int64_t* b) {
  int64_t in_a = nest.a_begin;
  int64_t in_b = nest.b_begin;
  for (int loop = nest.loops - 1; loop > 0; --loop) {
    int64_t rest;
    index = Divide(index, nest.extent[loop], &rest);
    in_a += rest * nest.a_step[loop];
    in_b += rest * nest.b_step[loop];
  }
  *a = in_a + index * nest.a_step[0];
  *b = in_b + index * nest.b_step[0];
}

// Merges neighbouring loops that are contiguous in both buffers. Requires: at most kMaxLoops loops
// remain.
inline Nest MakeNest(const NestLoops& walk) {
  Nest nest;
  nest.a_begin = walk.a_begin;
  nest.b_begin = walk.b_begin;
  std::vector<NestLoop> kept;
  for (const NestLoop& loop : walk.loops) {
    nest.elements *= loop.extent;
    if (loop.extent == 1) continue;
    if (!kept.empty() && kept.back().a_step == loop.extent * loop.a_step &&
        kept.back().b_step == loop.extent * loop.b_step) {
      kept.back() = {kept.back().extent * loop.extent, loop.a_step, loop.b_step};
    } else {
      kept.push_back(loop);
    }
  }
  if (kept.empty()) kept.push_back({.extent = 1, .a_step = 1, .b_step = 1});
  CHECK_LE(kept.size(), size_t{Nest::kMaxLoops}) << "dimensions of a box";
  for (const NestLoop& loop : kept) {
    nest.extent[nest.loops] = loop.extent;
    nest.a_step[nest.loops] = loop.a_step;
    nest.b_step[nest.loops++] = loop.b_step;
  }
  return nest;
}

inline int64_t BoxExtent(const Box& box, size_t d) { return box.end[d] - box.begin[d]; }

// Distance in elements between neighbours along each dimension of a row-major tensor that holds the
// box.
inline std::vector<int64_t> StepsOf(const Box& box) {
  std::vector<int64_t> steps(box.begin.size(), 1);
  for (size_t d = steps.size(); d-- > 1;) steps[d - 1] = steps[d] * BoxExtent(box, d);
  return steps;
}

inline bool BoxInside(const Box& inner, const Box& outer) {
  if (inner.begin.size() != outer.begin.size()) return false;
  for (size_t d = 0; d < inner.begin.size(); ++d) {
    if (inner.begin[d] < outer.begin[d] || inner.end[d] > outer.end[d]) return false;
  }
  return true;
}

// The walk over `region`, where a is a buffer that holds `from_box` and b one that holds `to_box`.
inline NestLoops WalkOf(const Box& from_box, const Box& to_box, const Box& region) {
  CHECK(BoxInside(region, from_box) && BoxInside(region, to_box))
      << region.ToString() << " in " << from_box.ToString() << " and " << to_box.ToString();
  const std::vector<int64_t> from_steps = StepsOf(from_box);
  const std::vector<int64_t> to_steps = StepsOf(to_box);
  NestLoops walk;
  for (size_t d = 0; d < region.begin.size(); ++d) {
    walk.loops.push_back({BoxExtent(region, d), from_steps[d], to_steps[d]});
    walk.a_begin += (region.begin[d] - from_box.begin[d]) * from_steps[d];
    walk.b_begin += (region.begin[d] - to_box.begin[d]) * to_steps[d];
  }
  return walk;
}

// Whether the innermost elements are contiguous in both buffers and form whole groups of `group`
// elements, and every group begins at a multiple of `group` in a and, with check_b, in b.
inline bool CanGroup(const Nest& nest, int group, bool check_b) {
  const int inner = nest.loops - 1;
  if (nest.a_step[inner] != 1 || nest.b_step[inner] != 1) return false;
  if (nest.extent[inner] % group != 0 || nest.a_begin % group != 0) return false;
  if (check_b && nest.b_begin % group != 0) return false;
  for (int loop = 0; loop < inner; ++loop) {
    if (nest.a_step[loop] % group != 0) return false;
    if (check_b && nest.b_step[loop] % group != 0) return false;
  }
  return true;
}

// The same walk over groups of elements; steps still count elements. Requires: CanGroup.
inline Nest Grouped(Nest nest, int group) {
  const int inner = nest.loops - 1;
  nest.extent[inner] /= group;
  nest.a_step[inner] = group;
  nest.b_step[inner] = group;
  nest.elements /= group;
  return nest;
}

}  // namespace cadre
