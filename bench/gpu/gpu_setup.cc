#include "bench/gpu/gpu_setup.h"

#include <cstdio>

#include "base/status.h"

namespace cadre {

absl::StatusOr<BenchGpu> MakeBenchGpu(const std::string& device,
                                      const std::vector<std::string>& libraries) {
  BenchGpu gpu;
  CADRE_ASSIGN_OR_RETURN(gpu.compute, MakeCompute({.device = device, .libraries = libraries}));
  gpu.device = dynamic_cast<CudaDevice*>(&gpu.compute->kernels().device());
  if (gpu.device == nullptr) {
    return absl::InvalidArgumentError("--device: this measures CUDA devices, cuda or cuda:N");
  }
  return gpu;
}

std::string DescribeGpu(const CudaDevice& device) {
  return DescribeCuda(device.api()).value_or("unknown");
}

int Explain(const char* program, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", program, std::string(status.message()).c_str());
  const bool missing = absl::IsFailedPrecondition(status) || absl::IsNotFound(status);
  return missing ? kNoGpu : 1;
}

}  // namespace cadre
