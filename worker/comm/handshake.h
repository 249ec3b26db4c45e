// The first bytes on a connection between two ranks: who calls, of which group, and the answer.
//
//   caller -> listener  magic, schema hash, group, generation, from, to, ranks, run
//   listener -> caller  answer code, reason
//
// Integers are little-endian; strings are preceded by their length in 16 bits. Pure functions.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

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

struct Greeting {
  GroupIdentity group;
  uint32_t from = 0;
  uint32_t to = 0;
  uint32_t ranks = 0;
};

struct Answer {
  enum class Code : uint8_t {
    kWelcome = 1,
    kWrongSchema = 2,
    kStaleGeneration = 3,
    kWrongPlace = 4,
  };
  Code code = Code::kWelcome;
  // In plain words; empty for kWelcome.
  std::string reason;
};

// Requires: the run's name has at most kMaxText bytes; longer texts are cut.
std::string Encode(const Greeting& greeting);
std::string Encode(const Answer& answer);

inline constexpr size_t kMaxText = 1024;

// Nothing: `bytes` is a proper prefix of a greeting, read on. InvalidArgument: it can never become
// one. Otherwise the greeting, which must be all of `bytes`: a caller says nothing more before the
// answer.
absl::StatusOr<std::optional<Greeting>> DecodeGreeting(absl::string_view bytes);

// Bytes of an answer that tell its length; data may follow an answer, so no more may be read.
inline constexpr size_t kAnswerHeadBytes = 3;
// Length of the answer that begins with `head`. Requires: head has kAnswerHeadBytes.
size_t AnswerBytes(absl::string_view head);
// Errors: InvalidArgument for what is not a whole answer.
absl::StatusOr<Answer> DecodeAnswer(absl::string_view bytes);

}  // namespace cadre
