// The CUDA back end of kernels.h: cuBLAS and cuDNN for what is dense (dense_math.h), own kernels
// for the rest (*.cu, declared in launches.h).
//
// Under Precision::kBf16 activations are bf16; parameters stay fp32, and a bf16 copy of those that
// are multiplied is kept beside them and renewed by updates and WeightsChanged.
//
// Borrows the device. See kernels.h for threads, device.h for errors.
#pragma once

#include <memory>

#include "device/cuda/cuda_device.h"
#include "kernels/cuda/dense_math.h"
#include "kernels/kernels.h"

namespace cadre {

std::unique_ptr<Kernels> MakeCudaKernels(CudaDevice& device, std::unique_ptr<DenseMath> math);

}  // namespace cadre
