// The inputs that a window covers, and the windows that cover an input.
//
// Thread-safe (pure functions).
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/vector_loops.h"

namespace cadre {

// An interval [begin, end) along one dimension.
struct Reach {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

struct PoolingWindow {
  Reach rows, columns;
  int64_t size() const { return rows.size() * columns.size(); }
};

// The inputs inside the image that the window of output `out` covers. All functions here require
// dilation 1.
CADRE_INLINE Reach InsideReach(int64_t out, int64_t in_size, int64_t kernel, int64_t stride,
                               int64_t padding) {
  const int64_t first = out * stride - padding;
  const int64_t begin = std::clamp<int64_t>(first, 0, in_size);
  return {begin, std::clamp<int64_t>(first + kernel, begin, in_size)};
}

// The outputs whose windows cover input `in`: out * stride <= in + padding < out * stride + kernel.
CADRE_INLINE Reach CoveringReach(int64_t in, int64_t out_size, int64_t kernel, int64_t stride,
                                 int64_t padding) {
  const int64_t at = in + padding;
  const int64_t begin = at < kernel ? 0 : std::min((at - kernel) / stride + 1, out_size);
  return {begin, std::clamp<int64_t>(at / stride + 1, begin, out_size)};
}

CADRE_INLINE PoolingWindow InsideWindow(const WindowDims& d, int64_t out_row, int64_t out_column) {
  return {InsideReach(out_row, d.in_height, d.kernel_height, d.stride, d.pad_top),
          InsideReach(out_column, d.in_width, d.kernel_width, d.stride, d.pad_left)};
}

CADRE_INLINE PoolingWindow CoveringWindows(const WindowDims& d, int64_t in_row, int64_t in_column) {
  return {CoveringReach(in_row, d.out_height, d.kernel_height, d.stride, d.pad_top),
          CoveringReach(in_column, d.out_width, d.kernel_width, d.stride, d.pad_left)};
}

}  // namespace cadre
