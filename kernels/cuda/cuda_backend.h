// The CUDA back end of backend.h: cuBLAS and cuDNN for what is dense (dense_math.h), own kernels
// for the rest (*.cu, declared in launches.h).
//
// Under Precision::kBf16 activations are bf16; parameters stay fp32, and a bf16 copy of those that
// are multiplied is kept beside them and renewed by updates and WeightsChanged.
//
// Borrows the device. See backend.h for threads, device.h for errors.
#pragma once

#include <memory>

#include "device/cuda/cuda_device.h"
#include "kernels/backend.h"
#include "kernels/cuda/dense_math.h"

namespace cadre {

std::unique_ptr<Backend> MakeCudaBackend(CudaDevice& device, std::unique_ptr<DenseMath> math);

}  // namespace cadre
