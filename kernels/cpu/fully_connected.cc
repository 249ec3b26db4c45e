// Fully connected layers as matrix products over plain layouts: converting 3 million weights to
// oneDNN's blocked layout and their gradients back takes longer than the products themselves.
#include <glog/logging.h>

#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/threads.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

// c[m, n] = op(a) op(b) over k, where op transposes if its letter is 'T'. Row-major; lda, ldb and
// ldc are the lengths of stored rows.
void MatrixProduct(char op_a, char op_b, int64_t m, int64_t n, int64_t k, const float* a,
                   int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t row = 0; row < m; ++row) std::fill_n(c + row * ldc, n, 0.0F);
    return;
  }
  OrDie("matrix product", [&] {
    const dnnl::status status =
        dnnl::sgemm(op_a, op_b, m, n, k, 1.0F, a, lda, b, ldb, 0.0F, c, ldc);
    CHECK(status == dnnl::status::success) << "matrix product " << m << " x " << n << " x " << k;
  });
}

// y[batch, out] = t[out, batch]^T + b, in tiles that keep both sides in the cache.
void TransposeAndAdd(int64_t batch, int64_t out, const float* t, const float* b, float* y) {
  constexpr int64_t kTile = 16;
  for (int64_t o0 = 0; o0 < out; o0 += kTile) {
    const int64_t o1 = std::min(out, o0 + kTile);
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t o = o0; o < o1; ++o) y[n * out + o] = t[o * batch + n] + b[o];
    }
  }
}

}  // namespace

void CpuKernels::FullyConnectedForward(const FullyConnectedDims& dims, std::span<const float> x,
                                       std::span<const float> w, std::span<const float> b,
                                       std::span<float> y) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("w", w.size(), sizes.w);
  CheckSize("b", b.size(), sizes.b);
  CheckSize("y", y.size(), sizes.y);
  const auto [batch, in, out] = dims;
  const ScopedThreads threads(threads_);
  // y^T = W x^T, transposed afterwards: as y = x W^T the product would repack all of W instead of
  // the much smaller x, and take twice as long.
  auto* transposed = static_cast<float*>(workspace_.Get(0, y.size_bytes()));
  MatrixProduct('N', 'T', out, batch, in, w.data(), in, x.data(), in, transposed, batch);
  TransposeAndAdd(batch, out, transposed, b.data(), y.data());
}

void CpuKernels::FullyConnectedBackwardData(const FullyConnectedDims& dims,
                                            std::span<const float> dy, std::span<const float> w,
                                            std::span<float> dx) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("w", w.size(), sizes.w);
  CheckSize("dx", dx.size(), sizes.x);
  const auto [batch, in, out] = dims;
  const ScopedThreads threads(threads_);
  MatrixProduct('N', 'N', batch, in, out, dy.data(), out, w.data(), in, dx.data(), in);
}

void CpuKernels::FullyConnectedBackwardWeights(const FullyConnectedDims& dims,
                                               std::span<const float> x, std::span<const float> dy,
                                               std::span<float> dw, std::span<float> db) {
  const LayerSizes sizes = SizesOf(dims);
  CheckSize("x", x.size(), sizes.x);
  CheckSize("dy", dy.size(), sizes.y);
  CheckSize("dw", dw.size(), sizes.w);
  CheckSize("db", db.size(), sizes.b);
  const auto [batch, in, out] = dims;
  const ScopedThreads threads(threads_);
  MatrixProduct('T', 'N', out, in, batch, dy.data(), out, x.data(), in, dw.data(), in);
  std::fill(db.begin(), db.end(), 0.0F);
  for (int64_t n = 0; n < batch; ++n) {
    const float* row = dy.data() + n * out;
    for (int64_t o = 0; o < out; ++o) db[static_cast<size_t>(o)] += row[o];
  }
}

}  // namespace cadre
