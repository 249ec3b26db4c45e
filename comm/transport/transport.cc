#include "comm/transport/transport.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cadre {

std::string CallTag::ToString() const {
  std::string text(CollectiveName(collective));
  if (algorithm != Algorithm::kNone && algorithm != Algorithm::kSingle) {
    absl::StrAppend(&text, " by ", AlgorithmName(algorithm));
  }
  absl::StrAppend(&text, ", number ", sequence, ", of ", elements, " ", DTypeName(dtype), " among ",
                  members, absl::StrFormat(" (group %x)", group));
  return text;
}

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
