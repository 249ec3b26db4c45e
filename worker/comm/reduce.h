// Sums of arrays, by type of element, vectorised for the processor that the program finds itself
// on. 16-bit types are added in float and rounded to nearest even at every addition.
//
// All ways give equal bits, but for which NaN comes of two.
//
// Thread-safe (pure functions).
#pragma once

#include "tensor/dtype.h"
#include "worker/transport/transport.h"

namespace cadre {

// Requires: type != kBytes.
Combine SumOf(DType type);

// The widths that sums are written for, and the widest that this processor has.
enum class VectorWidth { kNone, k256, k512 };
VectorWidth WidestVectors();
// Requires: width <= WidestVectors().
Combine SumOf(DType type, VectorWidth width);

// The same by plain loops: the twin that tests compare with.
Combine ReferenceSumOf(DType type);

}  // namespace cadre
