// The part of an image that windows reach. oneDNN accepts unreached rows (columns) only if they are
// fewer than a stride; otherwise the reached part is copied out first.
//
// Thread-safe (functions of their arguments).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace cadre {

// `dims` with the reached part of the input. Requires: no empty tensor.
ConvolutionDims Reached(const ConvolutionDims& dims);

// part = the reached part of x.
void CutOut(const ConvolutionDims& dims, const ConvolutionDims& reached, std::span<const float> x,
            float* part);
// x = part where it is reached, 0 elsewhere.
void PutBack(const ConvolutionDims& dims, const ConvolutionDims& reached, const float* part,
             std::span<float> x);

}  // namespace cadre
