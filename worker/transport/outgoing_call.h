// A connection that this rank initiates: connects to the listener of another rank, sends a greeting
// and reads the answer. Retries with backoff until the answer is a welcome or a permanent refusal.
//
// Never blocks, except while the system resolves a host name. Thread-compatible.
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
  // Called before every round of attempts, because names may be reassigned.
  using Addresses = std::function<absl::StatusOr<std::vector<SocketAddress>>()>;

  // `callee` is used in error messages; `seed` differs between callers, so that their retries do
  // not coincide.
  OutgoingCall(std::string callee, Addresses addresses, const Greeting& greeting, uint64_t seed);

  // Makes all progress that is possible without blocking. Errors are permanent: Aborted if the
  // callee reports that the generation has ended, FailedPrecondition if it refuses for another
  // reason or is not the listener of a rank.
  absl::Status Advance(absl::Time now);
  bool welcome() const { return state_ == State::kWelcome; }
  // Adds the descriptor that an unfinished call waits for, or reduces `until` to its next retry.
  void Watch(std::vector<pollfd>& polled, absl::Time& until) const;

  // The error of the last attempt, or OK.
  const absl::Status& last_failure() const { return last_failure_; }

  // Requires: welcome().
  const Answer& answer() const { return answer_; }
  // The kernel's measurement during the TCP handshake, in seconds.
  double round_trip() const { return round_trip_; }
  Socket Take() { return std::move(socket_); }

 private:
  enum class State { kPausing, kConnecting, kGreeted, kWelcome };

  // One step of each state. Unavailable: the attempt has failed.
  absl::Status StartAttempt();
  absl::Status FinishConnect();
  absl::Status ReadAnswer();
  absl::Status RefusalError() const;
  void ScheduleRetry(const absl::Status& failure, absl::Time now);

  const std::string callee_;
  const Addresses addresses_;
  const std::string greeting_;

  State state_ = State::kPausing;
  Backoff backoff_;
  absl::Time retry_at_ = absl::InfinitePast();
  // Addresses of this round that have not been tried.
  std::vector<SocketAddress> addresses_left_;
  Socket socket_;
  std::string received_;
  Answer answer_;
  double round_trip_ = 0;
  absl::Status last_failure_;
};

}  // namespace cadre
