// The product of a big matrix of weights with few rows: a fully connected layer forward when its
// batch is small. A general product copies the weights into panels first and so moves them twice;
// here they stream by once, as they lie, and everything else stays in the cache: a third faster.
// (The two products backward gain nothing by it.)
//
// Every sum is taken in the same order for any number of threads. Thread-safe (functions of their
// arguments).
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace cadre {

// Whether this product is faster than the general one: at most 32 rows, enough outputs, and
// AVX-512.
bool TakesSkinnyProduct(const FullyConnectedDims& dims);

// Floats of scratch that it needs.
int64_t SkinnyScratch(const FullyConnectedDims& dims);

// y^T = W x^T: y_transposed [out, batch]. Requires: TakesSkinnyProduct(dims), nothing empty.
void SkinnyForward(int threads, const FullyConnectedDims& dims, const float* x, const float* w,
                   float* scratch, float* y_transposed);

}  // namespace cadre
