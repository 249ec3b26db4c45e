// CUDA guarantees that a program runs with every driver of the same major version or a newer one,
// so only the major versions are compared. The error messages contain the version of the driver to
// install, because the driver itself reports only that it is insufficient.
#include "device/cuda/cuda_machine.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "device/cuda/cuda_device.h"

namespace cadre {
namespace {

// The oldest driver for Linux that runs all programs of a major version of CUDA.
std::string NeededDriver(int runtime) {
  const int major = runtime / 1000;
  const char* const minimum = major == 12 ? "525.60.13" : major == 13 ? "580.65.06" : nullptr;
  return minimum == nullptr
             ? absl::StrCat("an NVIDIA driver for CUDA ", CudaVersionText(runtime))
             : absl::StrCat("NVIDIA driver ", minimum, " or newer, for CUDA ", major);
}

}  // namespace

std::string CudaVersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

absl::StatusOr<CudaMachine> LookForCuda(const CudaApi& api) {
  CudaMachine machine;
  cudaError_t error = api.runtime_version(&machine.runtime);
  if (error == cudaSuccess) error = api.driver_version(&machine.driver);
  if (error != cudaSuccess) return CudaStatus(api, error, "querying the versions of CUDA");
  if (machine.driver == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no NVIDIA driver on this machine: install ", NeededDriver(machine.runtime)));
  }
  // Within a major version, an older driver also runs programs for newer minor versions.
  if (machine.driver / 1000 < machine.runtime / 1000) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the NVIDIA driver is too old: it is for CUDA ", CudaVersionText(machine.driver),
        ", this program needs ", NeededDriver(machine.runtime)));
  }
  error = api.device_count(&machine.devices);
  if (error != cudaSuccess) {
    api.last_error();
    return CudaStatus(api, error, "looking for GPUs");
  }
  if (machine.devices < 1) {
    return absl::FailedPreconditionError("this machine has an NVIDIA driver, but no GPU");
  }
  return machine;
}

absl::StatusOr<std::string> DescribeCuda(const CudaApi& api) {
  CADRE_ASSIGN_OR_RETURN(const CudaMachine machine, LookForCuda(api));
  cudaDeviceProp properties = {};
  if (cudaError_t error = api.properties(&properties, 0); error != cudaSuccess) {
    return CudaStatus(api, error, "querying the properties of a GPU");
  }
  return absl::StrCat(machine.devices > 1 ? absl::StrCat(machine.devices, " x ") : "",
                      properties.name, ", driver ", CudaVersionText(machine.driver), ", runtime ",
                      CudaVersionText(machine.runtime));
}

}  // namespace cadre
