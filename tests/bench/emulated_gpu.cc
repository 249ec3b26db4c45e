// MakeCudaCompute for benchmarks on a GPU that run on an emulated device: their times mean nothing,
// but their code is executed. --emulated_fault selects what is missing or does not work.
#include <gflags/gflags.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "tests/emulator/emulated_compute.h"

DEFINE_string(emulated_fault, "",
              "no-gpu, old-driver, no-plan, no-product, failed-plan, no-graph or unfused; empty: "
              "everything works.");

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
  if (fault == "unfused") rank.machine->FailNext("plan of attention", cudaErrorNotSupported);
  if (fault == "no-product") {
    rank.machine->FailNext("plan of matrix product", cudaErrorNotSupported);
  }
  return compute;
}

}  // namespace cadre
