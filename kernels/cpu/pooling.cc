// Pooling, plane by plane. Own loops rather than oneDNN's: its workspace does not say which of
// equal elements won, and our argmax must be the same in every back end.
#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/threads.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// Windows of 2 x 2, side by side: the common case, for which loops without branches are written.
bool IsTwoByTwo(const PoolingDims& d) { return d.kernel == 2 && d.stride == 2 && d.padding == 0; }

// Keeps `value` and its index if it beats the best so far; the first of equals stays.
inline void Challenge(float value, int32_t index, float& best, int32_t& at) {
  const bool wins = value > best;
  best = wins ? value : best;
  at = wins ? index : at;
}

void MaxForwardTwoByTwo(const PoolingDims& d, const float* __restrict x, float* __restrict y,
                        int32_t* __restrict argmax) {
  const auto width = static_cast<int32_t>(d.in_width);
  const auto out_width = static_cast<int32_t>(d.out_width);
  for (int32_t oh = 0; oh < d.out_height; ++oh) {
    const int32_t row = 2 * oh * width;
    const float* upper = x + row;
    const float* lower = upper + width;
    for (int32_t ow = 0; ow < out_width; ++ow) {
      const int32_t column = 2 * ow;
      float best = upper[column];
      int32_t at = row + column;
      Challenge(upper[column + 1], row + column + 1, best, at);
      Challenge(lower[column], row + width + column, best, at);
      Challenge(lower[column + 1], row + width + column + 1, best, at);
      y[ow] = best;
      argmax[ow] = at;
    }
    y += out_width;
    argmax += out_width;
  }
}

// Writes every element of the windows; what windows do not reach must be zero before.
void MaxBackwardTwoByTwo(const PoolingDims& d, const float* __restrict dy,
                         const int32_t* __restrict argmax, float* __restrict dx) {
  const auto width = static_cast<int32_t>(d.in_width);
  const auto out_width = static_cast<int32_t>(d.out_width);
  for (int32_t oh = 0; oh < d.out_height; ++oh) {
    const int32_t row = 2 * oh * width;
    float* upper = dx + row;
    float* lower = upper + width;
    for (int32_t ow = 0; ow < out_width; ++ow) {
      const int32_t column = 2 * ow;
      const int32_t won = argmax[ow] - row - column;
      const float passed = dy[ow];
      upper[column] = won == 0 ? passed : 0;
      upper[column + 1] = won == 1 ? passed : 0;
      lower[column] = won == width ? passed : 0;
      lower[column + 1] = won == width + 1 ? passed : 0;
    }
    dy += out_width;
    argmax += out_width;
  }
}

