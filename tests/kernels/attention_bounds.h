// Bounds for the errors of attention, by the type of activations and the extents.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "tensor/dtype.h"
#include "tests/kernels/testing.h"

namespace cadre {

// Upper bounds for the errors of attention, element by element, from the magnitudes of its inputs.
// u is the largest relative error of one rounding to fp32; a sum of n products in any order has an
// error of at most n u times the sum of the products' magnitudes (Higham 2002, section 3.1). v is
// that of one rounding to the type of activations, if these are bf16, and 0 otherwise:
// probabilities and the gradients of scores are rounded to it before they are multiplied. Terms of
// second order are left out. The rounding of the results themselves is not included.
struct AttentionBounds {
  std::vector<double> statistics, context, dqkv;
};

// Inputs are at most `largest` in magnitude, gradients of the context at most 1.
AttentionBounds BoundsOf(const AttentionDims& dims, DType type, const Floats& qkv, double largest,
                         const Floats& ids = {});

// The largest error in units of its bound, to which the rounding of a result of `type` is added.
double LargestShare(const Floats& got, const Floats& want, const std::vector<double>& bounds,
                    DType type = DType::kFloat32);

}  // namespace cadre
