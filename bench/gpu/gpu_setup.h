// What programs that measure on a GPU share: the device with its kernels, or the plain reason why
// there is none.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/cuda/cuda_device.h"
#include "worker/compute.h"

namespace cadre {

// No GPU to measure on is neither a success nor a failure.
inline constexpr int kNoGpu = 3;

struct BenchGpu {
  std::unique_ptr<Compute> compute;
  // The compute's.
  CudaDevice* device = nullptr;
};

// `device`: "cuda" or "cuda:N". Errors: MakeCompute's.
absl::StatusOr<BenchGpu> MakeBenchGpu(const std::string& device,
                                      const std::vector<std::string>& libraries);

// "NVIDIA H200, driver 13.0, runtime 13.0": belongs beside everything that was measured.
std::string DescribeGpu(const CudaDevice& device);

// Says on stderr what went wrong. The program's exit code: kNoGpu where the machine, the driver or
// a library is missing, else 1.
int Explain(const char* program, const absl::Status& status);

}  // namespace cadre
