// Pooling, sixteen channels at a time. Own loops rather than oneDNN's: its workspace does not
// record which of equal elements is the largest, and argmax must be the same in every back end.
//
// Forward iterates over outputs and reads their windows. Backward iterates over inputs and gathers
// from the windows that cover them, instead of scattering from outputs: every element is written
// once, threads need no atomics, and sums have one order. The price is that overlapping windows
// are read several times; they are in the cache.
//
// Windows have few sizes, so that the common ones (2 x 2 and 3 x 3 with stride 2) are compiled with
// constant extents (Walk), which unrolls their loops; at the borders and for other windows AnyWalk
// takes over.
#include "kernels/cpu/pooling_geometry.h"

#include <algorithm>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

using Int = int32_t;

// Extents of a window that are known at compile time, so that its loops are unrolled; 0 if not.
template <int kHeight, int kWidth>
struct Walk {
  static bool Fits(const PoolingWindow& w) {
    return w.rows.size() == kHeight && w.columns.size() == kWidth;
  }
  static int64_t Height(const PoolingWindow& w) { return kHeight > 0 ? kHeight : w.rows.size(); }
  static int64_t Width(const PoolingWindow& w) { return kWidth > 0 ? kWidth : w.columns.size(); }
};
using AnyWalk = Walk<0, 0>;

template <typename V, typename I, typename Walk>
CADRE_INLINE void MaxOfWindow(const PoolingWindow& window, int64_t width, int64_t channels,
                              const float* x, float* y, Int* argmax) {
  const int64_t first = window.rows.begin * width + window.columns.begin;
  V best = Load<V>(x + first * channels);
  I at = I{} + static_cast<Int>(first);
  for (int64_t h = 0; h < Walk::Height(window); ++h) {
    for (int64_t w = 0; w < Walk::Width(window); ++w) {
      const int64_t position = first + h * width + w;
      const V value = Load<V>(x + position * channels);
      const auto wins = value > best;  // the first of equals stays
      best = wins ? value : best;
      at = wins ? I{} + static_cast<Int>(position) : at;
    }
  }
  Store(y, best);
  Store(argmax, at);
}

template <typename Walk>
CADRE_INLINE void MaxOfChannels(const PoolingWindow& window, int64_t width, int64_t n,
                                const float* x, float* y, Int* argmax) {
  int64_t c = 0;
  for (; c + kVectorSize <= n; c += kVectorSize) {
    MaxOfWindow<Vector, IntVector, Walk>(window, width, n, x + c, y + c, argmax + c);
  }
  for (; c < n; ++c) MaxOfWindow<float, Int, Walk>(window, width, n, x + c, y + c, argmax + c);
}

// One row of outputs; x: the image, y and argmax: the row.
CADRE_VECTOR_LOOP void MaxForwardRow(const PoolingDims& d, int64_t out_row, const float* x,
                                     float* y, Int* argmax) {
  const int64_t width = d.window.in_width, n = d.channels;
  for (int64_t ow = 0; ow < d.window.out_width; ++ow, y += n, argmax += n) {
    const PoolingWindow window = InsideWindow(d.window, out_row, ow);
    if (Walk<2, 2>::Fits(window)) {
      MaxOfChannels<Walk<2, 2>>(window, width, n, x, y, argmax);
    } else if (Walk<3, 3>::Fits(window)) {
      MaxOfChannels<Walk<3, 3>>(window, width, n, x, y, argmax);
    } else if (window.size() > 0) {
      MaxOfChannels<AnyWalk>(window, width, n, x, y, argmax);
    } else {
      std::fill_n(y, n, 0.0F);
      std::fill_n(argmax, n, -1);
    }
  }
}

