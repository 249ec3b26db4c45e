// Multi-head attention with memory linear in the tokens. attention.cc explains the method.
//
// The same extents and data give the same bits for any number of threads, and a head gives the same
// bits whichever other heads are computed with it. Thread-safe (functions of their arguments).
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace cadre {

// Floats of scratch memory that forward and backward need for activations of `type`.
int64_t AttentionForwardScratch(int threads, const AttentionDims& dims, DType type);
int64_t AttentionBackwardScratch(int threads, const AttentionDims& dims, DType type);

// As DenseKernels::AttentionForward and AttentionBackward. `scratch` has the size that the function
// above returns for the same arguments.
void CpuAttentionForward(int threads, const AttentionDims& dims, ConstFloatSpan ids,
                         ConstValues qkv, float* scratch, Values context, float* statistics);
void CpuAttentionBackward(int threads, const AttentionDims& dims, ConstFloatSpan ids,
                          ConstValues qkv, ConstValues context, ConstValues dcontext,
                          const float* statistics, float* scratch, Values dqkv);

}  // namespace cadre
