#include <vector>

#include "kernels/extents.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/sums.h"

namespace cadre {
namespace {

// One product of a convolution: y[y_at] takes x[x_at] * w[w_at].
struct Term {
  int64_t x_at, w_at, y_at;
};

// Calls f(term) for the products of one output channel at one place of one image.
template <typename F>
void ForEachTermOf(const ConvolutionDims& d, int64_t n, int64_t oh, int64_t ow, int64_t oc, F f) {
  const WindowDims& w = d.window;
  const int64_t group_in = d.in_channels / d.groups;
  const int64_t first_in = oc / (d.out_channels / d.groups) * group_in;
  for (int64_t kh = 0; kh < w.kernel_height; ++kh) {
    const int64_t ih = oh * w.stride - w.pad_top + w.dilation * kh;
    if (ih < 0 || ih >= w.in_height) continue;
    for (int64_t kw = 0; kw < w.kernel_width; ++kw) {
      const int64_t iw = ow * w.stride - w.pad_left + w.dilation * kw;
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

}  // namespace

void ReferenceWindow::ConvolutionForward(const ConvolutionDims& dims, ConstValues x_values,
                                         std::span<const float> w, std::span<const float> b,
                                         Values y_values) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("w", w.size(), sizes.w);
  CheckSizeIfAny("b", b.size(), sizes.b);
  CheckSize("y", y.size(), sizes.y);
  std::vector<double> sums(y.size());
  for (size_t i = 0; i < sums.size() && !b.empty(); ++i) sums[i] = b[i % b.size()];
  ForEachTerm(dims, [&](Term t) { sums[t.y_at] += static_cast<double>(x[t.x_at]) * w[t.w_at]; });
  Store(sums, y);
}

void ReferenceWindow::ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy_values,
                                              std::span<const float> w, Values dx_values) {
  const auto dy = dy_values.floats();
  const auto dx = dx_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("w", w.size(), sizes.w);
  CheckSize("dx", dx.size(), sizes.x);
  std::vector<double> sums(dx.size());
  ForEachTerm(dims, [&](Term t) { sums[t.x_at] += static_cast<double>(dy[t.y_at]) * w[t.w_at]; });
  Store(sums, dx);
}

void ReferenceWindow::ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x_values,
                                                 ConstValues dy_values, std::span<float> dw,
                                                 std::span<float> db) {
  const auto x = x_values.floats(), dy = dy_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckSizeIfAny("db", db.size(), sizes.b);
  std::vector<double> weights(dw.size());
  ForEachTerm(dims,
              [&](Term t) { weights[t.w_at] += static_cast<double>(x[t.x_at]) * dy[t.y_at]; });
  Store(weights, dw);
  std::vector<double> biases(db.size());
  for (size_t i = 0; i < dy.size() && !db.empty(); ++i) biases[i % db.size()] += dy[i];
  Store(biases, db);
}

}  // namespace cadre
