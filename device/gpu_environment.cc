#include "device/gpu_environment.h"

#include <cstdlib>
#include <string>

namespace cadre {

void SetGpuEnvironment() {
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
}

bool SynchronousGpu() {
  const char* const value = std::getenv("CADRE_CUDA_SYNC");
  return value != nullptr && value == std::string("1");
}

}  // namespace cadre
