// The three messages with which ranks connect: greeting, header and answer.
//
// clang-format off
//   listener -> caller  Greeting  a challenge
//   caller -> listener  Header    identity of the group, ranks, purpose, host, wakeups, memory
//   listener -> caller  Answer    code, host, wakeups if the memory is used, reason of a refusal
// clang-format on
//
// A message is sent as it lies in memory: a fixed size and no padding, integers little-endian,
// texts filled up with zeros. Headers and answers end with a tag, the HMAC-SHA256 of the rest, so
// only ranks that received the key of the generation from the coordinator can form them. The tag of
// a header also covers the challenge of the greeting, and the tag of an answer covers that of the
// header, which contains a nonce of the caller. Challenges and nonces are random, so a recorded
// message is not valid on another connection. The key is never sent. A refusal is not
// authenticated, because a listener may not know the key of the generation.
//
// Thread-safe (values and functions without state).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "base/secret_key.h"
#include "comm/transport/transport.h"

namespace cadre {

// Identifies one generation of one group. It is equal on all ranks of that generation and on no
// others.
struct GroupIdentity {
  // See base/protocol.h.
  uint32_t protocol = 0;
  std::string run;
  uint32_t group = 0;
  uint64_t generation = 0;
  // Secret of the generation. Zeros where ranks have no common secret, such as in a probe.
  SecretKey key{};
  friend bool operator==(const GroupIdentity&, const GroupIdentity&) = default;
};

// At most `size` bytes without zeros; longer texts are truncated.
template <size_t size>
struct FixedText {
  std::array<char, size> bytes{};

  FixedText() = default;
  explicit FixedText(absl::string_view text) {
    std::copy_n(text.data(), std::min(text.size(), size), bytes.data());
  }
  absl::string_view view() const { return {bytes.data(), strnlen(bytes.data(), size)}; }
  bool empty() const { return bytes[0] == '\0'; }
};

// By channel; empty names if the rank does not share memory.
using WakeupNames = std::array<FixedText<64>, Transport::kChannels>;

// The use of a connection: a connection of a channel, or the pair's control connection.
struct Purpose {
  static constexpr uint8_t kControl = 0xff;
  uint8_t channel = kControl;
  uint8_t connection = 0;
  friend bool operator==(const Purpose&, const Purpose&) = default;
};

struct Greeting {
  // The last digit is the version of this format.
  static constexpr std::array<char, 8> kMagic = {'c', 'a', 'd', 'r', 'e', 'g', 'r', '7'};
  std::array<char, 8> magic = kMagic;
  Tag challenge{};
};

struct Header {
  static constexpr std::array<char, 8> kMagic = {'c', 'a', 'd', 'r', 'e', 'r', 'k', '6'};
  std::array<char, 8> magic = kMagic;
  // TextDigest of the run.
  uint64_t run = 0;
  uint64_t generation = 0;
  // See HostIdentity.
  uint64_t host = 0;
  uint32_t group = 0;
  uint32_t ranks = 0;
  uint32_t from = 0;
  uint32_t to = 0;
  uint32_t protocol = 0;
  Purpose purpose;
  // TCP connections per channel if the pair does not share memory.
  uint8_t connections = 0;
  std::array<uint8_t, 1> unused{};
  // Control connections only: the caller's wakeups, and memory that it shares with the callee
  // (SharedSegment::description).
  WakeupNames wakeups;
  FixedText<200> memory;
  Tag nonce{};
  Tag tag{};
};

struct Answer {
  enum class Code : uint64_t {
    kAccepted = 1,
    kWrongProtocol = 2,
    kStaleGeneration = 3,
    kWrongKey = 4,
    kWrongRank = 5,
  };
  Code code = Code::kAccepted;
  // Host of the rank that answers.
  uint64_t host = 0;
  // The callee's wakeups if it uses the caller's memory; otherwise empty.
  WakeupNames wakeups;
  // Text for the user; empty for kAccepted.
  FixedText<256> reason;
  Tag tag{};
};

template <typename Message>
absl::string_view BytesOf(const Message& message) {
  static_assert(std::endian::native == std::endian::little);
  static_assert(std::has_unique_object_representations_v<Message>);
  return {reinterpret_cast<const char*>(&message), sizeof message};
}

// Requires: `bytes` has the size of the message.
template <typename Message>
Message FromBytes(absl::string_view bytes) {
  Message message;
  std::memcpy(&message, bytes.data(), sizeof message);
  return message;
}

// `challenge`: of a header, that of the greeting; of an answer, the tag of the header.
template <typename Message>
void Sign(const SecretKey& key, Message& message, const Tag& challenge) {
  message.tag = challenge;
  message.tag = MakeTag(key, BytesOf(message));
}

template <typename Message>
bool IsSigned(const SecretKey& key, const Message& message, const Tag& challenge) {
  Message expected = message;
  Sign(key, expected, challenge);
  return AreEqual(expected.tag, message.tag);
}

}  // namespace cadre
