// The greeting and the answer of a listener, into the Dial of a rank that connects to it.
//
// The first bytes of an input choose how the listener deviates from the protocol; the others are
// the greeting or the answer. A dial accepts only an answer that the key of the generation signs
// for its header; every other answer ends it with a reason, and whatever else arrives leads to
// another attempt.
#include <glog/logging.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/transport/dial.h"
#include "comm/transport/socket.h"
#include "tests/fuzz/targets.h"

namespace cadre::fuzz {
namespace {

constexpr SecretKey kKey = {1, 2, 3};

void AwaitReadable(const Socket& socket) {
  pollfd readable{.fd = socket.fd(), .events = POLLIN};
  poll(&readable, 1, -1);
}

// The message, with the bytes of the input in place of its first ones.
template <typename Message>
Message Overwrite(Message message, const std::string& bytes) {
  std::memcpy(reinterpret_cast<char*>(&message), bytes.data(),
              std::min(bytes.size(), sizeof message));
  return message;
}

// Advances until the dial has sent something or ended its attempt.
absl::Status AdvanceOnce(Dial& dial, absl::Time now) {
  std::vector<pollfd> polled;
  absl::Time until = absl::InfiniteFuture();
  dial.Watch(polled, until);
  if (!polled.empty()) poll(polled.data(), polled.size(), -1);
  return dial.Advance(now);
}

bool IsPausing(const Dial& dial) {
  std::vector<pollfd> polled;
  absl::Time until = absl::InfiniteFuture();
  dial.Watch(polled, until);
  return polled.empty() && !dial.accepted();
}

// What a listener may do apart from sending a complete message.
enum Deviation : uint32_t { kNone, kForeignKey, kNoSignature, kCutShort };

// Accepts the connection of a dial, to be reset instead of closed, so that ports are free again
// immediately.
Socket AcceptFrom(const Socket& listener) {
  AwaitReadable(listener);
  Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  CHECK(!socket.empty());
  const linger reset{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  return socket;
}

// Sends the greeting. Returns what the dial sends then; nothing if the greeting is foreign to it.
std::optional<Header> Greet(const Greeting& greeting, const Socket& socket, Dial& dial,
                            absl::Time now) {
  CHECK_EQ(SendWhole(socket, BytesOf(greeting)), absl::OkStatus());
  std::string received;
  while (!IsPausing(dial) && !ReadUntil(socket, sizeof(Header), &received).value()) {
    CHECK_EQ(AdvanceOnce(dial, now), absl::OkStatus());
    if (IsPausing(dial)) break;
    pollfd readable{.fd = socket.fd(), .events = POLLIN};
    poll(&readable, 1, 0);
  }
  CHECK_EQ(IsPausing(dial), greeting.magic != Greeting::kMagic);
  if (!IsPausing(dial)) return FromBytes<Header>(received);
  CHECK(absl::IsUnavailable(dial.last_failure()));
  return std::nullopt;
}

}  // namespace

void AnswerTarget(std::span<const uint8_t> bytes) {
  static const Socket listener = std::move(*ListenOn("127.0.0.1:0"));
  static const std::vector<SocketAddress> addresses =
      *Resolve(absl::StrCat("127.0.0.1:", LocalPort(listener).value()), false);
  if (bytes.size() < 2) return;
  const bool foreign_greeting = bytes[0] % 8 == 7;
  const auto deviation = static_cast<Deviation>(bytes[1] % 4);
  const std::string rest(bytes.begin() + 2, bytes.end());

  Header header;
  header.generation = 3;
  header.ranks = 2;
  header.from = 1;
  header.connections = 1;
  const absl::Time now = absl::Now();
  Dial dial(
      "rank 0", [] { return addresses; }, header, kKey);
  CHECK_EQ(dial.Advance(now), absl::OkStatus());
  const Socket socket = AcceptFrom(listener);
  const Greeting greeting = foreign_greeting ? Overwrite(Greeting(), rest) : Greeting();
  const std::optional<Header> sent = Greet(greeting, socket, dial, now);
  if (!sent) return;
  CHECK(IsSigned(kKey, *sent, greeting.challenge));
  CHECK(sent->generation == header.generation && sent->from == header.from);

  Answer answer = Overwrite(Answer(), rest);
  if (deviation != kNoSignature) {
    Sign(deviation == kForeignKey ? SecretKey{} : kKey, answer, sent->tag);
  }
  const absl::string_view message = BytesOf(answer);
  if (deviation == kCutShort) {
    CHECK_EQ(SendWhole(socket, message.substr(0, rest.size() % message.size())), absl::OkStatus());
    shutdown(socket.fd(), SHUT_WR);
  } else {
    CHECK_EQ(SendWhole(socket, message), absl::OkStatus());
  }
  absl::Status status;
  while (status.ok() && !dial.accepted() && !IsPausing(dial)) status = AdvanceOnce(dial, now);
  if (deviation == kCutShort) {
    CHECK(IsPausing(dial) && absl::IsUnavailable(dial.last_failure()));
    return;
  }
  const bool valid = answer.code == Answer::Code::kAccepted && IsSigned(kKey, answer, sent->tag);
  CHECK_EQ(dial.accepted(), valid);
  CHECK_EQ(status.ok(), valid);
  if (valid) {
    CHECK_LE(dial.answer().wakeups[0].view().size(), dial.answer().wakeups[0].bytes.size());
    return;
  }
  CHECK_EQ(absl::IsAborted(status), answer.code == Answer::Code::kStaleGeneration);
  CHECK(absl::IsAborted(status) || absl::IsFailedPrecondition(status)) << status;
  CHECK_LE(status.message().size(), answer.reason.bytes.size() + 100);
}

}  // namespace cadre::fuzz
