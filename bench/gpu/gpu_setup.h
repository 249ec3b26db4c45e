// Shared by the benchmarks on a GPU: the device with its kernels.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/cuda/cuda_device.h"
#include "worker/compute.h"

namespace cadre {

// Exit code if there is no GPU, which is neither a success nor a failure.
inline constexpr int kNoGpu = 3;

struct BenchGpu {
  std::unique_ptr<Compute> compute;
  // Owned by `compute`.
  CudaDevice* device = nullptr;
};

// `device`: "cuda" or "cuda:N". `libraries`: folders separated by commas. Errors: MakeCompute's.
absl::StatusOr<BenchGpu> MakeBenchGpu(const std::string& device, const std::string& libraries);

// "NVIDIA H200, driver 13.0, runtime 13.0": for output lines.
std::string DescribeGpu(const CudaDevice& device);

}  // namespace cadre
