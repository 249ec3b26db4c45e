#include "kernels/cuda/product_layout.h"

#include <utility>

namespace cadre {
namespace {

// Row-major [rows, columns] with `row` elements between rows (0: they touch) is column-major
// [columns, rows].
ColumnMajorMatrix Swapped(int64_t rows, int64_t columns, int64_t row, int64_t step) {
  return {.rows = columns, .columns = rows, .leading = row == 0 ? columns : row, .step = step};
}

}  // namespace

MatrixProductDims FewestCalls(MatrixProductDims dims) {
  if (dims.outer <= dims.batch) return dims;
  std::swap(dims.batch, dims.outer);
  std::swap(dims.a_step, dims.a_outer);
  std::swap(dims.b_step, dims.b_outer);
  std::swap(dims.c_step, dims.c_outer);
  return dims;
}

ProductLayout LayoutOf(const MatrixProductDims& d) {
  return {.first = d.transpose_b ? Swapped(d.n, d.k, d.b_row, d.b_step)
                                 : Swapped(d.k, d.n, d.b_row, d.b_step),
          .second = d.transpose_a ? Swapped(d.k, d.m, d.a_row, d.a_step)
                                  : Swapped(d.m, d.k, d.a_row, d.a_step),
          .result = Swapped(d.m, d.n, d.c_row, d.c_step),
          .transpose_first = d.transpose_b,
          .transpose_second = d.transpose_a};
}

int64_t AlignmentOf(const void* data, int64_t step_bytes, int64_t outer_bytes) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(step_bytes) |
                        static_cast<uint64_t>(outer_bytes) | 256;
  return bits & (~bits + 1);
}

}  // namespace cadre
