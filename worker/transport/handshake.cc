// Encodes and decodes by one list of fields per message (Fields), which an Encoder or a Decoder
// visits, so both directions have the same format.
#include "worker/transport/handshake.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/transport/tcp_link.h"

namespace cadre {
namespace {

static_assert(std::endian::native == std::endian::little, "integers are sent in memory order");

// Begins a greeting; the digit changes with the format of the messages.
constexpr absl::string_view kMagic = "cadrerk3";

class Encoder {
 public:
  template <typename T>
  void Integer(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void Flag(bool value) { Integer(uint8_t{value}); }
  void Text(const std::string& text, size_t limit) {
    const uint16_t length = std::min(text.size(), limit);
    Integer(length);
    bytes_.append(text, 0, length);
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Values beyond the end of the bytes keep their defaults.
class Decoder {
 public:
  explicit Decoder(absl::string_view bytes) : rest_(bytes) {}

  template <typename T>
  void Integer(T& value) {
    if (!Has(sizeof value)) return;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
  }
  void Flag(bool& value) {
    uint8_t byte = 0;
    Integer(byte);
    malformed_ |= byte > 1;
    value = byte == 1;
  }
  void Text(std::string& text, size_t limit) {
    uint16_t length = 0;
    Integer(length);
    malformed_ |= length > limit;
    if (!Has(length)) return;
    text = std::string(rest_.substr(0, length));
    rest_.remove_prefix(length);
  }

  // The bytes end before the message; it may become valid with more bytes.
  bool truncated() const { return truncated_; }
  // The message is invalid whatever bytes follow.
  bool malformed() const { return malformed_ || (!truncated_ && !rest_.empty()); }

 private:
  bool Has(size_t bytes) {
    if (rest_.size() >= bytes) return true;
    truncated_ = true;
    rest_ = {};
    return false;
  }

  absl::string_view rest_;
  bool truncated_ = false;
  bool malformed_ = false;
};

template <typename Codec>
void Fields(Codec& codec, Greeting& greeting) {
  codec.Integer(greeting.group.schema_hash);
  codec.Integer(greeting.group.group);
  codec.Integer(greeting.group.generation);
  codec.Integer(greeting.from);
  codec.Integer(greeting.to);
  codec.Integer(greeting.ranks);
  codec.Integer(greeting.purpose.channel);
  codec.Integer(greeting.purpose.connection);
  codec.Integer(greeting.host);
  codec.Text(greeting.group.run, kMaxText);
  for (std::string& wakeup : greeting.wakeups) codec.Text(wakeup, kMaxName);
}

template <typename Codec>
void Fields(Codec& codec, Answer& answer) {
  codec.Integer(answer.code);
  codec.Integer(answer.host);
  codec.Flag(answer.shares_memory);
  codec.Text(answer.reason, kMaxText);
}

template <typename Codec>
void Fields(Codec& codec, Offer& offer) {
  codec.Text(offer.description, kMaxName);
  for (std::string& wakeup : offer.wakeups) codec.Text(wakeup, kMaxName);
}

template <typename Codec>
void Fields(Codec& codec, Settled& settled) {
  codec.Integer(settled.connections);
}

// Takes a copy, since Fields visits mutable messages.
template <typename Message>
std::string EncodeWithHead(Message message) {
  Encoder body;
  Fields(body, message);
  Encoder head;
  const uint16_t length = body.bytes().size();
  head.Integer(length);
  return head.bytes() + body.bytes();
}

template <typename Message>
absl::StatusOr<Message> DecodeWithHead(absl::string_view bytes, absl::string_view what) {
  Decoder decoder(bytes);
  uint16_t length = 0;
  decoder.Integer(length);
  Message message;
  Fields(decoder, message);
  if (!decoder.truncated() && !decoder.malformed() && bytes.size() == kHeadBytes + length) {
    return message;
  }
  return absl::InvalidArgumentError(absl::StrCat(what, " is malformed"));
}

}  // namespace

std::string Encode(const Greeting& greeting) {
  Greeting copy = greeting;
  Encoder encoder;
  Fields(encoder, copy);
  return absl::StrCat(kMagic, encoder.bytes());
}
std::string Encode(const Answer& answer) { return EncodeWithHead(answer); }
std::string Encode(const Offer& offer) { return EncodeWithHead(offer); }
std::string Encode(const Settled& settled) { return EncodeWithHead(settled); }

absl::StatusOr<std::optional<Greeting>> DecodeGreeting(absl::string_view bytes) {
  const size_t known = std::min(bytes.size(), kMagic.size());
  if (bytes.substr(0, known) != kMagic.substr(0, known)) {
    return absl::InvalidArgumentError("the caller is not a rank of a group");
  }
  if (bytes.size() < kMagic.size()) return std::optional<Greeting>();
  Decoder decoder(bytes.substr(kMagic.size()));
  Greeting greeting;
  Fields(decoder, greeting);
  if (decoder.malformed()) return absl::InvalidArgumentError("the greeting is malformed");
  if (decoder.truncated()) return std::optional<Greeting>();
  return std::optional<Greeting>(std::move(greeting));
}

size_t MessageBytes(absl::string_view head) {
  uint16_t length = 0;
  Decoder(head).Integer(length);
  return kHeadBytes + length;
}

absl::StatusOr<bool> ReadHandshakeMessage(const Socket& socket, std::string* bytes) {
  CADRE_ASSIGN_OR_RETURN(const bool has_head, ReadUntil(socket, kHeadBytes, bytes));
  if (!has_head) return false;
  return ReadUntil(socket, MessageBytes(*bytes), bytes);
}

absl::StatusOr<Answer> DecodeAnswer(absl::string_view bytes) {
  CADRE_ASSIGN_OR_RETURN(Answer answer, DecodeWithHead<Answer>(bytes, "the answer to a greeting"));
  if (answer.code < Answer::Code::kWelcome || answer.code > Answer::Code::kWrongRank) {
    return absl::InvalidArgumentError("the answer to a greeting has an unknown code");
  }
  return answer;
}

absl::StatusOr<Offer> DecodeOffer(absl::string_view bytes) {
  return DecodeWithHead<Offer>(bytes, "the offer of shared memory");
}

absl::StatusOr<Settled> DecodeSettled(absl::string_view bytes) {
  CADRE_ASSIGN_OR_RETURN(const Settled settled,
                         DecodeWithHead<Settled>(bytes, "the number of connections"));
  if (settled.connections > kMaxConnections) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", kMaxConnections, " connections per channel"));
  }
  return settled;
}

}  // namespace cadre
