#include "worker/transport/message_header.h"

#include <bit>
#include <cstring>

namespace cadre {
namespace {

static_assert(std::endian::native == std::endian::little, "headers travel in memory order");

constexpr uint32_t kMessageMagic = 0x43e5ad7e;

// As it travels.
struct Packed {
  uint32_t magic = kMessageMagic;
  uint8_t collective = 0;
  uint8_t algorithm = 0;
  uint8_t dtype = 0;
  uint8_t zero = 0;
  uint16_t members = 0;
  uint16_t zeros = 0;
  uint32_t group = 0;
  uint32_t sequence = 0;
  uint32_t more_zeros = 0;
  uint64_t elements = 0;
  uint64_t length = 0;
};
static_assert(sizeof(Packed) == kHeaderBytes);

}  // namespace

void WritePrefix(const MessageHeader& header, std::span<std::byte> prefix) {
  const Packed packed{.collective = static_cast<uint8_t>(header.tag.collective),
                      .algorithm = static_cast<uint8_t>(header.tag.algorithm),
                      .dtype = static_cast<uint8_t>(header.tag.dtype),
                      .members = header.tag.members,
                      .group = header.tag.group,
                      .sequence = header.tag.sequence,
                      .elements = header.tag.elements,
                      .length = header.length};
  const size_t zeros = prefix.size() - sizeof packed;
  std::memset(prefix.data(), 0, zeros);
  std::memcpy(prefix.data() + zeros, &packed, sizeof packed);
}

absl::StatusOr<MessageHeader> ReadPrefix(std::span<const std::byte> prefix) {
  Packed packed;
  std::memcpy(&packed, prefix.data() + prefix.size() - sizeof packed, sizeof packed);
  if (packed.magic != kMessageMagic) return absl::InvalidArgumentError("not a message");
  return MessageHeader{.tag = {.collective = static_cast<Collective>(packed.collective),
                               .algorithm = static_cast<Algorithm>(packed.algorithm),
                               .dtype = static_cast<DType>(packed.dtype),
                               .members = packed.members,
                               .group = packed.group,
                               .sequence = packed.sequence,
                               .elements = packed.elements},
                       .length = packed.length};
}

}  // namespace cadre
