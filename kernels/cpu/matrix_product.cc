#include "kernels/cpu/matrix_product.h"

#include <glog/logging.h>

#include <algorithm>
#include <dnnl.hpp>

namespace cadre {
namespace {

// c = alpha * a b + beta * c. Requires: no extent is 0.
void Multiply(int64_t m, int64_t n, int64_t k, float alpha, const MatrixView& a,
              const MatrixView& b, float beta, float* c, int64_t c_stride) {
  const auto letter = [](const MatrixView& matrix) { return matrix.transposed ? 'T' : 'N'; };
  // The C interface, because it returns a status; the C++ interface may throw.
  const dnnl_status_t status = dnnl_sgemm(letter(a), letter(b), m, n, k, alpha, a.data, a.stride,
                                          b.data, b.stride, beta, c, c_stride);
  CHECK_EQ(status, dnnl_success) << "matrix product " << m << " x " << n << " x " << k;
}

}  // namespace

void MatrixProduct(int64_t m, int64_t n, int64_t k, float alpha, const MatrixView& a,
                   const MatrixView& b, float* c, int64_t c_stride) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t row = 0; row < m; ++row) std::fill_n(c + row * c_stride, n, 0.0F);
    return;
  }
  Multiply(m, n, k, alpha, a, b, 0, c, c_stride);
}

void AddMatrixProduct(int64_t m, int64_t n, int64_t k, float alpha, const MatrixView& a,
                      const MatrixView& b, float* c, int64_t c_stride) {
  if (m == 0 || n == 0 || k == 0) return;
  Multiply(m, n, k, alpha, a, b, 1, c, c_stride);
}

}  // namespace cadre
