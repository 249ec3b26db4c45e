#include "worker/transport/message_header.h"

#include <bit>
#include <cstring>
#include <type_traits>

namespace cadre {
namespace {

static_assert(std::endian::native == std::endian::little, "headers are sent in memory order");

constexpr uint32_t kMessageMagic = 0x43e5ad7f;

// The wire format.
struct WireHeader {
  uint32_t magic = kMessageMagic;
  uint32_t reserved = 0;
  CallTag tag;
  uint64_t length = 0;
};
static_assert(sizeof(WireHeader) == kHeaderBytes && std::is_trivially_copyable_v<CallTag>);

}  // namespace

void WritePrefix(const MessageHeader& header, std::span<std::byte> prefix) {
  const WireHeader wire{.tag = header.tag, .length = header.length};
  const size_t zeros = prefix.size() - sizeof wire;
  std::memset(prefix.data(), 0, zeros);
  std::memcpy(prefix.data() + zeros, &wire, sizeof wire);
}

absl::StatusOr<MessageHeader> ReadPrefix(std::span<const std::byte> prefix) {
  WireHeader wire;
  std::memcpy(&wire, prefix.data() + prefix.size() - sizeof wire, sizeof wire);
  if (wire.magic != kMessageMagic) return absl::InvalidArgumentError("not a message header");
  return MessageHeader{.tag = wire.tag, .length = wire.length};
}

}  // namespace cadre
