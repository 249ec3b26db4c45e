// Fully connected layers as matrix products over plain layouts. oneDNN's inner-product primitive
// prefers blocked weights; converting millions of weights before, and their gradients after every
// step takes longer than the products themselves.
//
// Forward is computed as y^T = W x^T and transposed afterwards: in the form y = x W^T the library
// repacks all of W instead of the much smaller x. Small batches use skinny_product.h.
#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/skinny_product.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// y[batch, out] = t[out, batch]^T + b (nullptr: none), in tiles that keep both sides in the cache.
CADRE_VECTOR_LOOP void TransposeAndAdd(int64_t batch, int64_t out, const float* t, const float* b,
                                       float* y) {
  constexpr int64_t kTile = 16;
  for (int64_t o0 = 0; o0 < out; o0 += kTile) {
    const int64_t o1 = o0 + kTile < out ? o0 + kTile : out;
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t o = o0; o < o1; ++o) {
        y[n * out + o] = t[o * batch + n] + (b == nullptr ? 0.0F : b[o]);
      }
    }
  }
}

}  // namespace

void CpuDense::FullyConnectedForward(const FullyConnectedDims& dims, ConstValues x_values,
                                     std::span<const float> w, std::span<const float> b,
                                     Values y_values) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("w", w.size(), sizes.w);
  CheckSizeIfAny("b", b.size(), sizes.b);
  CheckSize("y", y.size(), sizes.y);
  const auto [batch, in, out] = dims;
  const ScopedThreads threads(cpu_.threads);
  // y^T = W x^T, transposed afterwards: as y = x W^T the product would repack all of W instead of
  // the much smaller x, and take twice as long.
  auto* transposed = static_cast<float*>(cpu_.workspace.Get(0, y.size_bytes()));
  if (sizes.x > 0 && sizes.y > 0 && TakesSkinnyProduct(dims)) {
    const auto bytes = static_cast<size_t>(SkinnyScratch(dims)) * sizeof(float);
    SkinnyForward(cpu_.threads, dims, x.data(), w.data(),
                  static_cast<float*>(cpu_.workspace.Get(1, bytes)), transposed);
  } else {
    MatrixProduct(out, batch, in, 1, {w.data(), in}, {x.data(), in, true}, transposed, batch);
  }
  TransposeAndAdd(batch, out, transposed, b.empty() ? nullptr : b.data(), y.data());
}

void CpuDense::FullyConnectedBackwardData(const FullyConnectedDims& dims, ConstValues dy_values,
                                          std::span<const float> w, Values dx_values) {
  const auto dy = dy_values.floats();
  const auto dx = dx_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("w", w.size(), sizes.w);
  CheckSize("dx", dx.size(), sizes.x);
  const auto [batch, in, out] = dims;
  const ScopedThreads threads(cpu_.threads);
  MatrixProduct(batch, in, out, 1, {dy.data(), out}, {w.data(), in}, dx.data(), in);
}

void CpuDense::FullyConnectedBackwardWeights(const FullyConnectedDims& dims, ConstValues x_values,
                                             ConstValues dy_values, std::span<float> dw,
                                             std::span<float> db) {
  const auto x = x_values.floats(), dy = dy_values.floats();
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckSizeIfAny("db", db.size(), sizes.b);
  const auto [batch, in, out] = dims;
  const ScopedThreads threads(cpu_.threads);
  MatrixProduct(out, in, batch, 1, {dy.data(), out, true}, {x.data(), in}, dw.data(), in);
  if (!db.empty()) ColumnSums(cpu_.threads, batch, out, dy.data(), db);
}

}  // namespace cadre
