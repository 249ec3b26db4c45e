// A walk over the elements of a box in two memories at once: nested loops with steps for each.
//
// A value, passed to kernels. For *.cu only.
#pragma once

#include <cstdint>
#include <vector>

#include "glog/logging.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/nest_loops.h"

namespace cadre {

// Innermost loop last. An element is a group of neighbours where the loops were Grouped.
struct Nest {
  static constexpr int kMost = 6;
  int loops = 0;
  int64_t extent[kMost] = {};
  int64_t a_step[kMost] = {}, b_step[kMost] = {};
  int64_t a_begin = 0, b_begin = 0;
  int64_t elements = 1;
};

// Where element `index` of the walk lies.
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

// Loops that continue each other in both memories become one. Requires: what is left are kMost
// loops at most.
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
  CHECK_LE(kept.size(), size_t{Nest::kMost}) << "dimensions of a box";
  for (const NestLoop& loop : kept) {
    nest.extent[nest.loops] = loop.extent;
    nest.a_step[nest.loops] = loop.a_step;
    nest.b_step[nest.loops++] = loop.b_step;
  }
  return nest;
}

// The innermost elements lie side by side in both, in whole groups, and every group of memory `a`
// (and `b`, if asked) begins at a multiple of the group.
inline bool CanGroup(const Nest& nest, int group, bool b_too) {
  const int inner = nest.loops - 1;
  if (nest.a_step[inner] != 1 || nest.b_step[inner] != 1) return false;
  if (nest.extent[inner] % group != 0 || nest.a_begin % group != 0) return false;
  if (b_too && nest.b_begin % group != 0) return false;
  for (int loop = 0; loop < inner; ++loop) {
    if (nest.a_step[loop] % group != 0) return false;
    if (b_too && nest.b_step[loop] % group != 0) return false;
  }
  return true;
}

// The same walk in groups; steps still count elements. Requires: CanGroup.
inline Nest Grouped(Nest nest, int group) {
  const int inner = nest.loops - 1;
  nest.extent[inner] /= group;
  nest.a_step[inner] = group;
  nest.b_step[inner] = group;
  nest.elements /= group;
  return nest;
}

}  // namespace cadre
