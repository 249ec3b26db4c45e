// The device is created as a worker creates it (worker/compute.h), so that a benchmark uses the
// same streams, libraries and algorithms as training.
#include "bench/gpu/gpu_setup.h"

#include "absl/strings/str_split.h"
#include "base/status.h"

namespace cadre {

absl::StatusOr<BenchGpu> MakeBenchGpu(const std::string& device, const std::string& libraries) {
  BenchGpu gpu;
  CADRE_ASSIGN_OR_RETURN(
      gpu.compute, MakeCompute({.device = device,
                                .libraries = absl::StrSplit(libraries, ',', absl::SkipEmpty())}));
  gpu.device = dynamic_cast<CudaDevice*>(&gpu.compute->kernels().device());
  if (gpu.device == nullptr) {
    return absl::InvalidArgumentError("--device must be cuda or cuda:N");
  }
  return gpu;
}

std::string DescribeGpu(const CudaDevice& device) {
  return DescribeCuda(device.api()).value_or("unknown");
}

}  // namespace cadre
