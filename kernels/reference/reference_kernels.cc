// The oracle: each operation as its definition, summed in double, in one thread. Nothing here is
// clever, so that it can be believed.
#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/extents.h"
#include "kernels/kernels.h"

namespace cadre {
namespace {

// One product of a convolution: y[y_at] takes x[x_at] * w[w_at].
struct Term {
  size_t x_at, w_at, y_at;
};

// Calls f(term) for every product of the convolution, output by output.
template <typename F>
void ForEachTerm(const ConvolutionDims& d, F f) {
  size_t y_at = 0;
  for (int64_t n = 0; n < d.batch; ++n) {
    for (int64_t oc = 0; oc < d.out_channels; ++oc) {
      for (int64_t oh = 0; oh < d.out_height; ++oh) {
        for (int64_t ow = 0; ow < d.out_width; ++ow, ++y_at) {
          for (int64_t ic = 0; ic < d.in_channels; ++ic) {
            for (int64_t kh = 0; kh < d.kernel; ++kh) {
              const int64_t ih = oh * d.stride - d.padding + kh;
              if (ih < 0 || ih >= d.in_height) continue;
              for (int64_t kw = 0; kw < d.kernel; ++kw) {
                const int64_t iw = ow * d.stride - d.padding + kw;
                if (iw < 0 || iw >= d.in_width) continue;
                const int64_t plane = n * d.in_channels + ic;
                f(Term{
                    .x_at = static_cast<size_t>((plane * d.in_height + ih) * d.in_width + iw),
                    .w_at = static_cast<size_t>(
                        ((oc * d.in_channels + ic) * d.kernel + kh) * d.kernel + kw),
                    .y_at = y_at,
                });
              }
            }
          }
        }
      }
    }
  }
}

// The part of one pooling window that lies inside its image plane.
struct Window {
  int64_t top, bottom, left, right;
  int64_t elements() const { return std::max<int64_t>(0, bottom - top) * (right - left); }
};

Window WindowAt(const PoolingDims& d, int64_t oh, int64_t ow) {
  const int64_t top = oh * d.stride - d.padding;
  const int64_t left = ow * d.stride - d.padding;
  Window window{.top = std::max<int64_t>(0, top),
                .bottom = std::min(d.in_height, top + d.kernel),
                .left = std::max<int64_t>(0, left),
                .right = std::min(d.in_width, left + d.kernel)};
  window.right = std::max(window.left, window.right);
  return window;
}

// Calls f(plane, window, y_at) for every pooling output.
template <typename F>
void ForEachWindow(const PoolingDims& d, F f) {
  size_t y_at = 0;
  for (int64_t plane = 0; plane < d.batch * d.channels; ++plane) {
    for (int64_t oh = 0; oh < d.out_height; ++oh) {
      for (int64_t ow = 0; ow < d.out_width; ++ow) f(plane, WindowAt(d, oh, ow), y_at++);
    }
  }
}

// Calls f(index) for the elements of a window, as indices into its plane.
template <typename F>
void ForEachElement(const PoolingDims& d, const Window& window, F f) {
  for (int64_t h = window.top; h < window.bottom; ++h) {
    for (int64_t w = window.left; w < window.right; ++w) f(static_cast<size_t>(h * d.in_width + w));
  }
}

void Store(const std::vector<double>& sums, std::span<float> out) {
  std::transform(sums.begin(), sums.end(), out.begin(),
                 [](double sum) { return static_cast<float>(sum); });
}

class ReferenceKernels final : public Kernels {
 public:
  void ConvolutionForward(const ConvolutionDims& dims, std::span<const float> x,
                          std::span<const float> w, std::span<const float> b,
                          std::span<float> y) override {
    const LayerSizes sizes = SizesOf(dims);
    CheckSize("x", x.size(), sizes.x);
    CheckSize("w", w.size(), sizes.w);
    CheckSize("b", b.size(), sizes.b);
    CheckSize("y", y.size(), sizes.y);
    const auto plane = static_cast<size_t>(dims.out_height * dims.out_width);
    std::vector<double> sums(y.size());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = b[i / plane % b.size()];
    ForEachTerm(dims, [&](Term t) { sums[t.y_at] += static_cast<double>(x[t.x_at]) * w[t.w_at]; });
    Store(sums, y);
  }

  void ConvolutionBackwardData(const ConvolutionDims& dims, std::span<const float> dy,
                               std::span<const float> w, std::span<float> dx) override {
    const LayerSizes sizes = SizesOf(dims);
    CheckSize("dy", dy.size(), sizes.y);
    CheckSize("w", w.size(), sizes.w);
    CheckSize("dx", dx.size(), sizes.x);
    std::vector<double> sums(dx.size());
    ForEachTerm(dims, [&](Term t) { sums[t.x_at] += static_cast<double>(dy[t.y_at]) * w[t.w_at]; });
    Store(sums, dx);
  }

