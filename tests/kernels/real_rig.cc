// A rig with this machine's GPU and libraries. If there is a GPU, missing libraries are a failure.
#include "absl/strings/str_cat.h"
#include "device/cuda/cuda_api.h"
#include "glog/logging.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/cuda_rig.h"
#include "tests/kernels/vendor_libraries.h"

namespace cadre {
namespace {

class RealRig final : public CudaRig {
 public:
  RealRig() {
    auto device = CudaDevice::Make(RealCudaApi(), {.memory_limit = int64_t{4} << 30});
    CHECK(device.ok()) << device.status();
    device_ = *std::move(device);
    auto math = MakeLibraryMath(*device_, VendorLibraries());
    CHECK(math.ok()) << math.status();
    kernels_ = MakeCudaBackend(*device_, *std::move(math));
  }

  CudaDevice& device() override { return *device_; }
  Backend& kernels() override { return *kernels_; }

 private:
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Backend> kernels_;
};

}  // namespace

std::string CudaRigName() { return "Cuda"; }

std::string MissingCudaRig() {
  const auto described = DescribeCuda(RealCudaApi());
  return described.ok() ? "" : absl::StrCat("needs a GPU: ", described.status().message());
}

std::unique_ptr<CudaRig> MakeCudaRig() { return std::make_unique<RealRig>(); }

}  // namespace cadre
