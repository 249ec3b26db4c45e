// Matrix products, convolutions and fused attention of an emulated device, by the reference back
// end and plain loops, in place of cuBLASLt and cuDNN.
//
// Sums are taken in double and rounded once. If TF32 is allowed, fp32 factors of products and
// convolutions are rounded to its 10 bits of mantissa. See dense_math.h for the rest.
//
// As strict as the libraries: a plan is made at the first use of extents, types and alignment,
// which is not possible during a capture, and every call takes a workspace, which it fills with
// NaN. Operands must be within allocations of the device, and what a call writes, the workspace
// included, must not overlap another operand; otherwise the process ends with the names of the
// operation and the operands.
//
// EmulatedCuda::FailNext makes calls fail, by the name of the operation ("matrix product",
// "convolution", "convolution, backward data", "convolution, backward weights", "attention",
// "attention, backward"), or "library" for any operation. A failure of "plan of " and the name
// means that the library has no plan for the next new extents: attention is then not fused,
// convolutions are computed and counted as by Cadre's kernels, and products fail.
#pragma once

#include <memory>

#include "device/cuda/cuda_device.h"
#include "kernels/cuda/dense_math.h"
#include "tests/emulator/emulated_cuda.h"

namespace cadre {

// Borrows `device` and `machine`. Requires: the device belongs to the machine.
std::unique_ptr<DenseMath> MakeEmulatedMath(CudaDevice& device, EmulatedCuda& machine);

}  // namespace cadre
