// A rig with an emulated device, whose work runs in the call that enqueues it.
#include <utility>

#include "tests/emulator/emulated_rank.h"
#include "tests/kernels/cuda_rig.h"

namespace cadre {

std::string CudaRigName() { return "CudaEmulated"; }

std::string MissingCudaRig() { return ""; }

CudaRig MakeCudaRig() {
  EmulatedRank rank = MakeEmulatedRank({.memory = size_t{512} << 20});
  return {std::move(rank.machine), std::move(rank.device), std::move(rank.kernels)};
}

}  // namespace cadre
