// Matrix products, convolutions and fused attention of an emulated device, by the reference kernels
// and plain loops: what cuBLASLt and cuDNN are to a real one.
//
// Numbers: bf16 is widened element by element, sums are taken in double and rounded once; where
// TF32 is allowed, fp32 factors of products and convolutions are rounded to its 10 bits of
// mantissa. Operands are held against what the device allocated: one outside is a bug of the caller
// and ends the process. See dense_math.h for the rest.
#pragma once

#include <memory>

#include "device/cuda/cuda_device.h"
#include "kernels/cuda/dense_math.h"
#include "tests/emulator/emulated_cuda.h"

namespace cadre {

// Borrows both; the device is one of the machine's.
std::unique_ptr<DenseMath> MakeEmulatedMath(CudaDevice& device, EmulatedCuda& machine);

}  // namespace cadre
