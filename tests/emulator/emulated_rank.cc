#include "tests/emulator/emulated_rank.h"

#include <utility>

#include "glog/logging.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/emulator/emulated_math.h"

namespace cadre {

EmulatedRank MakeEmulatedRank(const EmulatedRankOptions& options) {
  EmulatedRank rank;
  rank.machine = std::make_unique<EmulatedCuda>(options.mode);
  rank.machine->set_memory(options.memory);
  // The emulated libraries need no device memory.
  auto device = CudaDevice::Make(rank.machine->api(), {.reserve_bytes = 0});
  CHECK(device.ok()) << device.status();
  rank.device = *std::move(device);
  rank.kernels = MakeCudaBackend(*rank.device, MakeEmulatedMath(*rank.device, *rank.machine));
  const absl::Status set = rank.kernels->SetPrecision(options.precision);
  CHECK(set.ok()) << set;
  return rank;
}

EmulatedRank MakeEmulatedRank(EmulatedCuda::Mode mode) { return MakeEmulatedRank({.mode = mode}); }

}  // namespace cadre
