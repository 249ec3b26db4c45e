// Matrix products by oneDNN, over row-major arrays.
//
// Thread-safe (functions of their arguments).
#pragma once

#include <cstdint>
#include <dnnl.hpp>

#include "kernels/cpu/primitive_run.h"
#include "tensor/dtype.h"

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

// Whether these functions add the k terms of a sum in the same order for 16 rows or columns of a
// product as for all of them, so that parts of a product have the bits of the whole. By tests of
// version 2.6 of the library: on AVX-512, and for at most 768 terms; beyond, and on other
// processors, it chooses the order by the extents of what it computes.
bool PartsHaveBitsOfWhole(int64_t k);

// The product of dense row-major bf16 matrices, c[m, n] = a[m, k] b[k, n] + bias[n], with fp32
// sums; with `add`, it is added to c.
struct Bf16ProductDims {
  int64_t m = 0, n = 0, k = 0;
  // Stored as [k, m] and [n, k].
  bool transpose_a = false, transpose_b = false;
  bool with_bias = false;
  // fp32, or bf16: then each sum is rounded once.
  DType c = DType::kFloat32;
  bool add = false;
  friend auto operator<=>(const Bf16ProductDims&, const Bf16ProductDims&) = default;
};

// Inputs a, b and, with_bias, bias (fp32); output c. Requires: AVX512_BF16; no extent is 0.
PrimitiveRun MakeBf16Product(const Bf16ProductDims& dims, const dnnl::engine& engine);

}  // namespace cadre
