// What this machine has of CUDA: driver, runtime, devices.
//
// Thread-safe (asks the driver).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "device/cuda/cuda_api.h"

namespace cadre {

struct CudaMachine {
  // As CUDA counts: 13000 is 13.0.
  int driver = 0;
  int runtime = 0;
  // At least one.
  int devices = 0;
};

// Errors: FailedPrecondition where there is no driver, one that is older than the runtime needs, or
// no device: it says what is here and what is needed.
absl::StatusOr<CudaMachine> LookForCuda(const CudaApi& api);

// "13.0".
std::string CudaVersionText(int version);

}  // namespace cadre