// The part of a window that lies inside the plane along one dimension: [begin, end).
struct Reach {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

Reach Inside(const PoolingDims& d, int64_t out, int64_t in_size) {
  const int64_t first = out * d.stride - d.padding;
  const int64_t begin = std::clamp<int64_t>(first, 0, in_size);
  return {begin, std::clamp<int64_t>(first + d.kernel, begin, in_size)};
}

// Calls f(rows, columns, at) for the windows of a plane.
template <typename F>
void ForWindows(const PoolingDims& d, F f) {
  int64_t at = 0;
  for (int64_t oh = 0; oh < d.out_height; ++oh) {
    const Reach rows = Inside(d, oh, d.in_height);
    for (int64_t ow = 0; ow < d.out_width; ++ow) f(rows, Inside(d, ow, d.in_width), at++);
  }
}

void MaxForward(const PoolingDims& d, const float* x, float* y, int32_t* argmax) {
  ForWindows(d, [&](Reach rows, Reach columns, int64_t out) {
    y[out] = 0;
    argmax[out] = -1;
    if (rows.size() == 0 || columns.size() == 0) return;
    auto at = static_cast<int32_t>(rows.begin * d.in_width + columns.begin);
    float best = x[at];
    for (int64_t h = rows.begin; h < rows.end; ++h) {
      for (int64_t w = columns.begin; w < columns.end; ++w) {
        const int64_t index = h * d.in_width + w;
        Challenge(x[index], static_cast<int32_t>(index), best, at);
      }
    }
    y[out] = best;
    argmax[out] = at;
  });
}

void MaxBackward(const PoolingDims& d, const float* dy, const int32_t* argmax, float* dx) {
  for (int64_t out = 0; out < d.out_height * d.out_width; ++out) {
    if (argmax[out] >= 0) dx[argmax[out]] += dy[out];
  }
}

void AverageForward(const PoolingDims& d, const float* x, float* y) {
  ForWindows(d, [&](Reach rows, Reach columns, int64_t out) {
    float sum = 0;
    for (int64_t h = rows.begin; h < rows.end; ++h) {
      for (int64_t w = columns.begin; w < columns.end; ++w) sum += x[h * d.in_width + w];
    }
    y[out] = sum / static_cast<float>(std::max<int64_t>(1, rows.size() * columns.size()));
  });
}

void AverageBackward(const PoolingDims& d, const float* dy, float* dx) {
  ForWindows(d, [&](Reach rows, Reach columns, int64_t out) {
    const float share =
        dy[out] / static_cast<float>(std::max<int64_t>(1, rows.size() * columns.size()));
    for (int64_t h = rows.begin; h < rows.end; ++h) {
      for (int64_t w = columns.begin; w < columns.end; ++w) dx[h * d.in_width + w] += share;
    }
  });
}

// Calls f(plane) for every image plane, on several threads if there is enough to do.
template <typename F>
void ForPlanes(int threads, const PoolingDims& d, F f) {
  const int64_t plane = std::max<int64_t>(1, d.in_height * d.in_width);
  // Cut by elements of x, so that the cost of waking threads is weighed, at whole planes.
  ForParts(threads, d.batch * d.channels * plane, [&](int64_t begin, int64_t end) {
    for (int64_t i = (begin + plane - 1) / plane; i < (end + plane - 1) / plane; ++i) f(i);
  });
}

}  // namespace

void CpuKernels::PoolingForward(const PoolingDims& dims, std::span<const float> x,
                                std::span<float> y, std::span<int32_t> argmax) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("y", y.size(), sizes.y);
  if (dims.kind == PoolKind::kMax) CheckSize("argmax", argmax.size(), sizes.y);
  const int64_t in = dims.in_height * dims.in_width;
  const int64_t out = dims.out_height * dims.out_width;
  ForPlanes(threads_, dims, [&](int64_t plane) {
    const float* from = x.data() + plane * in;
    float* to = y.data() + plane * out;
    if (dims.kind == PoolKind::kAverage) {
      AverageForward(dims, from, to);
    } else if (IsTwoByTwo(dims)) {
      MaxForwardTwoByTwo(dims, from, to, argmax.data() + plane * out);
    } else {
      MaxForward(dims, from, to, argmax.data() + plane * out);
    }
  });
}

void CpuKernels::PoolingBackward(const PoolingDims& dims, std::span<const float> dy,
                                 std::span<const int32_t> argmax, std::span<float> dx) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dx", dx.size(), sizes.x);
  if (dims.kind == PoolKind::kMax) CheckSize("argmax", argmax.size(), sizes.y);
  const int64_t in = dims.in_height * dims.in_width;
  const int64_t out = dims.out_height * dims.out_width;
  ForPlanes(threads_, dims, [&](int64_t plane) {
    const float* from = dy.data() + plane * out;
    float* to = dx.data() + plane * in;
    std::fill_n(to, in, 0.0F);
    if (dims.kind == PoolKind::kAverage) {
      AverageBackward(dims, from, to);
    } else if (IsTwoByTwo(dims)) {
      MaxBackwardTwoByTwo(dims, from, argmax.data() + plane * out, to);
    } else {
      MaxBackward(dims, from, argmax.data() + plane * out, to);
    }
  });
}

}  // namespace cadre
