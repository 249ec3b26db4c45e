// The class CudaBackend: it makes the families of kernels and sets the precision. TF32 and bf16
// change only products and convolutions; sums, statistics and updates are computed in fp32 or
// wider, see backend.h. And WeightCopies, which needs no kernels of its own.
#include "kernels/cuda/cuda_backend.h"

#include <functional>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/cuda_context.h"

namespace cadre {

// The requested interval may be any part of a copy, because layers use parts of a bucket (the
// parameters that Renew was called for). So the copies are ordered by address, and the last one
// that begins at or before the interval is examined.
Values WeightCopies::Find(ConstFloatSpan weights) const {
  auto after = copies_.upper_bound(weights.data());
  if (weights.empty() || after == copies_.begin()) return {};
  const auto& [begin, copy] = *std::prev(after);
  const size_t offset = weights.data() - begin;
  if (offset >= copy.size || weights.size() > copy.size - offset) return {};
  return {copy.values.data() + offset, weights.size(), DType::kBFloat16};
}

void WeightCopies::Renew(ConstFloatSpan weights) {
  if (weights.empty()) return;
  if (Find(weights).empty()) Make(weights);
  const Values copy = Find(weights);
  if (!copy.empty()) LaunchConvert(device_, weights, copy);
}

// Copies that the new one overlaps are replaced but kept until Clear, since enqueued work and
// captured graphs may still read them.
void WeightCopies::Make(ConstFloatSpan weights) {
  if (device_.capturing()) {
    device_.Fail(absl::InternalError("parameters were first announced while a graph was captured"));
    return;
  }
  const float* const end = weights.data() + weights.size();
  const std::less<const float*> before;
  for (auto it = copies_.begin(); it != copies_.end();) {
    const bool overlaps =
        before(it->first, end) && before(weights.data(), it->first + it->second.size);
    if (overlaps) replaced_.push_back(std::move(it->second.values));
    it = overlaps ? copies_.erase(it) : std::next(it);
  }
  DeviceArray<uint16_t> values(device_, weights.size(), "bf16 weights");
  if (values.data() == nullptr) return;
  copies_[weights.data()] = {.size = weights.size(), .values = std::move(values)};
}

void WeightCopies::Clear() {
  copies_.clear();
  replaced_.clear();
}

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
                 .slices = MakeCudaSlices(context_),
                 .codecs = MakeCudaCodecs(context_)};
  }

  Device& device() override { return context_.device; }
  DType activation_type() const override {
    return context_.precision == Precision::kBf16 ? DType::kBFloat16 : DType::kFloat32;
  }
  absl::Status CheckPrecision(Precision precision) const override;
  absl::Status SetPrecision(Precision precision) override;
  void WeightsChanged(ConstFloatSpan weights) override {
    if (context_.precision == Precision::kBf16) context_.copies.Renew(weights);
  }
  std::unique_ptr<Backend> OneThread() const override { return nullptr; }
  BackendFallbacks fallbacks() const override {
    // Null in tests that need no library.
    if (context_.math == nullptr) return {};
    DenseMathCounters counters = context_.math->counters();
    return {.convolutions = counters.fallback_convolutions,
            .convolution_reason = std::move(counters.convolution_reason),
            .attentions = counters.unfused_attentions,
            .attention_reason = std::move(counters.attention_reason)};
  }

 private:
  CudaContext context_;
};

absl::Status CudaBackend::CheckPrecision(Precision precision) const {
  const int capability = context_.device.capability();
  if (precision != Precision::kFp32 && capability < kMinCapability) {
    return absl::InvalidArgumentError(
        absl::StrCat("precision ", precision == Precision::kTf32 ? "TF32" : "BF16",
                     " needs compute capability ", kMinCapability / 10, ".", kMinCapability % 10,
                     "; ", context_.device.name(), " has ", capability / 10, ".", capability % 10));
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::SetPrecision(Precision precision) {
  CADRE_RETURN_IF_ERROR(CheckPrecision(precision));
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
