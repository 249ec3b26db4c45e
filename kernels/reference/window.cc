// Convolution and pooling, by their definitions: loops over all windows and all their elements.
//
// ForEachTerm visits the products of a convolution. The output, the gradient of the inputs and the
// gradient of the weights add up the same products and differ only in the index that they sum over.
// Elements outside the image are skipped, which is the same as zero padding. Pooling works likewise
// with ForEachWindow and ForEachElement; its windows are clipped to the image first (InsideOf).
//
// Sums are taken in double and rounded once. Also used by the CPU back end for the rare extents
// that oneDNN rejects.
#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/reference/reference_backend.h"

namespace cadre {
namespace {

// One product of a convolution: x[x_at] * w[w_at], added to y[y_at].
struct Term {
  int64_t x_at, w_at, y_at;
};

// Calls f(term) for the products of one output channel at one position of one image.
template <typename F>
void ForEachTermOf(const ConvolutionDims& d, int64_t n, int64_t oh, int64_t ow, int64_t oc, F f) {
  const WindowDims& w = d.window;
  const int64_t group_in = d.in_channels / d.groups;
  const int64_t first_in = oc / (d.out_channels / d.groups) * group_in;
  for (int64_t kh = 0; kh < w.kernel_height; ++kh) {
    const int64_t ih = oh * w.stride_height - w.pad_top + w.dilation * kh;
    if (ih < 0 || ih >= w.in_height) continue;
    for (int64_t kw = 0; kw < w.kernel_width; ++kw) {
      const int64_t iw = ow * w.stride_width - w.pad_left + w.dilation * kw;
      if (iw < 0 || iw >= w.in_width) continue;
      for (int64_t ic = 0; ic < group_in; ++ic) {
        f(Term{
            .x_at = ((n * w.in_height + ih) * w.in_width + iw) * d.in_channels + first_in + ic,
            .w_at = ((oc * group_in + ic) * w.kernel_height + kh) * w.kernel_width + kw,
            .y_at = ((n * w.out_height + oh) * w.out_width + ow) * d.out_channels + oc,
        });
      }
    }
  }
}

template <typename F>
void ForEachTerm(const ConvolutionDims& d, F f) {
  for (int64_t n = 0; n < d.batch; ++n) {
    for (int64_t oh = 0; oh < d.window.out_height; ++oh) {
      for (int64_t ow = 0; ow < d.window.out_width; ++ow) {
        for (int64_t oc = 0; oc < d.out_channels; ++oc) ForEachTermOf(d, n, oh, ow, oc, f);
      }
    }
  }
}

// The part of one window that lies inside its image.
struct Inside {
  int64_t top, bottom, left, right;
  int64_t elements() const {
    return std::max<int64_t>(0, bottom - top) * std::max<int64_t>(0, right - left);
  }
};

Inside InsideOf(const WindowDims& w, int64_t oh, int64_t ow) {
  const int64_t top = oh * w.stride_height - w.pad_top;
  const int64_t left = ow * w.stride_width - w.pad_left;
  return {.top = std::max<int64_t>(0, top),
          .bottom = std::min(w.in_height, top + w.kernel_height),
          .left = std::max<int64_t>(0, left),
          .right = std::min(w.in_width, left + w.kernel_width)};
}

// One channel of one image and one window over it.
struct Window {
  int64_t image, channel;
  Inside inside;
  // Index of the output.
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
    return d.window.kernel_height * d.window.kernel_width;
  }
  return std::max<int64_t>(1, window.inside.elements());
}

class ReferenceWindow {
 public:
  void ConvolutionForward(const ConvolutionDims& dims, ConstFloatSpan x, ConstFloatSpan w,
                          ConstFloatSpan b, FloatSpan y) {
    std::vector<double> sums(y.size());
    for (size_t i = 0; i < sums.size() && !b.empty(); ++i) sums[i] = b[i % b.size()];
    ForEachTerm(dims, [&](Term t) { sums[t.y_at] += Product(x[t.x_at], w[t.w_at]); });
    Store(sums, y);
  }

  void ConvolutionBackwardData(const ConvolutionDims& dims, ConstFloatSpan dy, ConstFloatSpan w,
                               FloatSpan dx) {
    std::vector<double> sums(dx.size());
    ForEachTerm(dims, [&](Term t) { sums[t.x_at] += Product(dy[t.y_at], w[t.w_at]); });
    Store(sums, dx);
  }

  void AddConvolutionBackwardData(const ConvolutionDims& dims, ConstFloatSpan dy, ConstFloatSpan w,
                                  FloatSpan dx) {
    std::vector<float> product(dx.size());
    ConvolutionBackwardData(dims, dy, w, product);
    std::transform(product.begin(), product.end(), dx.begin(), dx.begin(), std::plus<>());
  }

  void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstFloatSpan x, ConstFloatSpan dy,
                                  FloatSpan dw, FloatSpan db) {
    std::vector<double> weights(dw.size());
    ForEachTerm(dims, [&](Term t) { weights[t.w_at] += Product(x[t.x_at], dy[t.y_at]); });
    Store(weights, dw);
    std::vector<double> biases(db.size());
    for (size_t i = 0; i < dy.size() && !db.empty(); ++i) biases[i % db.size()] += dy[i];
    Store(biases, db);
  }

  void PoolingForward(const PoolingDims& dims, ConstFloatSpan x, FloatSpan y,
                      std::span<int32_t> argmax) {
    if (dims.kind == PoolKind::kMax) {
      ForEachWindow(dims, [&](const Window& window) {
        float& best = y[window.y_at];
        int32_t& where = argmax[window.y_at];
        best = 0;
        where = -1;
        ForEachElement(dims, window, [&](int64_t position, int64_t x_at) {
          if (where >= 0 && !(x[x_at] > best)) return;
          best = x[x_at];
          where = position;
        });
      });
      return;
    }
    ForEachWindow(dims, [&](const Window& window) {
      double sum = 0;
      ForEachElement(dims, window, [&](int64_t, int64_t x_at) { sum += x[x_at]; });
      y[window.y_at] = sum / Divisor(dims, window);
    });
  }

  void PoolingBackward(const PoolingDims& dims, ConstFloatSpan dy, std::span<const int32_t> argmax,
                       FloatSpan dx) {
    std::vector<double> sums(dx.size());
    if (dims.kind == PoolKind::kMax) {
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

  void GlobalAveragePoolForward(int64_t batch, int64_t positions, int64_t channels, int64_t divisor,
                                ConstFloatSpan x, FloatSpan y) {
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t c = 0; c < channels; ++c) {
        double sum = 0;
        for (int64_t p = 0; p < positions; ++p) sum += x[(n * positions + p) * channels + c];
        y[n * channels + c] = sum / divisor;
      }
    }
  }

  void GlobalAveragePoolBackward(int64_t batch, int64_t positions, int64_t channels,
                                 int64_t divisor, ConstFloatSpan dy, FloatSpan dx) {
    const double exact_divisor = divisor;
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t p = 0; p < positions; ++p) {
        for (int64_t c = 0; c < channels; ++c) {
          dx[(n * positions + p) * channels + c] = dy[n * channels + c] / exact_divisor;
        }
      }
    }
  }
};

}  // namespace

std::unique_ptr<WindowKernels> MakeReferenceWindow() {
  return std::make_unique<HostWindow<SpanCaller<ReferenceWindow>>>();
}

}  // namespace cadre
