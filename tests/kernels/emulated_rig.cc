// A rig with an emulated device, whose work runs in the call that enqueues it.
#include "glog/logging.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/emulator/emulated_cuda.h"
#include "tests/emulator/emulated_math.h"
#include "tests/kernels/cuda_rig.h"

namespace cadre {
namespace {

class EmulatedRig final : public CudaRig {
 public:
  EmulatedRig() : cuda_(EmulatedCuda::Mode::kInline) {
    auto device = CudaDevice::Make(cuda_.api(), {.memory_limit = int64_t{512} << 20});
    CHECK(device.ok()) << device.status();
    device_ = *std::move(device);
    kernels_ = MakeCudaBackend(*device_, MakeEmulatedMath(*device_, cuda_));
  }

  CudaDevice& device() override { return *device_; }
  Backend& kernels() override { return *kernels_; }

 private:
  EmulatedCuda cuda_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Backend> kernels_;
};

}  // namespace

std::string CudaRigName() { return "CudaEmulated"; }
std::string MissingCudaRig() { return ""; }
std::unique_ptr<CudaRig> MakeCudaRig() { return std::make_unique<EmulatedRig>(); }

}  // namespace cadre
