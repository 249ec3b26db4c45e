// The softmax cross-entropy of the CUDA back end (loss.cu). Private to this folder.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/cuda_context.h"
#include "tensor/values.h"

namespace cadre {

// As PointwiseKernels::SoftmaxCrossEntropyAsync. The sums are written even if `rows` is 0.
void CudaSoftmaxCrossEntropy(CudaContext& cuda, int64_t rows, int64_t classes, float smoothing,
                             ConstValues x, std::span<const int32_t> labels, float scale, Values dx,
                             std::span<double> sums);

}  // namespace cadre