// The sum of the gradients of the windows whose maximum is this input.
template <typename V, typename I, typename Walk>
CADRE_INLINE V Won(const PoolingWindow& outputs, int64_t out_width, int64_t channels, Int position,
                   const float* dy, const Int* argmax) {
  V sum = {};
  for (int64_t h = 0; h < Walk::Height(outputs); ++h) {
    for (int64_t w = 0; w < Walk::Width(outputs); ++w) {
      const int64_t from =
          ((outputs.rows.begin + h) * out_width + outputs.columns.begin + w) * channels;
      const V gradient = Load<V>(dy + from);
      sum += Load<I>(argmax + from) == position ? gradient : V{};
    }
  }
  return sum;
}

template <typename Walk>
CADRE_INLINE void WonOfChannels(const PoolingWindow& outputs, int64_t width, int64_t n,
                                Int position, const float* dy, const Int* argmax, float* dx) {
  int64_t c = 0;
  for (; c + kVectorSize <= n; c += kVectorSize) {
    Store(dx + c, Won<Vector, IntVector, Walk>(outputs, width, n, position, dy + c, argmax + c));
  }
  for (; c < n; ++c) {
    dx[c] = Won<float, Int, Walk>(outputs, width, n, position, dy + c, argmax + c);
  }
}

// One row of inputs; dy and argmax: the image, dx: the row.
CADRE_VECTOR_LOOP void MaxBackwardRow(const PoolingDims& d, int64_t in_row, const float* dy,
                                      const Int* argmax, float* dx) {
  const int64_t width = d.window.out_width, n = d.channels;
  for (int64_t iw = 0; iw < d.window.in_width; ++iw, dx += n) {
    const PoolingWindow outputs = CoveringWindows(d.window, in_row, iw);
    const auto position = static_cast<Int>(in_row * d.window.in_width + iw);
    // The cases of 2 x 2 and 3 x 3 windows with stride 2.
    if (Walk<1, 1>::Fits(outputs)) {
      WonOfChannels<Walk<1, 1>>(outputs, width, n, position, dy, argmax, dx);
    } else if (Walk<1, 2>::Fits(outputs)) {
      WonOfChannels<Walk<1, 2>>(outputs, width, n, position, dy, argmax, dx);
    } else if (Walk<2, 2>::Fits(outputs)) {
      WonOfChannels<Walk<2, 2>>(outputs, width, n, position, dy, argmax, dx);
    } else {
      WonOfChannels<AnyWalk>(outputs, width, n, position, dy, argmax, dx);
    }
  }
}

// 1 / the divisor of an average over the window.
CADRE_INLINE float Share(const PoolingDims& d, const PoolingWindow& window) {
  const int64_t all = d.window.kernel_height * d.window.kernel_width;
  const int64_t divisor = d.kind == PoolKind::kAverageWithPadding ? all : window.size();
  return divisor == 0 ? 0.0F : 1.0F / static_cast<float>(divisor);
}

CADRE_VECTOR_LOOP void AverageForwardRow(const PoolingDims& d, int64_t out_row, const float* x,
                                         float* __restrict y) {
  const int64_t n = d.channels;
  for (int64_t ow = 0; ow < d.window.out_width; ++ow, y += n) {
    const PoolingWindow window = InsideWindow(d.window, out_row, ow);
    for (int64_t c = 0; c < n; ++c) y[c] = 0;
    for (int64_t h = window.rows.begin; h < window.rows.end; ++h) {
      for (int64_t w = window.columns.begin; w < window.columns.end; ++w) {
        const float* __restrict from = x + (h * d.window.in_width + w) * n;
        for (int64_t c = 0; c < n; ++c) y[c] += from[c];
      }
    }
    const float share = Share(d, window);
    for (int64_t c = 0; c < n; ++c) y[c] *= share;
  }
}

CADRE_VECTOR_LOOP void AverageBackwardRow(const PoolingDims& d, int64_t in_row, const float* dy,
                                          float* __restrict dx) {
  const int64_t n = d.channels;
  for (int64_t iw = 0; iw < d.window.in_width; ++iw, dx += n) {
    const PoolingWindow outputs = CoveringWindows(d.window, in_row, iw);
    for (int64_t c = 0; c < n; ++c) dx[c] = 0;
    for (int64_t oh = outputs.rows.begin; oh < outputs.rows.end; ++oh) {
      for (int64_t ow = outputs.columns.begin; ow < outputs.columns.end; ++ow) {
        const float share = Share(d, InsideWindow(d.window, oh, ow));
        const float* __restrict from = dy + (oh * d.window.out_width + ow) * n;
        for (int64_t c = 0; c < n; ++c) dx[c] += share * from[c];
      }
    }
  }
}

