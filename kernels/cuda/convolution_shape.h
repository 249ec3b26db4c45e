// A convolution as cuDNN describes it. In Cadre the padding at the far edges follows from the
// outputs, and is negative if no window reaches the last rows. In cuDNN the padding determines the
// outputs and is never negative, so the description leaves out rows that no window reaches.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace cadre {

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
  bool blind = false;
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
