#include "worker/transport/outgoing_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cadre {
namespace {

// Pauses between attempts.
constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLastPause = absl::Milliseconds(500);

bool Ready(const Socket& socket, short events) {
  pollfd entry{.fd = socket.fd(), .events = events};
  return poll(&entry, 1, 0) > 0;
}

}  // namespace

OutgoingCall::OutgoingCall(std::string callee, Addresses addresses, const Greeting& greeting,
                           uint64_t seed)
    : callee_(std::move(callee)),
      addresses_(std::move(addresses)),
      greeting_(Encode(greeting)),
      backoff_(kFirstPause, kLastPause, seed) {}

absl::Status OutgoingCall::Advance(absl::Time now) {
  while (state_ != State::kWelcome) {
    const State before = state_;
    absl::Status step;
    switch (state_) {
      case State::kPausing:
        if (now < retry_at_) return absl::OkStatus();
        step = StartAttempt();
        break;
      case State::kConnecting:
        step = FinishConnect();
        break;
      case State::kGreeted:
        step = ReadAnswer();
        break;
      case State::kWelcome:
        break;
    }
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

void OutgoingCall::Watch(std::vector<pollfd>& polled, absl::Time& until) const {
  if (state_ == State::kPausing) until = std::min(until, retry_at_);
  if (state_ == State::kConnecting) polled.push_back({.fd = socket_.fd(), .events = POLLOUT});
  if (state_ == State::kGreeted) polled.push_back({.fd = socket_.fd(), .events = POLLIN});
}

absl::Status OutgoingCall::StartAttempt() {
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

absl::Status OutgoingCall::FinishConnect() {
  if (!Ready(socket_, POLLOUT)) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(ConnectResult(socket_));
  TuneConnection(socket_);
  // Measured by the kernels during the TCP handshake, so without delays of the other process.
  round_trip_ = RoundTrip(socket_);
  received_.clear();
  CADRE_RETURN_IF_ERROR(SendWhole(socket_, greeting_));
  state_ = State::kGreeted;
  return absl::OkStatus();
}

absl::Status OutgoingCall::ReadAnswer() {
  CADRE_ASSIGN_OR_RETURN(const bool complete, ReadHandshakeMessage(socket_, &received_));
  if (!complete) return absl::OkStatus();
  absl::StatusOr<Answer> answer = DecodeAnswer(received_);
  if (!answer.ok()) return absl::FailedPreconditionError(answer.status().message());
  answer_ = *std::move(answer);
  if (answer_.code != Answer::Code::kWelcome) return RefusalError();
  state_ = State::kWelcome;
  return absl::OkStatus();
}

absl::Status OutgoingCall::RefusalError() const {
  const std::string message = absl::StrCat("refused: ", answer_.reason);
  if (answer_.code == Answer::Code::kStaleGeneration) return absl::AbortedError(message);
  return absl::FailedPreconditionError(message);
}

void OutgoingCall::ScheduleRetry(const absl::Status& failure, absl::Time now) {
  last_failure_ = failure;
  socket_ = Socket();
  state_ = State::kPausing;
  retry_at_ = addresses_left_.empty() ? now + backoff_.Next() : now;
}

}  // namespace cadre
