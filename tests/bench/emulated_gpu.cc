// MakeCudaCompute for benchmarks on a GPU that run on an emulated device: their times mean nothing,
// but their code is executed. --emulated_fault selects what is missing or does not work.
#include <gflags/gflags.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/emulator/emulated_compute.h"
#include "tests/emulator/emulated_math.h"

DEFINE_string(emulated_fault, "",
              "no-gpu, old-driver, no-plan, failed-plan, no-graph or unfused; empty: everything works.");

namespace cadre {
namespace {

// The errors of a machine without a device, or with a driver for an older CUDA.
absl::Status MachineError(bool has_driver) {
  EmulatedCuda machine(EmulatedCuda::Mode::kInline, /*devices=*/0);
  CudaApi api = machine.api();
  if (has_driver) {
    api.driver_version = [](int* version) {
      *version = 11000;
      return cudaSuccess;
    };
  }
  return CudaDevice::Make(api, {}).status();
}

// Math of a library that has no plan for fused attention.
class UnfusedMath final : public DenseMath {
 public:
  explicit UnfusedMath(std::unique_ptr<DenseMath> math) : math_(std::move(math)) {}
  void set_tf32(bool allowed) override { math_->set_tf32(allowed); }
  void MatrixProduct(const MatrixProductDims& dims, ConstValues a, ConstValues b,
                     ConstValues bias, Values c) override {
    math_->MatrixProduct(dims, a, b, bias, c);
  }
  void ConvolutionForward(const ConvolutionDims& dims, ConstValues x, ConstValues w,
                          Values y) override {
    math_->ConvolutionForward(dims, x, w, y);
  }
  void ConvolutionBackwardData(const ConvolutionDims& dims, ConstValues dy, ConstValues w,
                               Values dx) override {
    math_->ConvolutionBackwardData(dims, dy, w, dx);
  }
  void ConvolutionBackwardWeights(const ConvolutionDims& dims, ConstValues x, ConstValues dy,
                                  FloatSpan dw) override {
    math_->ConvolutionBackwardWeights(dims, x, dy, dw);
  }
  bool HasFusedAttention(const AttentionDims& dims, DType type) override {
    if (math_->HasFusedAttention(dims, type)) unfused_ = 1;
    return false;
  }
  void FusedAttentionForward(const AttentionDims&, ConstValues, Values, FloatSpan) override {}
  void FusedAttentionBackward(const AttentionDims&, ConstValues, ConstValues, ConstValues,
                              ConstFloatSpan, Values) override {}
  std::string versions() const override { return math_->versions(); }
  DenseMathCounters counters() const override { return {.unfused_attentions = unfused_}; }

 private:
  const std::unique_ptr<DenseMath> math_;
  int64_t unfused_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Compute>> MakeCudaCompute(int /*ordinal*/,
                                                         const ComputeOptions& /*options*/) {
  const std::string& fault = FLAGS_emulated_fault;
  if (fault == "no-gpu") return MachineError(/*has_driver=*/false);
  if (fault == "old-driver") return MachineError(/*has_driver=*/true);
  static FakeNccl nccl;
  auto compute = std::make_unique<EmulatedCompute>(nccl, EmulatedRankOptions{});
  EmulatedRank& rank = compute->rank();
  // As LibraryMath fails if cuDNN lists no engine, and if making a plan fails otherwise.
  const auto error = absl::FailedPreconditionError("cuDNN: convolution forward: no plan");
  if (fault == "no-plan") rank.device->Fail(WithReason(error, kReasonNoPlan));
  if (fault == "failed-plan") rank.device->Fail(error);
  if (fault == "no-graph") rank.machine->FailNext("graph_instantiate", cudaErrorNotSupported);
  if (fault == "unfused") {
    rank.kernels = MakeCudaBackend(
        *rank.device, std::make_unique<UnfusedMath>(MakeEmulatedMath(*rank.device, *rank.machine)));
  }
  return compute;
}

}  // namespace cadre
