// A walk over the elements of a box in two memories at once, as loops with a step in each. How
// boxes, runs and pieces of a batch are described to own kernels.
//
// Values; thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace cadre {

struct NestLoop {
  int64_t extent = 0, a_step = 0, b_step = 0;
};

// Innermost last, extents > 0. The walk begins at a_begin and b_begin.
struct NestLoops {
  std::vector<NestLoop> loops;
  int64_t a_begin = 0, b_begin = 0;
};

}  // namespace cadre
