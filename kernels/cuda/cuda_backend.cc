// The class CudaBackend: it makes the families of kernels and sets the precision. TF32 and bf16
// change only products and convolutions; sums, statistics and updates are computed in fp32 or
// wider, see backend.h.
#include "kernels/cuda/cuda_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_context.h"

namespace cadre {
namespace {

// The lowest compute capability with TF32 and bf16.
constexpr int kMinCapability = 80;

class CudaBackend final : public Backend {
 public:
  CudaBackend(CudaDevice& device, std::unique_ptr<DenseMath> math)
      : context_(device, std::move(math)) {
    families_ = {.memory = MakeCudaMemory(context_),
                 .dense = MakeCudaDense(context_),
                 .window = MakeCudaWindow(context_),
                 .norm = MakeCudaNorm(context_),
                 .pointwise = MakeCudaPointwise(context_),
                 .optimizer = MakeCudaOptimizer(context_),
                 .slices = MakeCudaSlices(context_)};
  }

  Device& device() override { return context_.device; }
  DType activation_type() const override {
    return context_.precision == Precision::kBf16 ? DType::kBFloat16 : DType::kFloat32;
  }
  absl::Status SetPrecision(Precision precision) override;
  void WeightsChanged(std::span<const float> weights) override {
    if (context_.precision == Precision::kBf16) context_.copies.Renew(weights);
  }
  std::unique_ptr<Backend> OneThread() const override { return nullptr; }

 private:
  CudaContext context_;
};

absl::Status CudaBackend::SetPrecision(Precision precision) {
  const int capability = context_.device.capability();
  if (precision != Precision::kFp32 && capability < kMinCapability) {
    return absl::InvalidArgumentError(
        absl::StrCat("precision ", precision == Precision::kTf32 ? "TF32" : "BF16",
                     " needs compute capability ", kMinCapability / 10, ".", kMinCapability % 10,
                     "; ", context_.device.name(), " has ", capability / 10, ".", capability % 10));
  }
  context_.precision = precision;
  context_.math->set_tf32(precision == Precision::kTf32);
  context_.copies.Clear();
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Backend> MakeCudaBackend(CudaDevice& device, std::unique_ptr<DenseMath> math) {
  return std::make_unique<CudaBackend>(device, std::move(math));
}

}  // namespace cadre
