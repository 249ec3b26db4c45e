// The local response norm of the CUDA back end (local_response.cu). Private to this folder.
#pragma once

#include "device/cuda/cuda_device.h"
#include "kernels/backend.h"
#include "tensor/values.h"

namespace cadre {

// As NormKernels::LrnForward and LrnBackward. Requires: there are elements; their numbers are
// checked.
void CudaLrnForward(CudaDevice& device, const LrnDims& dims, ConstValues x, Values y, FloatSpan d);
void CudaLrnBackward(CudaDevice& device, const LrnDims& dims, ConstValues x, ConstFloatSpan d,
                     ConstValues dy, Values dx);

}  // namespace cadre
