// The CUDA back end of backend.h: cuBLAS and cuDNN for matrix products, convolutions and attention
// (dense_math.h), our own kernels for the rest (a file per family, *.cu).
//
// Under Precision::kBf16 activations are bf16. Parameters stay fp32; those that are factors of
// products have a bf16 copy, which updates and WeightsChanged refresh.
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
