// The CUDA driver, runtime and devices of this machine, and the meaning of their errors.
//
// Thread-safe (queries the driver).
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "device/cuda/cuda_api.h"

namespace cadre {

struct CudaMachine {
  // In CUDA's format: 13000 is 13.0.
  int driver = 0;
  int runtime = 0;
  // At least one.
  int devices = 0;
};

// Errors: FailedPrecondition if there is no driver, one that is too old for the runtime, or no
// device; the message contains the versions that are installed and needed. Without a driver or a
// device, but not with an old driver, the error has kReasonNoGpu (base/error_reason.h).
absl::StatusOr<CudaMachine> LookForCuda(const CudaApi& api);

// "NVIDIA H200, driver 13.0, runtime 13.0" ("2 x NVIDIA H200, ..."), or the error if there is none.
absl::StatusOr<std::string> DescribeCuda(const CudaApi& api);

// The status of an error, with the codes of device.h.
absl::Status CudaStatus(const CudaApi& api, cudaError_t error, absl::string_view what);

// True for errors after which this process cannot use the device any more.
bool LosesDevice(cudaError_t error);

}  // namespace cadre
