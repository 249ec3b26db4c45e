// A CUDA device with its libraries. cuBLAS, cuDNN and NCCL are loaded at run time, so that one
// build of the worker runs on hosts with and without GPUs; NCCL, when the first group of several
// ranks is connected.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/transport/nccl/nccl_api.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/library_loader.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/dense_math.h"
#include "worker/compute.h"

namespace cadre {
namespace {

class CudaCompute final : public Compute {
 public:
  CudaCompute(std::unique_ptr<CudaDevice> device, std::unique_ptr<DenseMath> math,
              const LibrarySearch& search)
      : device_(std::move(device)),
        libraries_(math->versions()),
        kernels_(MakeCudaBackend(*device_, std::move(math))),
        nccl_(search) {}

  Backend& kernels() override { return *kernels_; }
  std::string name() const override { return device_->name(); }
  std::string libraries() const override { return libraries_; }
  int64_t memory_bytes() const override { return device_->memory_limit(); }
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(Transport& control)> connect_data()
      override {
    return [this](Transport& control) -> absl::StatusOr<std::unique_ptr<Transport>> {
      CADRE_ASSIGN_OR_RETURN(const NcclApi* const nccl, nccl_.ForGroup(control.size()));
      return MakeNcclTransport(*nccl, *device_, *kernels_, control, {});
    };
  }

 private:
  const std::unique_ptr<CudaDevice> device_;
  const std::string libraries_;
  const std::unique_ptr<Backend> kernels_;
  LazyNccl nccl_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Compute>> MakeCudaCompute(int ordinal,
                                                         const ComputeOptions& options) {
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device,
                         CudaDevice::Make(RealCudaApi(), {.ordinal = ordinal,
                                                          .memory_limit = options.memory_limit,
                                                          .synchronous = options.synchronous}));
  const LibrarySearch search{.directories = options.libraries};
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<DenseMath> math, MakeLibraryMath(*device, search));
  return std::make_unique<CudaCompute>(std::move(device), std::move(math), search);
}

}  // namespace cadre
