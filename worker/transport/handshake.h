// The messages with which two ranks connect.
//
//   caller -> listener  Greeting  magic, schema hash, group, ranks, purpose, host, run, wakeups
//   listener -> caller  Answer    code, host, whether memory may be shared, reason
//   callee -> caller    Offer     shared memory and wakeups; only if both ranks can share memory
//   caller -> callee    Settled   that the memory is used, or the number of connections per channel
//
// Offer and Settled are sent on a pair's control connection only. The caller sends nothing after
// the greeting until it has the answer, so a greeting needs no length field; every other message
// begins with a head, which is its length in 16 bits. Integers are little-endian; the length of a
// text precedes it, in 16 bits.
//
// Thread-safe (values and functions without state).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/transport/socket.h"
#include "worker/transport/transport.h"

namespace cadre {

// Identifies one generation of one group. It is equal on all ranks of that generation and on no
// others.
struct GroupIdentity {
  // Hash of the protocol's messages; ranks with different schemas cannot work together.
  uint64_t schema_hash = 0;
  std::string run;
  uint32_t group = 0;
  uint64_t generation = 0;
  friend bool operator==(const GroupIdentity&, const GroupIdentity&) = default;
};

// By channel.
using WakeupNames = std::array<std::string, Transport::kChannels>;

// The use of a connection: a connection of a channel, or the pair's control connection.
struct Purpose {
  static constexpr uint8_t kControl = 0xff;
  uint8_t channel = kControl;
  uint8_t connection = 0;
  friend auto operator<=>(const Purpose&, const Purpose&) = default;
};

struct Greeting {
  GroupIdentity group;
  uint32_t from = 0;
  uint32_t to = 0;
  uint32_t ranks = 0;
  Purpose purpose;
  // See HostIdentity.
  uint64_t host = 0;
  // The caller's wakeups; empty names if it does not share memory.
  WakeupNames wakeups;
  bool shares_memory() const { return !wakeups[0].empty(); }
};

struct Answer {
  enum class Code : uint8_t {
    kWelcome = 1,
    kWrongSchema = 2,
    kStaleGeneration = 3,
    kWrongRank = 4,
  };
  Code code = Code::kWelcome;
  // Host of the rank that answers.
  uint64_t host = 0;
  bool shares_memory = false;
  // Text for the user; empty for kWelcome.
  std::string reason;
};

struct Offer {
  // See SharedSegment::description; empty if no memory can be shared.
  std::string description;
  WakeupNames wakeups;
};

struct Settled {
  // Connections per channel; 0: the offered memory is used.
  uint8_t connections = 0;
};

// Maximum length of a run and of a reason. Longer texts are truncated when encoded and rejected
// when decoded.
inline constexpr size_t kMaxText = 1024;
// The same for the name of a wakeup and the description of memory.
inline constexpr size_t kMaxName = 256;

std::string Encode(const Greeting& greeting);
std::string Encode(const Answer& answer);
std::string Encode(const Offer& offer);
std::string Encode(const Settled& settled);

// Returns nullopt if `bytes` is an incomplete greeting. Errors: InvalidArgument if no greeting
// begins with `bytes`, or if bytes follow the greeting.
absl::StatusOr<std::optional<Greeting>> DecodeGreeting(absl::string_view bytes);

// Size of the head of the other messages.
inline constexpr size_t kHeadBytes = 2;
// Size of a message with this head. Requires: `head` has at least kHeadBytes.
size_t MessageBytes(absl::string_view head);
// Reads more of a message with a head, without blocking and not beyond its end. Returns whether
// `bytes` is complete. Errors: as ReadUntil.
absl::StatusOr<bool> ReadHandshakeMessage(const Socket& socket, std::string* bytes);

// Errors: InvalidArgument unless `bytes` is exactly one message.
absl::StatusOr<Answer> DecodeAnswer(absl::string_view bytes);
absl::StatusOr<Offer> DecodeOffer(absl::string_view bytes);
absl::StatusOr<Settled> DecodeSettled(absl::string_view bytes);

}  // namespace cadre
