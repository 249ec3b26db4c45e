// Matrix products, convolutions and fused attention of an emulated device, by the reference back
// end and plain loops, in place of cuBLASLt and cuDNN.
//
// Sums are taken in double and rounded once. If TF32 is allowed, fp32 factors of products and
// convolutions are rounded to its 10 bits of mantissa. Operands must be within allocations of the
// device; otherwise the process ends. EmulatedCuda::FailNext("library", ...) makes a call fail. See
// dense_math.h for the rest.
#pragma once

#include <memory>

#include "device/cuda/cuda_device.h"
#include "kernels/cuda/dense_math.h"
#include "tests/emulator/emulated_cuda.h"

namespace cadre {

// Borrows `device` and `machine`. Requires: the device belongs to the machine.
std::unique_ptr<DenseMath> MakeEmulatedMath(CudaDevice& device, EmulatedCuda& machine);

}  // namespace cadre
