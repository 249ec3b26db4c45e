#include "worker/transport/transport.h"

#include <cstring>

namespace cadre {

absl::Status Transport::RunNative(int /*channel*/, const CallTag& /*tag*/,
                                  const NativeCall& /*call*/) {
  return absl::InvalidArgumentError(
      "'native' collectives require NCCL, and the data of this group is not on CUDA devices");
}

absl::Status Transport::CopyWithin(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
  return absl::OkStatus();
}

}  // namespace cadre
