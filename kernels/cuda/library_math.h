// DenseMath by the vendor's libraries, from their tables of functions. dense_math.h declares the
// form that loads them.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "device/cuda/cuda_device.h"
#include "kernels/cuda/dense_math.h"
#include "kernels/cuda/vendor_api.h"

namespace cadre {

// As MakeLibraryMath of dense_math.h. Errors: those of a library that does not start.
absl::StatusOr<std::unique_ptr<DenseMath>> MakeLibraryMath(CudaDevice& device,
                                                           const CublasLtApi& cublas,
                                                           const CudnnApi& cudnn);

}  // namespace cadre
