// On the CPU the back end owns its threads, and tensors are sent over the control transport.
#include "worker/compute.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/hardware.h"

namespace cadre {
namespace {

class CpuCompute final : public Compute {
 public:
  explicit CpuCompute(const ComputeOptions& options)
      : name_(absl::StrCat(DeviceName(options.threads),
                           options.reference_kernels ? ", plain loops" : "")),
        kernels_(options.reference_kernels ? MakeReferenceBackend()
                                           : MakeCpuBackend(options.threads)) {}

  Backend& kernels() override { return *kernels_; }
  std::string name() const override { return name_; }
  int64_t memory_bytes() const override { return UsableMemoryBytes(); }
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(Transport& control)> connect_data()
      override {
    return nullptr;
  }

 private:
  const std::string name_;
  const std::unique_ptr<Backend> kernels_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Compute>> MakeCompute(const ComputeOptions& options) {
  if (options.device == "cpu") return std::make_unique<CpuCompute>(options);
  int ordinal = 0;
  absl::string_view number = options.device;
  const bool cuda = options.device == "cuda" ||
                    (absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &ordinal));
  if (!cuda || ordinal < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--device must be cpu, cuda or cuda:N (N = 0, 1, ...), not '", options.device, "'"));
  }
  if (options.reference_kernels) {
    return absl::InvalidArgumentError("--reference-kernels requires --device=cpu");
  }
  return MakeCudaCompute(ordinal, options);
}

}  // namespace cadre
