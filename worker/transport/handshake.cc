#include "worker/transport/handshake.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/transport/tcp_link.h"

namespace cadre {
namespace {

// Says what the connection is for; the digit changes with the format of these words.
constexpr absl::string_view kMagic = "cadrerk2";

template <typename T>
void Append(T value, std::string* out) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out->push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff));
  }
}

void AppendText(absl::string_view text, size_t most, std::string* out) {
  text = text.substr(0, most);
  Append(static_cast<uint16_t>(text.size()), out);
  out->append(text.data(), text.size());
}

// Puts the length in front.
std::string WithHead(const std::string& body) {
  std::string out;
  Append(static_cast<uint16_t>(body.size()), &out);
  return out + body;
}

// Takes values off the front; what is not there is zero, and noted.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T Take() {
    if (rest_.size() < sizeof(T)) return CutOff<T>();
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<uint64_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
    }
    rest_.remove_prefix(sizeof(T));
    return static_cast<T>(value);
  }

  std::string Text(size_t most) {
    const size_t length = Take<uint16_t>();
    malformed_ |= length > most;
    if (rest_.size() < length) return CutOff<std::string>();
    const std::string text(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return text;
  }

  bool Flag() {
    const uint8_t value = Take<uint8_t>();
    malformed_ |= value > 1;
    return value == 1;
  }

  // More bytes might make it whole.
  bool cut_off() const { return cut_off_; }
  // No more bytes can mend it.
  bool malformed() const { return malformed_ || (!cut_off_ && !rest_.empty()); }

 private:
  template <typename T>
  T CutOff() {
    cut_off_ = true;
    rest_ = {};
    return T{};
  }

  absl::string_view rest_;
  bool cut_off_ = false;
  bool malformed_ = false;
};

// Of one of the words with a head: checks the head and that everything was read.
absl::Status CheckWhole(absl::string_view bytes, uint16_t length, const Reader& reader,
                        absl::string_view what) {
  if (!reader.cut_off() && !reader.malformed() && bytes.size() == kHeadBytes + length) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(what, " is malformed"));
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
  Append(greeting.purpose.channel, &out);
  Append(greeting.purpose.connection, &out);
  Append(greeting.host, &out);
  AppendText(greeting.group.run, kMaxText, &out);
  for (const std::string& wakeup : greeting.wakeups) AppendText(wakeup, kMaxName, &out);
  return out;
}

std::string Encode(const Answer& answer) {
  std::string out;
  Append(static_cast<uint8_t>(answer.code), &out);
  Append(answer.host, &out);
  Append(static_cast<uint8_t>(answer.shares_memory), &out);
  AppendText(answer.reason, kMaxText, &out);
  return WithHead(out);
}

std::string Encode(const Offer& offer) {
  std::string out;
  AppendText(offer.description, kMaxName, &out);
  for (const std::string& wakeup : offer.wakeups) AppendText(wakeup, kMaxName, &out);
  return WithHead(out);
}

std::string Encode(const Settled& settled) {
  std::string out;
  Append(settled.connections, &out);
  return WithHead(out);
}

absl::StatusOr<std::optional<Greeting>> DecodeGreeting(absl::string_view bytes) {
  const size_t known = std::min(bytes.size(), kMagic.size());
  if (bytes.substr(0, known) != kMagic.substr(0, known)) {
    return absl::InvalidArgumentError("the caller is not a rank of a group");
  }
  if (bytes.size() < kMagic.size()) return std::optional<Greeting>();
  Reader reader(bytes.substr(kMagic.size()));
  Greeting greeting;
  greeting.group.schema_hash = reader.Take<uint64_t>();
  greeting.group.group = reader.Take<uint32_t>();
  greeting.group.generation = reader.Take<uint64_t>();
  greeting.from = reader.Take<uint32_t>();
  greeting.to = reader.Take<uint32_t>();
  greeting.ranks = reader.Take<uint32_t>();
  greeting.purpose.channel = reader.Take<uint8_t>();
  greeting.purpose.connection = reader.Take<uint8_t>();
  greeting.host = reader.Take<uint64_t>();
  greeting.group.run = reader.Text(kMaxText);
  for (std::string& wakeup : greeting.wakeups) wakeup = reader.Text(kMaxName);
  if (reader.malformed()) return absl::InvalidArgumentError("the caller's greeting is malformed");
  if (reader.cut_off()) return std::optional<Greeting>();
  return std::optional<Greeting>(std::move(greeting));
}

size_t WholeBytes(absl::string_view head) { return kHeadBytes + Reader(head).Take<uint16_t>(); }

absl::StatusOr<Answer> DecodeAnswer(absl::string_view bytes) {
  Reader reader(bytes);
  const auto length = reader.Take<uint16_t>();
  const auto code = reader.Take<uint8_t>();
  Answer answer{.code = static_cast<Answer::Code>(code)};
  answer.host = reader.Take<uint64_t>();
  answer.shares_memory = reader.Flag();
  answer.reason = reader.Text(kMaxText);
  absl::Status whole = CheckWhole(bytes, length, reader, "the answer to the greeting");
  if (!whole.ok()) return whole;
  if (code < 1 || code > static_cast<uint8_t>(Answer::Code::kWrongRank)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown answer to the greeting: ", code));
  }
  return answer;
}

absl::StatusOr<Offer> DecodeOffer(absl::string_view bytes) {
  Reader reader(bytes);
  const auto length = reader.Take<uint16_t>();
  Offer offer;
  offer.description = reader.Text(kMaxName);
  for (std::string& wakeup : offer.wakeups) wakeup = reader.Text(kMaxName);
  absl::Status whole = CheckWhole(bytes, length, reader, "the offer of shared memory");
  if (!whole.ok()) return whole;
  return offer;
}

absl::StatusOr<Settled> DecodeSettled(absl::string_view bytes) {
  Reader reader(bytes);
  const auto length = reader.Take<uint16_t>();
  const Settled settled{.connections = reader.Take<uint8_t>()};
  absl::Status whole = CheckWhole(bytes, length, reader, "the number of connections");
  if (!whole.ok()) return whole;
  if (settled.connections > kMaxConnections) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", kMaxConnections, " connections for a channel"));
  }
  return settled;
}

}  // namespace cadre
