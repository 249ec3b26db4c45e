// Adds arrays element by element, with functions for each element type and vector width that are
// selected at run time. 16-bit types are added in float and rounded to nearest even at every
// addition.
//
// All widths give equal bits, except for the payload of the sum of two NaNs.
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace cadre {

// How received values are added to local ones.
struct Combine {
  // `bytes` is a multiple of `element`; both pointers are aligned to `element` only. The arrays do
  // not overlap.
  void (*add)(std::byte* sum, const std::byte* values, size_t bytes) = nullptr;
  size_t element = 1;
};

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
