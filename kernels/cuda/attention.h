// Attention of the CUDA back end (attention.cu). Private to this folder.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/cuda_context.h"
#include "tensor/values.h"

namespace cadre {

// As DenseKernels::AttentionForward and AttentionBackward. Requires: the extents are checked.
void CudaAttentionForward(CudaContext& cuda, const AttentionDims& dims, ConstFloatSpan ids,
                          ConstValues qkv, Values context, FloatSpan statistics, Values scratch);
void CudaAttentionBackward(CudaContext& cuda, const AttentionDims& dims, ConstFloatSpan ids,
                           ConstValues qkv, ConstValues context, ConstValues dcontext,
                           ConstFloatSpan statistics, Values scratch, Values dqkv);

}  // namespace cadre
