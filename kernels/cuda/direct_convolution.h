// Convolutions by plain loops, for those that the vendor's library has no plan for: any extents,
// groups, dilation, strides and padding. They are slow.
//
// Each result is a sum of products in fp32, whose order depends on the extents only, rounded once
// to the type of the result. Layouts are those of dense_math.h. Work is enqueued on the device's
// current stream. See device.h for errors.
#pragma once

#include <algorithm>

#include "device/cuda/cuda_device.h"
#include "kernels/backend.h"
#include "tensor/values.h"

namespace cadre {

// Whether the functions below compute convolutions of these extents.
inline bool HasDirectConvolution(const ConvolutionDims& dims) {
  const WindowDims& w = dims.window;
  return std::min({dims.batch, dims.in_channels, dims.out_channels, dims.groups, w.in_height,
                   w.in_width, w.out_height, w.out_width, w.kernel_height, w.kernel_width,
                   w.stride_height, w.stride_width, w.dilation}) > 0 &&
         dims.in_channels % dims.groups == 0 && dims.out_channels % dims.groups == 0;
}

// Requires for all: HasDirectConvolution(dims).
void LaunchDirectForward(CudaDevice& device, const ConvolutionDims& dims, ConstValues x,
                         ConstValues w, Values y);
void LaunchDirectBackwardData(CudaDevice& device, const ConvolutionDims& dims, ConstValues dy,
                              ConstValues w, Values dx);
void LaunchDirectBackwardWeights(CudaDevice& device, const ConvolutionDims& dims, ConstValues x,
                                 ConstValues dy, FloatSpan dw);

}  // namespace cadre
