#include "absl/strings/str_cat.h"
#include "tests/kernels/cuda_rig.h"
#include "tests/kernels/testing.h"

namespace cadre {

std::vector<BackEnd> BackEnds() {
  const std::string missing = MissingCudaRig();
  // Data at addresses that allow 16-byte accesses, and at addresses that do not.
  return {{CudaRigName(), [] { return MakeStagedBackend(MakeCudaRig(), 0); }, missing},
          {absl::StrCat(CudaRigName(), "Misaligned"),
           [] { return MakeStagedBackend(MakeCudaRig(), 1); }, missing}};
}

}  // namespace cadre