  void ConvolutionBackwardWeights(const ConvolutionDims& dims, std::span<const float> x,
                                  std::span<const float> dy, std::span<float> dw,
                                  std::span<float> db) override {
    const LayerSizes sizes = SizesOf(dims);
    CheckSize("x", x.size(), sizes.x);
    CheckSize("dy", dy.size(), sizes.y);
    CheckSize("dw", dw.size(), sizes.w);
    CheckSize("db", db.size(), sizes.b);
    std::vector<double> weights(dw.size());
    ForEachTerm(dims,
                [&](Term t) { weights[t.w_at] += static_cast<double>(x[t.x_at]) * dy[t.y_at]; });
    Store(weights, dw);
    const auto plane = static_cast<size_t>(dims.out_height * dims.out_width);
    std::vector<double> biases(db.size());
    for (size_t i = 0; i < dy.size(); ++i) biases[i / plane % db.size()] += dy[i];
    Store(biases, db);
  }

  void PoolingForward(const PoolingDims& dims, std::span<const float> x, std::span<float> y,
                      std::span<int32_t> argmax) override {
    const LayerSizes sizes = SizesOf(dims);
    CheckSize("x", x.size(), sizes.x);
    CheckSize("y", y.size(), sizes.y);
    const auto plane_size = static_cast<size_t>(dims.in_height * dims.in_width);
    if (dims.kind == PoolKind::kMax) {
      CheckSize("argmax", argmax.size(), sizes.y);
      ForEachWindow(dims, [&](int64_t plane, const Window& window, size_t at) {
        const float* image = x.data() + static_cast<size_t>(plane) * plane_size;
        y[at] = 0;
        argmax[at] = -1;
        ForEachElement(dims, window, [&](size_t i) {
          if (argmax[at] < 0 || image[i] > y[at]) {
            y[at] = image[i];
            argmax[at] = static_cast<int32_t>(i);
          }
        });
      });
    } else {
      ForEachWindow(dims, [&](int64_t plane, const Window& window, size_t at) {
        const float* image = x.data() + static_cast<size_t>(plane) * plane_size;
        double sum = 0;
        ForEachElement(dims, window, [&](size_t i) { sum += image[i]; });
        const auto count = static_cast<double>(window.elements());
        y[at] = count == 0 ? 0 : static_cast<float>(sum / count);
      });
    }
  }

  void PoolingBackward(const PoolingDims& dims, std::span<const float> dy,
                       std::span<const int32_t> argmax, std::span<float> dx) override {
    const LayerSizes sizes = SizesOf(dims);
    CheckSize("dy", dy.size(), sizes.y);
    CheckSize("dx", dx.size(), sizes.x);
    const auto plane_size = static_cast<size_t>(dims.in_height * dims.in_width);
    std::vector<double> sums(dx.size());
    if (dims.kind == PoolKind::kMax) CheckSize("argmax", argmax.size(), sizes.y);
    ForEachWindow(dims, [&](int64_t plane, const Window& window, size_t at) {
      const size_t image = static_cast<size_t>(plane) * plane_size;
      if (dims.kind == PoolKind::kMax) {
        if (argmax[at] >= 0) sums[image + static_cast<size_t>(argmax[at])] += dy[at];
        return;
      }
      const double share = dy[at] / static_cast<double>(std::max<int64_t>(1, window.elements()));
      ForEachElement(dims, window, [&](size_t i) { sums[image + i] += share; });
    });
    Store(sums, dx);
  }

  void FullyConnectedForward(const FullyConnectedDims& dims, std::span<const float> x,
                             std::span<const float> w, std::span<const float> b,
                             std::span<float> y) override {
    const LayerSizes sizes = SizesOf(dims);
    CheckSize("x", x.size(), sizes.x);
    CheckSize("w", w.size(), sizes.w);
    CheckSize("b", b.size(), sizes.b);
    CheckSize("y", y.size(), sizes.y);
    const auto [batch, in, out] = Sizes(dims);
    for (size_t n = 0; n < batch; ++n) {
      for (size_t o = 0; o < out; ++o) {
        double sum = b[o];
        for (size_t i = 0; i < in; ++i) sum += static_cast<double>(x[n * in + i]) * w[o * in + i];
        y[n * out + o] = static_cast<float>(sum);
      }
    }
  }

