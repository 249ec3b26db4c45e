// Adds arrays element by element, with functions for each element type and vector width that are
// selected at run time. 16-bit types are added in float and rounded to nearest even at every
// addition.
//
// All widths give equal bits, except for the payload of the sum of two NaNs.
//
// Thread-safe (pure functions).
#pragma once

#include "comm/transport/transport.h"
#include "tensor/dtype.h"

namespace cadre {

// Requires: type != kBytes.
Combine SumOf(DType type);

// Vector widths in bits, and the widest that this processor supports.
enum class VectorWidth { kNone, k256, k512 };
VectorWidth WidestVectors();
// Requires: width <= WidestVectors().
Combine SumOf(DType type, VectorWidth width);

// Scalar loops; the reference of tests.
Combine ReferenceSumOf(DType type);

}  // namespace cadre
