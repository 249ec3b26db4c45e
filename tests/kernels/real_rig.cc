// A rig with this machine's GPU and libraries. If there is a GPU, missing libraries are a failure.
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_machine.h"
#include "device/gpu_environment.h"
#include "glog/logging.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/rig.h"
#include "tests/kernels/vendor_libraries.h"

namespace cadre {

std::string RigName() { return "Cuda"; }

std::string MissingRig() {
  const auto described = DescribeCuda(RealCudaApi());
  return described.ok() ? "" : absl::StrCat("needs a GPU: ", described.status().message());
}

Rig MakeRig() {
  auto device = CudaDevice::Make(
      RealCudaApi(), {.memory_limit = int64_t{4} << 30, .synchronous = SynchronousGpu()});
  CHECK(device.ok()) << device.status();
  auto math = MakeLibraryMath(**device, VendorLibraries());
  CHECK(math.ok()) << math.status();
  auto kernels = MakeCudaBackend(**device, *std::move(math));
  return {std::shared_ptr<CudaDevice>(*std::move(device)), std::move(kernels)};
}

std::optional<Rig> MakeLargeRig() { return std::nullopt; }

}  // namespace cadre
