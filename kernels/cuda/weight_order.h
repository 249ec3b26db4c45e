// Converts a convolution's weights between two orders: Cadre's is [out, channels, taps] (taps:
// height * width); cuDNN's fast kernels need channels last, [out, taps, channels]. With one tap
// this only converts between fp32 and bf16.
//
// Work is enqueued on the device's current stream. See device.h for errors.
#pragma once

#include <cstdint>

#include "device/cuda/cuda_device.h"
#include "tensor/values.h"

namespace cadre {

struct WeightOrderDims {
  int64_t out = 0, channels = 0, taps = 0;
};

// to[o, t, c] = from[o, c, t]. Types are fp32 or bf16 and may differ.
void LaunchChannelsToLast(CudaDevice& device, const WeightOrderDims& dims, ConstValues from,
                          Values to);
// to[o, c, t] = from[o, t, c].
void LaunchChannelsToFront(CudaDevice& device, const WeightOrderDims& dims, ConstValues from,
                           Values to);

}  // namespace cadre
