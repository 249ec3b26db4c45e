// A rig with an emulated device, whose work runs in the call that enqueues it.
#include <memory>
#include <optional>
#include <utility>

#include "tests/emulator/emulated_rank.h"
#include "tests/kernels/rig.h"

namespace cadre {

std::string RigName() { return "CudaEmulated"; }

std::string MissingRig() { return ""; }

namespace {

Rig RigOf(const EmulatedRankOptions& options) {
  EmulatedRank rank = MakeEmulatedRank(options);
  std::unique_ptr<Backend> kernels = std::move(rank.kernels);
  return {std::make_shared<EmulatedRank>(std::move(rank)), std::move(kernels)};
}

}  // namespace

Rig MakeRig() { return RigOf({.memory = size_t{512} << 20}); }

std::optional<Rig> MakeLargeRig() {
  return RigOf({.memory = size_t{512} << 20, .processors = kH100Processors});
}

}  // namespace cadre
