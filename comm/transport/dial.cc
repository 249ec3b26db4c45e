#include "comm/transport/dial.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/transport/tcp_link.h"

namespace cadre {
namespace {

// Pauses between attempts.
constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLastPause = absl::Milliseconds(500);

// Assumed bandwidth of a link between hosts: 10 Gbit/s.
constexpr double kBytesPerSecond = 1.25e9;

bool IsWritable(const Socket& socket) {
  pollfd entry{.fd = socket.fd(), .events = POLLOUT};
  return poll(&entry, 1, 0) > 0;
}

}  // namespace

Dial::Dial(std::string callee, Addresses addresses, const Header& header, const SecretKey& key)
    : callee_(std::move(callee)),
      addresses_(std::move(addresses)),
      header_(header),
      key_(key),
      // Retries of different callers do not coincide.
      backoff_(kFirstPause, kLastPause, header.generation * 1000 + header.from) {}

absl::Status Dial::Advance(absl::Time now) {
  while (state_ != State::kAccepted) {
    const State before = state_;
    if (state_ == State::kPausing && now < retry_at_) return absl::OkStatus();
    const absl::Status step = Step();
    if (!step.ok()) {
      const absl::Status failure = Annotate(step, callee_);
      if (!absl::IsUnavailable(step)) return failure;
      ScheduleRetry(failure, now);
    } else if (state_ == before) {
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

absl::Status Dial::Step() {
  switch (state_) {
    case State::kPausing:
      return StartAttempt();
    case State::kConnecting:
      return FinishConnect();
    case State::kAwaitingGreeting:
      return AnswerGreeting();
    case State::kAwaitingAnswer:
      return ReadAnswer();
    case State::kAccepted:
      break;
  }
  return absl::OkStatus();
}

void Dial::Watch(std::vector<pollfd>& polled, absl::Time& until) const {
  if (state_ == State::kPausing) until = std::min(until, retry_at_);
  if (state_ == State::kConnecting) polled.push_back({.fd = socket_.fd(), .events = POLLOUT});
  if (state_ == State::kAwaitingGreeting || state_ == State::kAwaitingAnswer) {
    polled.push_back({.fd = socket_.fd(), .events = POLLIN});
  }
}

absl::Status Dial::StartAttempt() {
  if (addresses_left_.empty()) {
    CADRE_ASSIGN_OR_RETURN(addresses_left_, addresses_());
    if (addresses_left_.empty()) return absl::UnavailableError("the name has no address");
  }
  const SocketAddress address = addresses_left_.front();
  addresses_left_.erase(addresses_left_.begin());
  CADRE_ASSIGN_OR_RETURN(socket_, StartConnect(address));
  state_ = State::kConnecting;
  return absl::OkStatus();
}

absl::Status Dial::FinishConnect() {
  if (!IsWritable(socket_)) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(ConnectResult(socket_));
  TuneConnection(socket_);
  if (header_.connections == 0) {
    // Measured by the kernels during the TCP handshake, so without delays of the other process.
    header_.connections = ConnectionsFor(RoundTrip(socket_), kBytesPerSecond, LargestWindow());
  }
  received_.clear();
  state_ = State::kAwaitingGreeting;
  return absl::OkStatus();
}

absl::Status Dial::AnswerGreeting() {
  CADRE_ASSIGN_OR_RETURN(const bool complete, ReadUntil(socket_, sizeof(Greeting), &received_));
  if (!complete) return absl::OkStatus();
  const auto greeting = FromBytes<Greeting>(received_);
  if (greeting.magic != Greeting::kMagic) {
    return absl::UnavailableError("another program, or another version, listens at the address");
  }
  header_.nonce = NewChallenge();
  Sign(key_, header_, greeting.challenge);
  received_.clear();
  CADRE_RETURN_IF_ERROR(SendWhole(socket_, BytesOf(header_)));
  state_ = State::kAwaitingAnswer;
  return absl::OkStatus();
}

absl::Status Dial::ReadAnswer() {
  CADRE_ASSIGN_OR_RETURN(const bool complete, ReadUntil(socket_, sizeof(Answer), &received_));
  if (!complete) return absl::OkStatus();
  answer_ = FromBytes<Answer>(received_);
  if (answer_.code == Answer::Code::kAccepted && IsSigned(key_, answer_, header_.tag)) {
    state_ = State::kAccepted;
    return absl::OkStatus();
  }
  if (answer_.code <= Answer::Code::kAccepted || answer_.code > Answer::Code::kWrongRank) {
    return absl::FailedPreconditionError("the answer does not prove the key of the generation");
  }
  const std::string message = absl::StrCat("refused: ", answer_.reason.view());
  if (answer_.code == Answer::Code::kStaleGeneration) return absl::AbortedError(message);
  return absl::FailedPreconditionError(message);
}

void Dial::ScheduleRetry(const absl::Status& failure, absl::Time now) {
  last_failure_ = failure;
  socket_ = Socket();
  state_ = State::kPausing;
  retry_at_ = addresses_left_.empty() ? now + backoff_.Next() : now;
}

}  // namespace cadre
