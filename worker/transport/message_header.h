// The header that precedes every message on a link: the tag of its call and its length.
//
// A header is preceded by zeros, so that the payload after it begins at a multiple of
// kPayloadAlignment in the link's stream of bytes. Both ends count the bytes of the stream, so the
// number of zeros is not transmitted.
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "worker/transport/call_tag.h"

namespace cadre {

inline constexpr size_t kPayloadAlignment = 64;
inline constexpr size_t kHeaderBytes = 40;
inline constexpr size_t kMaxPrefixBytes = kHeaderBytes + kPayloadAlignment - 1;

struct MessageHeader {
  CallTag tag;
  uint64_t length = 0;
};

// Size of the prefix (zeros and header) of a message that begins at `position` of the stream.
constexpr size_t PrefixBytes(uint64_t position) {
  return kHeaderBytes + -(position + kHeaderBytes) % kPayloadAlignment;
}

// Fills `prefix`, whose size is PrefixBytes of its position.
void WritePrefix(const MessageHeader& header, std::span<std::byte> prefix);
// Errors: InvalidArgument for anything but a prefix.
absl::StatusOr<MessageHeader> ReadPrefix(std::span<const std::byte> prefix);

}  // namespace cadre
