// Matrix products by oneDNN, over row-major arrays.
//
// Thread-safe (functions of their arguments).
#pragma once

#include <cstdint>

namespace cadre {

// A matrix as it is stored: rows of `stride` elements; transposed: its columns are the rows.
struct MatrixView {
  const float* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};

// c[m, n] = alpha * a[m, k] b[k, n], c's rows being c_stride apart. Runs on the number of threads
// that ScopedThreads says, in one inside a parallel region. Takes m, n or k of 0.
void MatrixProduct(int64_t m, int64_t n, int64_t k, float alpha, const MatrixView& a,
                   const MatrixView& b, float* c, int64_t c_stride);

}  // namespace cadre
