// Matrix products by oneDNN, over row-major arrays.
//
// Thread-safe (functions of their arguments).
#pragma once

#include <cstdint>

namespace cadre {

// A matrix in memory, whose rows are `stride` elements apart. `transposed`: the stored rows are the
// columns of the factor.
struct MatrixView {
  const float* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};

// c[m, n] = alpha * a[m, k] b[k, n], with c_stride elements between rows of c. Uses the number of
// threads that ScopedThreads sets, or one inside a parallel region. m, n and k may be 0.
void MatrixProduct(int64_t m, int64_t n, int64_t k, float alpha, const MatrixView& a,
                   const MatrixView& b, float* c, int64_t c_stride);

// The same product, added to c.
void AddMatrixProduct(int64_t m, int64_t n, int64_t k, float alpha, const MatrixView& a,
                      const MatrixView& b, float* c, int64_t c_stride);

}  // namespace cadre
