// Our tensors as the libraries describe them. Thread-safe (values and pure functions).
//
// cuBLASLt's matrices are column-major. A row-major [m, n] matrix is column-major [n, m] in memory,
// so the library computes c^T = op(b)^T op(a)^T with b as the first factor, and no data moves. A
// bias per column of c becomes a bias per row of c^T.
//
// cuDNN's convolutions: in Cadre the output size is given and determines the padding at the bottom
// and right edges; this padding is negative if the windows end before the last row or column. In
// cuDNN the padding is given, determines the output size and is never negative, so the description
// omits input rows and columns after the last window if another window would fit there.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
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

// Exchanges `batch` and `outer` of `dims`, with their steps, if `outer` is larger. One call of the
// library computes all of `batch`; the caller loops over `outer`.
MatrixProductDims FewestCalls(MatrixProductDims dims);

// The layout of one call, for one index of the outer batch.
ProductLayout LayoutOf(const MatrixProductDims& dims);

// The largest power of two, at most 256, that divides the address and both steps.
int64_t AlignmentOf(const void* data, int64_t step_bytes, int64_t outer_bytes);

// The convolution along one of the image's two dimensions.
struct ConvolutionSide {
  // The number of input rows (columns), from the first on, that the description covers.
  int64_t in = 0;
  int64_t out = 0;
  int64_t kernel = 1;
  int64_t pad_near = 0, pad_far = 0;
};

struct ConvolutionShape {
  ConvolutionSide height, width;
  // No window reaches the image: all outputs (before the bias) and both gradients are 0.
  bool windows_miss_image = false;
  // Rows or columns of the input are left out; cuDNN does not write their gradient.
  bool cropped = false;
  // Distance in elements between rows of the input, and between images.
  int64_t in_row = 0, in_image = 0;
  // cuDNN's order of the weights differs from ours.
  bool reorders_weights = false;
};

// Requires: no extent of dims is 0.
ConvolutionShape ShapeOf(const ConvolutionDims& dims);

// The alignment that cuDNN may rely on: the largest power of two, at most 16, that divides the
// addresses.
int64_t CommonAlignment(const void* a, const void* b, const void* c);

}  // namespace cadre
