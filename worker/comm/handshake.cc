#include "worker/comm/handshake.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// Says what the connection is for; the digit changes with the format of the greeting.
constexpr absl::string_view kMagic = "cadrerk1";
// Everything in a greeting but the text of the run's name.
constexpr size_t kFixedBytes = 8 + 8 + 4 + 8 + 4 + 4 + 4 + 2;

template <typename T>
void Append(T value, std::string* out) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out->push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff));
  }
}

void AppendText(absl::string_view text, std::string* out) {
  text = text.substr(0, kMaxText);
  Append(static_cast<uint16_t>(text.size()), out);
  out->append(text.data(), text.size());
}

// Takes an integer off the front. Requires: it is there.
template <typename T>
T Take(absl::string_view* bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>((*bytes)[i])) << (8 * i);
  }
  bytes->remove_prefix(sizeof(T));
  return static_cast<T>(value);
}

}  // namespace

std::string Encode(const Greeting& greeting) {
  std::string out(kMagic);
  Append(greeting.group.schema_hash, &out);
  Append(greeting.group.group, &out);
  Append(greeting.group.generation, &out);
  Append(greeting.from, &out);
  Append(greeting.to, &out);
  Append(greeting.ranks, &out);
  AppendText(greeting.group.run, &out);
  return out;
}

std::string Encode(const Answer& answer) {
  std::string out;
  Append(static_cast<uint8_t>(answer.code), &out);
  AppendText(answer.reason, &out);
  return out;
}

absl::StatusOr<std::optional<Greeting>> DecodeGreeting(absl::string_view bytes) {
  const size_t known = std::min(bytes.size(), kMagic.size());
  if (bytes.substr(0, known) != kMagic.substr(0, known)) {
    return absl::InvalidArgumentError("the caller is not a rank of a group");
  }
  if (bytes.size() < kFixedBytes) return std::optional<Greeting>();
  bytes.remove_prefix(kMagic.size());
  Greeting greeting;
  greeting.group.schema_hash = Take<uint64_t>(&bytes);
  greeting.group.group = Take<uint32_t>(&bytes);
  greeting.group.generation = Take<uint64_t>(&bytes);
  greeting.from = Take<uint32_t>(&bytes);
  greeting.to = Take<uint32_t>(&bytes);
  greeting.ranks = Take<uint32_t>(&bytes);
  const size_t length = Take<uint16_t>(&bytes);
  if (length > kMaxText || bytes.size() > length) {
    return absl::InvalidArgumentError("the caller's greeting is too long");
  }
  if (bytes.size() < length) return std::optional<Greeting>();
  greeting.group.run = std::string(bytes);
  return std::optional<Greeting>(std::move(greeting));
}

size_t AnswerBytes(absl::string_view head) {
  head.remove_prefix(1);
  return kAnswerHeadBytes + Take<uint16_t>(&head);
}

absl::StatusOr<Answer> DecodeAnswer(absl::string_view bytes) {
  if (bytes.size() < kAnswerHeadBytes || bytes.size() != AnswerBytes(bytes)) {
    return absl::InvalidArgumentError("the answer to the greeting is cut off");
  }
  const uint8_t code = Take<uint8_t>(&bytes);
  if (code < 1 || code > static_cast<uint8_t>(Answer::Code::kWrongPlace)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown answer to the greeting: ", code));
  }
  bytes.remove_prefix(2);
  return Answer{.code = static_cast<Answer::Code>(code), .reason = std::string(bytes)};
}

}  // namespace cadre
