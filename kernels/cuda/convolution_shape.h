// A convolution as cuDNN is told of it. Ours pads at the far edges whatever the outputs need, a
// negative number where no window reaches the last rows; cuDNN's padding is never negative and its
// outputs follow from it, so rows that it must not see are left out of what it is told.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace cadre {

// One of the image's two extents.
struct ConvolutionSide {
  // Rows (columns) of the input that cuDNN sees, the first ones.
  int64_t in = 0;
  int64_t out = 0;
  int64_t kernel = 1;
  int64_t pad_near = 0, pad_far = 0;
};

struct ConvolutionShape {
  ConvolutionSide height, width;
  // No window touches the image: every output is 0 (bias apart), and so are both gradients.
  bool blind = false;
  // Rows or columns are left out: nothing writes their gradient.
  bool cropped = false;
  // Elements from a row of the input to the next, and from an image to the next.
  int64_t in_row = 0, in_image = 0;
  // cuDNN's order of the weights differs from ours.
  bool reorders_weights = false;
};

// Requires: no extent of dims is 0.
ConvolutionShape ShapeOf(const ConvolutionDims& dims);

// The largest power of two, at most 16, that divides the addresses: what cuDNN may rely on.
int64_t CommonAlignment(const void* a, const void* b, const void* c);

}  // namespace cadre
