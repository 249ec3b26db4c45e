// cuDNN's plans for a device that this machine need not have. If the library is not installed,
// tests are skipped with a message that lists the searched folders.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "absl/status/statusor.h"
#include "kernels/cuda/cudnn_plan.h"
#include "kernels/cuda/vendor_api.h"
#include "tests/kernels/vendor_libraries.h"

namespace cadre {

// The properties of an H100 in cuDNN's format.
inline constexpr char kH100[] =
    R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
    R"("regsPerBlock":65536,"multiProcessorCount":132,"warpSize":32,)"
    R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,)"
    R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)"
    R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)"
    R"("supportCoopLaunch":1,"totalGlobalMem":85000000000,"smClockRateKHz":1980000,)"
    R"("memClockRateKHz":2619000,"l2CacheSize":52428800,"cudaDeviceId":0,"deviceVer":900,)"
    R"("driverVer":13000,"deviceName":"NVIDIA H100 80GB HBM3"})";

inline cudaError_t H100Properties(cudaDeviceProp* properties, int /*device*/) {
  std::memset(properties, 0, sizeof(*properties));
  properties->major = 9;
  properties->multiProcessorCount = 132;
  return cudaSuccess;
}

class PlansWithoutGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<CudnnApi> api = LoadCudnn(VendorLibraries());
    if (!api.ok()) GTEST_SKIP() << "no cuDNN on this machine: " << api.status().message();
    api_ = *api;
    cuda_.properties = &H100Properties;
    target_ = {.cudnn = &api_, .cuda = &cuda_, .description = kH100};
  }

  CudnnApi api_;
  CudaApi cuda_;
  CudnnTarget target_;
};

}  // namespace cadre