  void FullyConnectedBackwardData(const FullyConnectedDims& dims, std::span<const float> dy,
                                  std::span<const float> w, std::span<float> dx) override {
    const LayerSizes sizes = SizesOf(dims);
    CheckSize("dy", dy.size(), sizes.y);
    CheckSize("w", w.size(), sizes.w);
    CheckSize("dx", dx.size(), sizes.x);
    const auto [batch, in, out] = Sizes(dims);
    std::vector<double> sums(dx.size());
    for (size_t n = 0; n < batch; ++n) {
      for (size_t o = 0; o < out; ++o) {
        const double d = dy[n * out + o];
        for (size_t i = 0; i < in; ++i) sums[n * in + i] += d * w[o * in + i];
      }
    }
    Store(sums, dx);
  }

  void FullyConnectedBackwardWeights(const FullyConnectedDims& dims, std::span<const float> x,
                                     std::span<const float> dy, std::span<float> dw,
                                     std::span<float> db) override {
    const LayerSizes sizes = SizesOf(dims);
    CheckSize("x", x.size(), sizes.x);
    CheckSize("dy", dy.size(), sizes.y);
    CheckSize("dw", dw.size(), sizes.w);
    CheckSize("db", db.size(), sizes.b);
    const auto [batch, in, out] = Sizes(dims);
    std::vector<double> weights(dw.size());
    std::vector<double> biases(db.size());
    for (size_t n = 0; n < batch; ++n) {
      for (size_t o = 0; o < out; ++o) {
        const double d = dy[n * out + o];
        biases[o] += d;
        for (size_t i = 0; i < in; ++i) weights[o * in + i] += d * x[n * in + i];
      }
    }
    Store(weights, dw);
    Store(biases, db);
  }

  void ReluForward(std::span<const float> x, std::span<float> y) override {
    CheckSize("y", y.size(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] < 0 ? 0 : x[i];
  }

  void ReluBackward(std::span<const float> y, std::span<const float> dy,
                    std::span<float> dx) override {
    CheckSize("dy", dy.size(), static_cast<int64_t>(y.size()));
    CheckSize("dx", dx.size(), static_cast<int64_t>(y.size()));
    for (size_t i = 0; i < y.size(); ++i) dx[i] = y[i] > 0 ? dy[i] : 0;
  }

  LossSums SoftmaxCrossEntropy(int64_t rows, int64_t classes, std::span<const float> x,
                               std::span<const int32_t> labels, float scale,
                               std::span<float> dx) override {
    CheckSize("x", x.size(), rows * classes);
    CheckSize("labels", labels.size(), rows);
    if (!dx.empty()) CheckSize("dx", dx.size(), rows * classes);
    LossSums sums;
    for (size_t r = 0; r < labels.size(); ++r) {
      const std::span<const float> row =
          x.subspan(r * static_cast<size_t>(classes), static_cast<size_t>(classes));
      CHECK(labels[r] >= 0 && labels[r] < classes) << "label " << labels[r];
      const auto label = static_cast<size_t>(labels[r]);
      const auto largest = std::max_element(row.begin(), row.end());
      double total = 0;
      for (const float value : row) total += std::exp(static_cast<double>(value) - *largest);
      sums.loss += std::log(total) - (static_cast<double>(row[label]) - *largest);
      sums.correct += static_cast<size_t>(largest - row.begin()) == label ? 1 : 0;
      for (size_t c = 0; c < row.size() && !dx.empty(); ++c) {
        const double p = std::exp(static_cast<double>(row[c]) - *largest) / total;
        dx[r * row.size() + c] = static_cast<float>(scale * (p - (c == label ? 1 : 0)));
      }
    }
    return sums;
  }

  void Sgd(const SgdStep& step, std::span<const float> g, std::span<float> w,
           std::span<float> v) override {
    CheckSize("g", g.size(), static_cast<int64_t>(w.size()));
    CheckSize("v", v.size(), static_cast<int64_t>(w.size()));
    for (size_t i = 0; i < w.size(); ++i) {
      const double decayed = g[i] + static_cast<double>(step.weight_decay) * w[i];
      v[i] = static_cast<float>(static_cast<double>(step.momentum) * v[i] + decayed);
      w[i] = static_cast<float>(w[i] - static_cast<double>(step.rate) * v[i]);
    }
  }

 private:
  struct Extents {
    size_t batch, in, out;
  };
  static Extents Sizes(const FullyConnectedDims& dims) {
    return {static_cast<size_t>(dims.batch), static_cast<size_t>(dims.in),
            static_cast<size_t>(dims.out)};
  }
};

}  // namespace

std::unique_ptr<Kernels> MakeReferenceKernels() { return std::make_unique<ReferenceKernels>(); }

}  // namespace cadre
