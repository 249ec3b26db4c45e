#include "tests/emulator/emulated_rank.h"

#include <utility>

#include "glog/logging.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/emulator/emulated_math.h"

namespace cadre {

EmulatedRank MakeEmulatedRank(EmulatedCuda& machine, Precision precision) {
  EmulatedRank rank;
  // The emulated libraries reserve no device memory.
  auto device = CudaDevice::Make(machine.api(), {.reserve_bytes = 0});
  CHECK(device.ok()) << device.status();
  rank.device = *std::move(device);
  rank.kernels = MakeCudaBackend(*rank.device, MakeEmulatedMath(*rank.device, machine));
  const absl::Status set = rank.kernels->SetPrecision(precision);
  CHECK(set.ok()) << set;
  return rank;
}

EmulatedRank MakeEmulatedRank(const EmulatedRankOptions& options) {
  auto machine = std::make_unique<EmulatedCuda>(options.mode);
  machine->set_memory(options.memory);
  machine->set_processors(options.processors);
  EmulatedRank rank = MakeEmulatedRank(*machine, options.precision);
  rank.machine = std::move(machine);
  return rank;
}

EmulatedRank MakeEmulatedRank(EmulatedCuda::Mode mode) { return MakeEmulatedRank({.mode = mode}); }

}  // namespace cadre
