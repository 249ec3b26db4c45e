// What stands before every message on a link: the tag of its call and its length.
//
// Zeros come before a header so that the payload behind it begins at a multiple of
// kPayloadAlignment in the link's stream of bytes. Both ends count the stream, so nothing says how
// many zeros there are.
//
// Thread-safe (pure functions).
#pragma once

#include <array>
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

// Bytes of the zeros and the header of a message whose prefix begins at `position` of the stream.
constexpr size_t PrefixBytes(uint64_t position) {
  return kHeaderBytes + static_cast<size_t>(-(position + kHeaderBytes) % kPayloadAlignment);
}

// Fills `prefix`, which has PrefixBytes.
void WritePrefix(const MessageHeader& header, std::span<std::byte> prefix);
// Errors: InvalidArgument for what is not a prefix.
absl::StatusOr<MessageHeader> ReadPrefix(std::span<const std::byte> prefix);

}  // namespace cadre
