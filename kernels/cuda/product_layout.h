// Describes a row-major matrix product to cuBLASLt, whose matrices are column-major. A row-major
// [m, n] matrix is column-major [n, m] in memory, so the library computes c^T = op(b)^T op(a)^T
// with b as the first factor, and no data moves. A bias per column of c becomes a bias per row of
// c^T.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>

#include "kernels/cuda/dense_math.h"

namespace cadre {

// A column-major matrix in memory.
struct ColumnMajorMatrix {
  int64_t rows = 0, columns = 0;
  // Distance in elements between columns, and between matrices of the batch.
  int64_t leading = 0, step = 0;
  friend bool operator==(const ColumnMajorMatrix&, const ColumnMajorMatrix&) = default;
};

struct ProductLayout {
  // The first factor is b, the second a, and the result c of MatrixProductDims.
  ColumnMajorMatrix first, second, result;
  bool transpose_first = false, transpose_second = false;
};

// The same product with the larger of its two batches as the inner one: one call of the library
// computes the inner batch, and a loop of calls iterates over the outer one.
MatrixProductDims FewestCalls(MatrixProductDims dims);

// The layout of one call, for one index of the outer batch.
ProductLayout LayoutOf(const MatrixProductDims& dims);

// The largest power of two, at most 256, that divides the address and both steps.
int64_t AlignmentOf(const void* data, int64_t step_bytes, int64_t outer_bytes);

}  // namespace cadre
