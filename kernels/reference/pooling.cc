#include <glog/logging.h>

#include <algorithm>
#include <vector>

#include "kernels/extents.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/sums.h"

namespace cadre {
namespace {

// The part of one window that lies inside its image.
struct Inside {
  int64_t top, bottom, left, right;
  int64_t elements() const {
    return std::max<int64_t>(0, bottom - top) * std::max<int64_t>(0, right - left);
  }
};

Inside InsideOf(const WindowDims& w, int64_t oh, int64_t ow) {
  const int64_t top = oh * w.stride - w.pad_top;
  const int64_t left = ow * w.stride - w.pad_left;
  return {.top = std::max<int64_t>(0, top),
          .bottom = std::min(w.in_height, top + w.kernel_height),
          .left = std::max<int64_t>(0, left),
          .right = std::min(w.in_width, left + w.kernel_width)};
}

// One channel of one image and one window over it.
struct Window {
  int64_t image, channel;
  Inside inside;
  // Of the output.
  int64_t y_at;
};

template <typename F>
void ForEachWindow(const PoolingDims& d, F f) {
  int64_t y_at = 0;
  for (int64_t n = 0; n < d.batch; ++n) {
    for (int64_t oh = 0; oh < d.window.out_height; ++oh) {
      for (int64_t ow = 0; ow < d.window.out_width; ++ow) {
        const Inside inside = InsideOf(d.window, oh, ow);
        for (int64_t c = 0; c < d.channels; ++c) f(Window{n, c, inside, y_at++});
      }
    }
  }
}

int64_t IndexOf(const PoolingDims& d, const Window& window, int64_t position) {
  const int64_t positions = d.window.in_height * d.window.in_width;
  return (window.image * positions + position) * d.channels + window.channel;
}

// Calls f(position, index into the input) for the elements of a window.
template <typename F>
void ForEachElement(const PoolingDims& d, const Window& window, F f) {
  for (int64_t h = window.inside.top; h < window.inside.bottom; ++h) {
    for (int64_t w = window.inside.left; w < window.inside.right; ++w) {
      const int64_t position = h * d.window.in_width + w;
      f(position, IndexOf(d, window, position));
    }
  }
}

double Divisor(const PoolingDims& d, const Window& window) {
  if (d.kind == PoolKind::kAverageWithPadding) {
    return static_cast<double>(d.window.kernel_height * d.window.kernel_width);
  }
  return static_cast<double>(std::max<int64_t>(1, window.inside.elements()));
}

}  // namespace

void ReferenceWindow::PoolingForward(const PoolingDims& dims, ConstValues x_values, Values y_values,
                                     std::span<int32_t> argmax) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("y", y.size(), sizes.y);
  if (dims.kind == PoolKind::kMax) {
    CheckSize("argmax", argmax.size(), sizes.y);
    ForEachWindow(dims, [&](const Window& window) {
      float& best = y[window.y_at];
      int32_t& where = argmax[window.y_at];
      best = 0;
      where = -1;
      ForEachElement(dims, window, [&](int64_t position, int64_t x_at) {
        if (where >= 0 && !(x[x_at] > best)) return;
        best = x[x_at];
        where = static_cast<int32_t>(position);
      });
    });
    return;
  }
  ForEachWindow(dims, [&](const Window& window) {
    double sum = 0;
    ForEachElement(dims, window, [&](int64_t, int64_t x_at) { sum += x[x_at]; });
    y[window.y_at] = static_cast<float>(sum / Divisor(dims, window));
  });
}

void ReferenceWindow::PoolingBackward(const PoolingDims& dims, ConstValues dy_values,
                                      std::span<const int32_t> argmax, Values dx_values) {
  const auto dy = dy_values.floats();
  const auto dx = dx_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dx", dx.size(), sizes.x);
  std::vector<double> sums(dx.size());
  if (dims.kind == PoolKind::kMax) {
    CheckSize("argmax", argmax.size(), sizes.y);
    ForEachWindow(dims, [&](const Window& window) {
      const int32_t where = argmax[window.y_at];
      if (where >= 0) sums[IndexOf(dims, window, where)] += dy[window.y_at];
    });
  } else {
    ForEachWindow(dims, [&](const Window& window) {
      const double share = dy[window.y_at] / Divisor(dims, window);
      ForEachElement(dims, window, [&](int64_t, int64_t x_at) { sums[x_at] += share; });
    });
  }
  Store(sums, dx);
}

void ReferenceWindow::GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels,
                                               int64_t divisor, ConstValues x_values,
                                               Values y_values) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  CheckSize("x", x.size(), batch * positions * channels);
  CheckSize("y", y.size(), batch * channels);
  CHECK_GE(divisor, 1);
  for (int64_t n = 0; n < batch; ++n) {
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (int64_t p = 0; p < positions; ++p) sum += x[(n * positions + p) * channels + c];
      y[n * channels + c] = static_cast<float>(sum / static_cast<double>(divisor));
    }
  }
}

void ReferenceWindow::GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                                int64_t divisor, ConstValues dy_values,
                                                Values dx_values) {
  const auto dy = dy_values.floats();
  const auto dx = dx_values.floats();
  CheckSize("dy", dy.size(), batch * channels);
  CheckSize("dx", dx.size(), batch * positions * channels);
  CHECK_GE(divisor, 1);
  for (int64_t n = 0; n < batch; ++n) {
    for (int64_t p = 0; p < positions; ++p) {
      for (int64_t c = 0; c < channels; ++c) {
        dx[(n * positions + p) * channels + c] =
            static_cast<float>(dy[n * channels + c] / static_cast<double>(divisor));
      }
    }
  }
}

}  // namespace cadre
