#include "kernels/cuda/vendor_layout.h"

#include <algorithm>
#include <utility>

#include "kernels/extents.h"

namespace cadre {
namespace {

// Row-major [rows, columns] with `row` elements between rows (0: they touch) is column-major
// [columns, rows].
ColumnMajorMatrix Swapped(int64_t rows, int64_t columns, int64_t row, int64_t step) {
  return {.rows = columns, .columns = rows, .leading = row == 0 ? columns : row, .step = step};
}

ConvolutionSide SideOf(int64_t in, int64_t out, int64_t kernel, int64_t near, int64_t far,
                       int64_t stride) {
  ConvolutionSide side{.in = in, .out = out, .kernel = kernel, .pad_near = near};
  // With fewer unused rows than a stride no further window fits, so the rows need not be left out.
  if (far >= 0) {
    side.pad_far = far;
  } else if (-far >= stride) {
    side.in = std::max<int64_t>(0, in + far);
  }
  return side;
}

uint64_t AddressOf(const void* data) { return reinterpret_cast<uintptr_t>(data); }

// The largest power of two that divides the number.
int64_t LowestBit(uint64_t number) { return number & (~number + 1); }

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
  return LowestBit(AddressOf(data) | static_cast<uint64_t>(step_bytes) |
                   static_cast<uint64_t>(outer_bytes) | 256);
}

ConvolutionShape ShapeOf(const ConvolutionDims& dims) {
  const WindowDims& w = dims.window;
  const WindowPadding padding = PaddingOf(w);
  ConvolutionShape shape{.height = SideOf(w.in_height, w.out_height, w.kernel_height, padding.top,
                                          padding.bottom, w.stride_height),
                         .width = SideOf(w.in_width, w.out_width, w.kernel_width, padding.left,
                                         padding.right, w.stride_width),
                         .in_row = w.in_width * dims.in_channels,
                         .in_image = w.in_height * w.in_width * dims.in_channels,
                         .reorders_weights = w.kernel_height * w.kernel_width > 1 &&
                                             dims.in_channels / dims.groups > 1};
  shape.windows_miss_image = shape.height.in == 0 || shape.width.in == 0;
  shape.cropped = shape.height.in < w.in_height || shape.width.in < w.in_width;
  return shape;
}

int64_t CommonAlignment(const void* a, const void* b, const void* c) {
  return LowestBit(AddressOf(a) | AddressOf(b) | AddressOf(c) | 16);
}

}  // namespace cadre
