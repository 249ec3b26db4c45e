// One connection that this rank makes: calls another rank's listener, greets, and hears the answer;
// again and again, with pauses, until it is welcome or told that it never will be.
//
// Never blocks, but for the system's resolver of names. Thread-compatible.
#pragma once

#include <poll.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/backoff.h"
#include "worker/transport/handshake.h"
#include "worker/transport/socket.h"

namespace cadre {

class OutgoingCall {
 public:
  // Asked before every try, because names move.
  using Addresses = std::function<absl::StatusOr<std::vector<SocketAddress>>()>;

  // `callee` is for error messages; `seed` keeps callers from trying again in step.
  OutgoingCall(std::string callee, Addresses addresses, const Greeting& greeting, uint64_t seed);

  // Does what can be done now. Errors are final: Aborted when the callee says that the generation
  // is over, FailedPrecondition when it refuses for another reason or is not a rank's listener.
  absl::Status Advance(absl::Time now);
  bool welcome() const { return state_ == State::kWelcome; }
  // Adds what an unfinished call waits for: a descriptor, or an earlier end of the wait.
  void Watch(std::vector<pollfd>& polled, absl::Time& until) const;

  // Why the last try failed, or OK.
  const absl::Status& last_failure() const { return last_failure_; }

  // Requires: welcome().
  const Answer& answer() const { return answer_; }
  // In seconds, of the connection's own first exchange.
  double round_trip() const { return round_trip_; }
  Socket Take() { return std::move(socket_); }

 private:
  enum class State { kPausing, kConnecting, kGreeted, kWelcome };

  // One step of the state that names it; Unavailable: this try has failed.
  absl::Status StartTry();
  absl::Status FinishConnect();
  absl::Status ReadAnswer();
  absl::Status Refused() const;
  // Arranges for another try.
  void ScheduleRetry(const absl::Status& failure, absl::Time now);

  const std::string callee_;
  const Addresses addresses_;
  const std::string greeting_;

  State state_ = State::kPausing;
  Backoff backoff_;
  absl::Time retry_at_ = absl::InfinitePast();
  // What is left of the addresses of this try.
  std::vector<SocketAddress> addresses_left_;
  Socket socket_;
  std::string received_;
  Answer answer_;
  double round_trip_ = 0;
  absl::Status last_failure_;
};

}  // namespace cadre
