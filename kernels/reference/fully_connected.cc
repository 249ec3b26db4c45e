#include <vector>

#include "kernels/extents.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/sums.h"

namespace cadre {
namespace {

// Calls f(x_at, w_at, y_at) for every product: y[y_at] takes x[x_at] * w[w_at].
template <typename F>
void ForEachTerm(const FullyConnectedDims& d, F f) {
  for (int64_t n = 0; n < d.batch; ++n) {
    for (int64_t o = 0; o < d.out; ++o) {
      for (int64_t i = 0; i < d.in; ++i) f(n * d.in + i, o * d.in + i, n * d.out + o);
    }
  }
}

}  // namespace

void ReferenceDense::FullyConnectedForward(const FullyConnectedDims& dims, ConstValues x_values,
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
  ForEachTerm(dims, [&](int64_t x_at, int64_t w_at, int64_t y_at) {
    sums[y_at] += static_cast<double>(x[x_at]) * w[w_at];
  });
  Store(sums, y);
}

void ReferenceDense::FullyConnectedBackwardData(const FullyConnectedDims& dims,
                                                ConstValues dy_values, std::span<const float> w,
                                                Values dx_values) {
  const auto dy = dy_values.floats();
  const auto dx = dx_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("w", w.size(), sizes.w);
  CheckSize("dx", dx.size(), sizes.x);
  std::vector<double> sums(dx.size());
  ForEachTerm(dims, [&](int64_t x_at, int64_t w_at, int64_t y_at) {
    sums[x_at] += static_cast<double>(dy[y_at]) * w[w_at];
  });
  Store(sums, dx);
}

void ReferenceDense::FullyConnectedBackwardWeights(const FullyConnectedDims& dims,
                                                   ConstValues x_values, ConstValues dy_values,
                                                   std::span<float> dw, std::span<float> db) {
  const auto x = x_values.floats(), dy = dy_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckSizeIfAny("db", db.size(), sizes.b);
  std::vector<double> weights(dw.size());
  ForEachTerm(dims, [&](int64_t x_at, int64_t w_at, int64_t y_at) {
    weights[w_at] += static_cast<double>(x[x_at]) * dy[y_at];
  });
  Store(weights, dw);
  std::vector<double> biases(db.size());
  for (size_t i = 0; i < dy.size() && !db.empty(); ++i) biases[i % db.size()] += dy[i];
  Store(biases, db);
}

}  // namespace cadre
