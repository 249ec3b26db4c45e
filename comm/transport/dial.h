// A connection that this rank initiates: connects to the listener of another rank, reads its
// greeting, sends a header and reads the answer. Retries with backoff until the answer is an
// acceptance or a refusal.
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
#include "comm/transport/handshake.h"
#include "comm/transport/socket.h"

namespace cadre {

class Dial {
 public:
  // Called before every round of attempts, because names may be reassigned.
  using Addresses = std::function<absl::StatusOr<std::vector<SocketAddress>>()>;

  // `callee` is used in error messages. Nonce and tag of the header are set here, and so is the
  // number of connections if it is 0: it follows from the round trip.
  Dial(std::string callee, Addresses addresses, const Header& header, const SecretKey& key);

  // Makes all progress that is possible without blocking. Errors are permanent: Aborted if the
  // callee reports that the generation has ended, FailedPrecondition if it refuses for another
  // reason or does not know the key of the generation.
  absl::Status Advance(absl::Time now);
  bool accepted() const { return state_ == State::kAccepted; }
  // Adds the descriptor that an unfinished dial waits for, or reduces `until` to its next retry.
  void Watch(std::vector<pollfd>& polled, absl::Time& until) const;

  const Header& header() const { return header_; }
  // The error of the last attempt, or OK.
  const absl::Status& last_failure() const { return last_failure_; }

  // Requires: accepted().
  const Answer& answer() const { return answer_; }
  Socket Take() { return std::move(socket_); }

 private:
  enum class State { kPausing, kConnecting, kAwaitingGreeting, kAwaitingAnswer, kAccepted };

  // One step of the state. Unavailable: the attempt has failed.
  absl::Status Step();
  absl::Status StartAttempt();
  absl::Status FinishConnect();
  absl::Status AnswerGreeting();
  absl::Status ReadAnswer();
  void ScheduleRetry(const absl::Status& failure, absl::Time now);

  const std::string callee_;
  const Addresses addresses_;
  Header header_;
  const SecretKey key_;

  State state_ = State::kPausing;
  Backoff backoff_;
  absl::Time retry_at_ = absl::InfinitePast();
  // Addresses of this round that have not been tried.
  std::vector<SocketAddress> addresses_left_;
  Socket socket_;
  std::string received_;
  Answer answer_;
  absl::Status last_failure_;
};

}  // namespace cadre
