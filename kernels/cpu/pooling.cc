// Pooling, sixteen channels at a time, by our own loops: oneDNN does not specify which of equal
// elements is the maximum, but argmax must be the same in every back end.
//
// Forward iterates over outputs and reads their windows. Backward iterates over inputs and gathers
// from the windows that cover them, instead of scattering from outputs: every element is written
// once, threads need no atomics, and the order of sums is fixed. Overlapping windows are read
// several times, but from the cache.
//
// Loops over the common windows (2 x 2 and 3 x 3 with stride 2) are compiled with constant extents
// (FixedWindow), so that they are unrolled; AnyWindow serves other windows and the borders.
#include "kernels/cpu/pooling.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "tensor/interval.h"

namespace cadre {
namespace {

// The inputs that a window covers, or the outputs whose windows cover an input.
struct PoolingWindow {
  Interval rows, columns;
  int64_t size() const { return rows.size() * columns.size(); }
};

// The inputs inside the image that the window of output `out` covers, along one dimension.
CADRE_INLINE Interval InsideInterval(int64_t out, int64_t in_size, int64_t kernel, int64_t stride,
                                     int64_t padding) {
  const int64_t first = out * stride - padding;
  const int64_t begin = std::clamp<int64_t>(first, 0, in_size);
  return {begin, std::clamp<int64_t>(first + kernel, begin, in_size)};
}

// The outputs whose windows cover input `in`: out * stride <= in + padding < out * stride + kernel.
CADRE_INLINE Interval CoveringInterval(int64_t in, int64_t out_size, int64_t kernel, int64_t stride,
                                       int64_t padding) {
  const int64_t at = in + padding;
  const int64_t begin = at < kernel ? 0 : std::min((at - kernel) / stride + 1, out_size);
  return {begin, std::clamp<int64_t>(at / stride + 1, begin, out_size)};
}

CADRE_INLINE PoolingWindow InsideWindow(const WindowDims& d, int64_t out_row, int64_t out_column) {
  return {InsideInterval(out_row, d.in_height, d.kernel_height, d.stride_height, d.pad_top),
          InsideInterval(out_column, d.in_width, d.kernel_width, d.stride_width, d.pad_left)};
}

CADRE_INLINE PoolingWindow CoveringWindows(const WindowDims& d, int64_t in_row, int64_t in_column) {
  return {CoveringInterval(in_row, d.out_height, d.kernel_height, d.stride_height, d.pad_top),
          CoveringInterval(in_column, d.out_width, d.kernel_width, d.stride_width, d.pad_left)};
}

using Int = int32_t;

// Extents of a window that are known at compile time, so that its loops are unrolled; 0 for an
// unknown one.
template <int kHeight, int kWidth>
struct FixedWindow {
  static bool Fits(const PoolingWindow& w) {
    return w.rows.size() == kHeight && w.columns.size() == kWidth;
  }
  static int64_t Height(const PoolingWindow& w) { return kHeight > 0 ? kHeight : w.rows.size(); }
  static int64_t Width(const PoolingWindow& w) { return kWidth > 0 ? kWidth : w.columns.size(); }
};
using AnyWindow = FixedWindow<0, 0>;

template <typename V, typename I, typename Extents, typename T>
CADRE_INLINE void MaxOfWindow(const PoolingWindow& window, int64_t width, int64_t channels,
                              const T* x, T* y, Int* argmax) {
  const int64_t first = window.rows.begin * width + window.columns.begin;
  V best = Load<V>(x + first * channels);
  I at = I{} + static_cast<Int>(first);
  for (int64_t h = 0; h < Extents::Height(window); ++h) {
    for (int64_t w = 0; w < Extents::Width(window); ++w) {
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

template <typename Extents, typename T>
CADRE_INLINE void MaxOfChannels(const PoolingWindow& window, int64_t width, int64_t n, const T* x,
                                T* y, Int* argmax) {
  int64_t c = 0;
  for (; c + kVectorSize <= n; c += kVectorSize) {
    MaxOfWindow<Vector, IntVector, Extents>(window, width, n, x + c, y + c, argmax + c);
  }
  for (; c < n; ++c) MaxOfWindow<float, Int, Extents>(window, width, n, x + c, y + c, argmax + c);
}

// Computes one row of outputs. x is the image; y and argmax are the row.
template <typename T>
CADRE_VECTOR_LOOP void MaxForwardRow(const PoolingDims& d, int64_t out_row, const T* x, T* y,
                                     Int* argmax) {
  const int64_t width = d.window.in_width, n = d.channels;
  for (int64_t ow = 0; ow < d.window.out_width; ++ow, y += n, argmax += n) {
    const PoolingWindow window = InsideWindow(d.window, out_row, ow);
    if (FixedWindow<2, 2>::Fits(window)) {
      MaxOfChannels<FixedWindow<2, 2>>(window, width, n, x, y, argmax);
    } else if (FixedWindow<3, 3>::Fits(window)) {
      MaxOfChannels<FixedWindow<3, 3>>(window, width, n, x, y, argmax);
    } else if (window.size() > 0) {
      MaxOfChannels<AnyWindow>(window, width, n, x, y, argmax);
    } else {
      std::fill_n(y, n, T{});
      std::fill_n(argmax, n, -1);
    }
  }
}

// The sum of the gradients of the windows whose maximum is this input.
template <typename V, typename I, typename Extents, typename T>
CADRE_INLINE V GradientOfMaximum(const PoolingWindow& outputs, int64_t out_width, int64_t channels,
                                 Int position, const T* dy, const Int* argmax) {
  V sum = {};
  for (int64_t h = 0; h < Extents::Height(outputs); ++h) {
    for (int64_t w = 0; w < Extents::Width(outputs); ++w) {
      const int64_t from =
          ((outputs.rows.begin + h) * out_width + outputs.columns.begin + w) * channels;
      const V gradient = Load<V>(dy + from);
      sum += Load<I>(argmax + from) == position ? gradient : V{};
    }
  }
  return sum;
}

template <typename Extents, typename T>
CADRE_INLINE void GradientsOfMaxima(const PoolingWindow& outputs, int64_t width, int64_t n,
                                    Int position, const T* dy, const Int* argmax, T* dx) {
  int64_t c = 0;
  for (; c + kVectorSize <= n; c += kVectorSize) {
    Store(dx + c, GradientOfMaximum<Vector, IntVector, Extents>(outputs, width, n, position, dy + c,
                                                                argmax + c));
  }
  for (; c < n; ++c) {
    Store(dx + c,
          GradientOfMaximum<float, Int, Extents>(outputs, width, n, position, dy + c, argmax + c));
  }
}

// Computes one row of the inputs' gradient. dy and argmax are the image; dx is the row.
template <typename T>
CADRE_VECTOR_LOOP void MaxBackwardRow(const PoolingDims& d, int64_t in_row, const T* dy,
                                      const Int* argmax, T* dx) {
  const int64_t width = d.window.out_width, n = d.channels;
  for (int64_t iw = 0; iw < d.window.in_width; ++iw, dx += n) {
    const PoolingWindow outputs = CoveringWindows(d.window, in_row, iw);
    const Int position = in_row * d.window.in_width + iw;
    // The numbers of covering windows for 2 x 2 and 3 x 3 windows with stride 2.
    if (FixedWindow<1, 1>::Fits(outputs)) {
      GradientsOfMaxima<FixedWindow<1, 1>>(outputs, width, n, position, dy, argmax, dx);
    } else if (FixedWindow<1, 2>::Fits(outputs)) {
      GradientsOfMaxima<FixedWindow<1, 2>>(outputs, width, n, position, dy, argmax, dx);
    } else if (FixedWindow<2, 2>::Fits(outputs)) {
      GradientsOfMaxima<FixedWindow<2, 2>>(outputs, width, n, position, dy, argmax, dx);
    } else {
      GradientsOfMaxima<AnyWindow>(outputs, width, n, position, dy, argmax, dx);
    }
  }
}

// 1 / the divisor of an average over the window.
CADRE_INLINE float Share(const PoolingDims& d, const PoolingWindow& window) {
  const int64_t all = d.window.kernel_height * d.window.kernel_width;
  const int64_t divisor = d.kind == PoolKind::kAverageWithPadding ? all : window.size();
  return divisor == 0 ? 0.0F : 1.0F / divisor;
}

// The sum of a window, times `share`.
template <typename V, typename T>
CADRE_INLINE void AverageOfWindow(const PoolingWindow& window, int64_t width, int64_t channels,
                                  float share, const T* x, T* y) {
  V sum = {};
  for (int64_t h = window.rows.begin; h < window.rows.end; ++h) {
    for (int64_t w = window.columns.begin; w < window.columns.end; ++w) {
      sum += Load<V>(x + (h * width + w) * channels);
    }
  }
  Store(y, sum * share);
}

template <typename T>
CADRE_VECTOR_LOOP void AverageForwardRow(const PoolingDims& d, int64_t out_row, const T* x, T* y) {
  const int64_t width = d.window.in_width, n = d.channels;
  for (int64_t ow = 0; ow < d.window.out_width; ++ow, y += n) {
    const PoolingWindow window = InsideWindow(d.window, out_row, ow);
    const float share = Share(d, window);
    int64_t c = 0;
    for (; c + kVectorSize <= n; c += kVectorSize) {
      AverageOfWindow<Vector>(window, width, n, share, x + c, y + c);
    }
    for (; c < n; ++c) AverageOfWindow<float>(window, width, n, share, x + c, y + c);
  }
}

// The sum of the gradients of the windows that cover an input, each times its share.
template <typename V, typename T>
CADRE_INLINE void GradientOfAverages(const PoolingDims& d, const PoolingWindow& outputs,
                                     const T* dy, T* dx) {
  V sum = {};
  for (int64_t oh = outputs.rows.begin; oh < outputs.rows.end; ++oh) {
    for (int64_t ow = outputs.columns.begin; ow < outputs.columns.end; ++ow) {
      const float share = Share(d, InsideWindow(d.window, oh, ow));
      sum += share * Load<V>(dy + (oh * d.window.out_width + ow) * d.channels);
    }
  }
  Store(dx, sum);
}

template <typename T>
CADRE_VECTOR_LOOP void AverageBackwardRow(const PoolingDims& d, int64_t in_row, const T* dy,
                                          T* dx) {
  const int64_t n = d.channels;
  for (int64_t iw = 0; iw < d.window.in_width; ++iw, dx += n) {
    const PoolingWindow outputs = CoveringWindows(d.window, in_row, iw);
    int64_t c = 0;
    for (; c + kVectorSize <= n; c += kVectorSize) {
      GradientOfAverages<Vector>(d, outputs, dy + c, dx + c);
    }
    for (; c < n; ++c) GradientOfAverages<float>(d, outputs, dy + c, dx + c);
  }
}

template <typename T>
CADRE_VECTOR_LOOP void Spread(int64_t positions, int64_t channels, float share,
                              const T* __restrict dy, T* __restrict dx) {
  for (int64_t p = 0; p < positions; ++p, dx += channels) {
    for (int64_t c = 0; c < channels; ++c) Store(dx + c, share * Load<float>(dy + c));
  }
}

}  // namespace

void CpuPooling::PoolingForward(const PoolingDims& dims, ConstValues x, Values y,
                                std::span<int32_t> argmax) {
  const bool is_max = dims.kind == PoolKind::kMax;
  const WindowDims& w = dims.window;
  const int64_t row = w.out_width * dims.channels;
  const int64_t image = w.in_height * w.in_width * dims.channels;
  const int64_t cost = row * w.kernel_height * w.kernel_width;
  ByType(y.type(), [&](auto zero) {
    using T = decltype(zero);
    ForParts(threads_, dims.batch * w.out_height, cost, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* from = Data<T>(x) + i / w.out_height * image;
        T* to = Data<T>(y) + i * row;
        if (is_max) {
          MaxForwardRow(dims, i % w.out_height, from, to, argmax.data() + i * row);
        } else {
          AverageForwardRow(dims, i % w.out_height, from, to);
        }
      }
    });
  });
}

void CpuPooling::PoolingBackward(const PoolingDims& dims, ConstValues dy,
                                 std::span<const int32_t> argmax, Values dx) {
  const bool is_max = dims.kind == PoolKind::kMax;
  const WindowDims& w = dims.window;
  const int64_t row = w.in_width * dims.channels;
  const int64_t image = w.out_height * w.out_width * dims.channels;
  ByType(dx.type(), [&](auto zero) {
    using T = decltype(zero);
    ForParts(threads_, dims.batch * w.in_height, 2 * row, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i / w.in_height * image;
        T* to = Data<T>(dx) + i * row;
        if (is_max) {
          MaxBackwardRow(dims, i % w.in_height, Data<T>(dy) + at, argmax.data() + at, to);
        } else {
          AverageBackwardRow(dims, i % w.in_height, Data<T>(dy) + at, to);
        }
      }
    });
  });
}

void CpuPooling::GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels,
                                          int64_t divisor, ConstValues x, Values y) {
  const double share = 1.0 / divisor;
  ByType(y.type(), [&](auto zero) {
    using T = decltype(zero);
    ForParts(threads_, batch, positions * channels, [&](int64_t begin, int64_t end) {
      std::vector<double> sums(channels);
      for (int64_t n = begin; n < end; ++n) {
        std::fill(sums.begin(), sums.end(), 0.0);
        AddColumnSums(positions, channels, Data<T>(x) + n * positions * channels, sums.data());
        for (double& sum : sums) sum *= share;
        StoreRounded(sums, Data<T>(y) + n * channels);
      }
    });
  });
}

void CpuPooling::GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                           int64_t divisor, ConstValues dy, Values dx) {
  const float share = 1.0F / divisor;
  ByType(dx.type(), [&](auto zero) {
    using T = decltype(zero);
    ForParts(threads_, batch, positions * channels, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        Spread(positions, channels, share, Data<T>(dy) + n * channels,
               Data<T>(dx) + n * positions * channels);
      }
    });
  });
}

}  // namespace cadre
