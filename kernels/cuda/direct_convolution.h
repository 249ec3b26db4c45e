// Convolutions by plain loops, for those that the vendor's library has no plan for: any extents,
// groups, dilation, strides and padding. They are slow.
//
// Each result is a sum of products in fp32, whose order depends on the extents only, rounded once
// to the type of the result. Layouts are those of dense_math.h. Work is enqueued on the device's
// current stream. See device.h for errors.
#pragma once

#include "device/cuda/cuda_device.h"
#include "kernels/backend.h"
#include "tensor/values.h"

namespace cadre {

// Requires for all: no extent of dims is 0.
void LaunchDirectForward(CudaDevice& device, const ConvolutionDims& dims, ConstValues x,
                         ConstValues w, Values y);
void LaunchDirectBackwardData(CudaDevice& device, const ConvolutionDims& dims, ConstValues dy,
                              ConstValues w, Values dx);
void LaunchDirectBackwardWeights(CudaDevice& device, const ConvolutionDims& dims, ConstValues x,
                                 ConstValues dy, FloatSpan dw);

}  // namespace cadre
