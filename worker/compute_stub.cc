#include "worker/compute.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<Compute>> MakeCudaCompute(int /*ordinal*/,
                                                         const ComputeOptions& /*options*/) {
  return absl::FailedPreconditionError(
      "this build has no CUDA back end; configure with -DCADRE_CUDA=ON");
}

}  // namespace cadre
