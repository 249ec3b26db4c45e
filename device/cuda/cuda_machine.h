// The CUDA driver, runtime and devices of this machine.
//
// Thread-safe (queries the driver).
#pragma once

#include "absl/status/statusor.h"
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

}  // namespace cadre
