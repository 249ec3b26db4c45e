// A row-major matrix product as cuBLASLt, whose matrices are column-major, is told of it: what is
// row-major [m, n] in memory is column-major [n, m], so c^T = op(b)^T op(a)^T is asked for, with b
// as the first factor, and nothing moves. A bias by column of c is one by row of what is asked for.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>

#include "kernels/cuda/dense_math.h"

namespace cadre {

// A matrix as it lies in memory, by columns.
struct ColumnMajorMatrix {
  int64_t rows = 0, columns = 0;
  // Elements from a column to the next, and from a matrix of the batch to the next.
  int64_t leading = 0, step = 0;
  friend bool operator==(const ColumnMajorMatrix&, const ColumnMajorMatrix&) = default;
};

struct ProductLayout {
  // first: b, second: a, result: c of MatrixProductDims.
  ColumnMajorMatrix first, second, result;
  bool transpose_first = false, transpose_second = false;
};

// The same product with the larger of its two batches as the inner one: that is one call of the
// library, the outer one a loop of calls.
MatrixProductDims FewestCalls(MatrixProductDims dims);

// Of one turn of the outer batch.
ProductLayout LayoutOf(const MatrixProductDims& dims);

// The largest power of two, at most 256, that divides the address and every step of `bytes`.
int64_t AlignmentOf(const void* data, int64_t step_bytes, int64_t outer_bytes);

}  // namespace cadre
