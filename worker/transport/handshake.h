// The words with which two ranks connect: who calls, of which group and what for, the answer, and,
// on a pair's first connection, how the two settle what their channels run over.
//
//   caller -> listener  Greeting  magic, schema hash, group, place, purpose, host, run, wakeups
//   listener -> caller  Answer    code, host, whether memory may be shared, reason
//   callee -> caller    Offer     a piece of shared memory and wakeups; only if both would share
//   caller -> callee    Settled   the memory is shared, or so many connections for each channel
//
// The caller says nothing more before the answer, so a greeting needs no length; the others begin
// with theirs, in 16 bits. Integers are little-endian; texts are preceded by their length in 16
// bits. Pure functions.
//
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/transport/transport.h"

namespace cadre {

// Names one membership of one group; equal on all of its ranks and on nobody else.
struct GroupIdentity {
  // Of the messages that the program speaks; ranks with different schemas do not work together.
  uint64_t schema_hash = 0;
  std::string run;
  uint32_t group = 0;
  uint64_t generation = 0;
  friend bool operator==(const GroupIdentity&, const GroupIdentity&) = default;
};

// By channel.
using WakeupNames = std::array<std::string, Transport::kChannels>;

// What a connection is for: a connection of a channel, or the pair's control connection.
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
  // A number for the machine that the caller is on.
  uint64_t host = 0;
  // The caller's wakeups; empty names: it does not want to share memory.
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
  // Of the rank that answers.
  uint64_t host = 0;
  bool shares_memory = false;
  // In plain words; empty for kWelcome.
  std::string reason;
};

struct Offer {
  // How to find the memory; empty: there is none to share.
  std::string description;
  WakeupNames wakeups;
};

struct Settled {
  // Connections of each channel; 0: the memory that was offered is shared.
  uint8_t connections = 0;
};

// Longer texts are cut where we write and refused where we read.
inline constexpr size_t kMaxText = 1024;
// Of a wakeup, and of the memory's description.
inline constexpr size_t kMaxName = 256;

std::string Encode(const Greeting& greeting);
std::string Encode(const Answer& answer);
std::string Encode(const Offer& offer);
std::string Encode(const Settled& settled);

// Nothing: `bytes` is a proper prefix of a greeting, read on. InvalidArgument: it can never become
// one. Otherwise the greeting, which must be all of `bytes`.
absl::StatusOr<std::optional<Greeting>> DecodeGreeting(absl::string_view bytes);

// Bytes at the front of the other three that tell their length; more may follow them, so no more
// than that length may be read.
inline constexpr size_t kHeadBytes = 2;
// Length, head and all, of what begins with `head`. Requires: head has kHeadBytes.
size_t WholeBytes(absl::string_view head);

// Errors: InvalidArgument for what is not all of one.
absl::StatusOr<Answer> DecodeAnswer(absl::string_view bytes);
absl::StatusOr<Offer> DecodeOffer(absl::string_view bytes);
absl::StatusOr<Settled> DecodeSettled(absl::string_view bytes);

}  // namespace cadre
