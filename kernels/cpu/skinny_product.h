// The product of a big matrix of weights with few rows: the forward pass of a fully connected layer
// with a small batch. A general product copies the weights into panels first, and so moves them
// twice. This one reads them once, in their own layout, while everything else stays in the cache;
// it is a third faster. (The two products of the backward pass would not become faster.)
//
// The order of every sum is the same for any number of threads. Thread-safe (functions of their
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

// y^T = W x^T; y_transposed is [out, batch]. Requires: TakesSkinnyProduct(dims), no empty tensor.
void SkinnyForward(int threads, const FullyConnectedDims& dims, const float* x, const float* w,
                   float* scratch, float* y_transposed);

}  // namespace cadre