CADRE_VECTOR_LOOP void Spread(int64_t positions, int64_t channels, float share,
                              const float* __restrict dy, float* __restrict dx) {
  for (int64_t p = 0; p < positions; ++p, dx += channels) {
    for (int64_t c = 0; c < channels; ++c) dx[c] = share * dy[c];
  }
}

}  // namespace

void CpuWindow::PoolingForward(const PoolingDims& dims, ConstValues x_values, Values y_values,
                               std::span<int32_t> argmax) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("y", y.size(), sizes.y);
  const bool is_max = dims.kind == PoolKind::kMax;
  if (is_max) CheckSize("argmax", argmax.size(), sizes.y);
  const WindowDims& w = dims.window;
  const int64_t row = w.out_width * dims.channels;
  const int64_t image = w.in_height * w.in_width * dims.channels;
  const int64_t cost = row * w.kernel_height * w.kernel_width;
  ForParts(cpu_.threads, dims.batch * w.out_height, cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* from = x.data() + i / w.out_height * image;
      float* to = y.data() + i * row;
      if (is_max) {
        MaxForwardRow(dims, i % w.out_height, from, to, argmax.data() + i * row);
      } else {
        AverageForwardRow(dims, i % w.out_height, from, to);
      }
    }
  });
}

void CpuWindow::PoolingBackward(const PoolingDims& dims, ConstValues dy_values,
                                std::span<const int32_t> argmax, Values dx_values) {
  const auto dy = dy_values.floats();
  const auto dx = dx_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dx", dx.size(), sizes.x);
  const bool is_max = dims.kind == PoolKind::kMax;
  if (is_max) CheckSize("argmax", argmax.size(), sizes.y);
  const WindowDims& w = dims.window;
  const int64_t row = w.in_width * dims.channels;
  const int64_t image = w.out_height * w.out_width * dims.channels;
  ForParts(cpu_.threads, dims.batch * w.in_height, 2 * row, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i / w.in_height * image;
      float* to = dx.data() + i * row;
      if (is_max) {
        MaxBackwardRow(dims, i % w.in_height, dy.data() + at, argmax.data() + at, to);
      } else {
        AverageBackwardRow(dims, i % w.in_height, dy.data() + at, to);
      }
    }
  });
}

void CpuWindow::GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels,
                                         int64_t divisor, ConstValues x_values, Values y_values) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  CheckSize("x", x.size(), batch * positions * channels);
  CheckSize("y", y.size(), batch * channels);
  const double share = 1 / static_cast<double>(divisor);
  ForParts(cpu_.threads, batch, positions * channels, [&](int64_t begin, int64_t end) {
    std::vector<double> sums(channels);
    for (int64_t n = begin; n < end; ++n) {
      std::fill(sums.begin(), sums.end(), 0.0);
      AddColumnSums(positions, channels, x.data() + n * positions * channels, sums.data());
      std::transform(sums.begin(), sums.end(), y.data() + n * channels,
                     [share](double sum) { return static_cast<float>(sum * share); });
    }
  });
}

void CpuWindow::GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                          int64_t divisor, ConstValues dy_values,
                                          Values dx_values) {
  const auto dy = dy_values.floats();
  const auto dx = dx_values.floats();
  CheckSize("dy", dy.size(), batch * channels);
  CheckSize("dx", dx.size(), batch * positions * channels);
  const float share = 1 / static_cast<float>(divisor);
  ForParts(cpu_.threads, batch, positions * channels, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      Spread(positions, channels, share, dy.data() + n * channels,
             dx.data() + n * positions * channels);
    }
  });
}

}  // namespace cadre
