// A watch is a stream of updates of one run. It ends without an error when the server closes it or
// the time limit of one call is reached, and with Unavailable when the coordinator is unreachable;
// in both cases the watch is opened again. A coordinator may be restarted while runs train, so
// following fails only after `patience` without a reply. If the coordinator has never replied,
// following fails immediately, since the address is probably wrong.
#include "cli/follow.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace cadre {
namespace {

// A watch is reopened after this time, because a connection can die silently.
constexpr absl::Duration kMaxWatch = absl::Minutes(1);
constexpr absl::Duration kRetryDelay = absl::Milliseconds(200);

}  // namespace

bool HasEnded(v1::RunState state) {
  return state == v1::RUN_STATE_DONE || state == v1::RUN_STATE_FAILED ||
         state == v1::RUN_STATE_STOPPED;
}

bool HasEnded(const v1::RunStatus& run) { return HasEnded(run.state()) || run.diverged(); }

bool HasSucceeded(const v1::RunStatus& run) {
  return run.state() == v1::RUN_STATE_DONE && !run.checkpoint().last_missing();
}

absl::Status Follow(const CoordinatorClient& client, const FollowOptions& options) {
  absl::Time last_reply = absl::InfinitePast();
  bool away = false;
  bool leaving = false;
  bool ended = false;
  // A name may stand for a newer run when it is watched again.
  std::string run = options.run;
  while (true) {
    const absl::Time until = std::min(options.deadline, absl::Now() + kMaxWatch);
    const absl::Status status = client.Watch(run, until, [&](const v1::WatchUpdate& update) {
      last_reply = absl::Now();
      away = false;
      if (!run.empty()) run = update.run().run();
      ended = !options.run.empty() && HasEnded(update.run());
      leaving = !options.on_update(update);
      return !leaving && !ended;
    });
    if (leaving || ended) return absl::OkStatus();
    // If the server closed the stream or kMaxWatch has passed, watch again.
    if (!status.ok() && !absl::IsDeadlineExceeded(status)) {
      const bool gone = absl::IsUnavailable(status) || absl::IsCancelled(status);
      if (!gone || absl::Now() - last_reply > options.patience) return status;
      if (!away && options.on_away) options.on_away(status);
      away = true;
    }
    if (absl::Now() >= options.deadline) {
      return absl::DeadlineExceededError(
          options.run.empty()
              ? std::string("timed out")
              : absl::StrCat("run ", options.run, " has not ended within the timeout"));
    }
    absl::SleepFor(kRetryDelay);
  }
}

// The thread borrows the client and ends with the object.
Follower::Follower(const CoordinatorClient& client, std::string run) {
  thread_ = std::thread([this, &client, run = std::move(run)] {
    FollowOptions options;
    options.run = run;
    options.on_update = [this](const v1::WatchUpdate& update) {
      absl::MutexLock lock(&mutex_);
      newest_ = update;
      return !stopping_;
    };
    // Each watch lasts one second, so that stopping_ is checked even if no reply arrives.
    absl::Status status;
    while (true) {
      options.deadline = absl::Now() + absl::Seconds(1);
      status = Follow(client, options);
      const bool again = absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
      absl::MutexLock lock(&mutex_);
      if (again) mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kRetryDelay);
      if (stopping_ || !again) break;
    }
    absl::MutexLock lock(&mutex_);
    outcome_ = status;
  });
}

Follower::~Follower() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::optional<v1::WatchUpdate> Follower::Take() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(newest_, std::nullopt);
}

std::optional<absl::Status> Follower::Outcome() const {
  absl::MutexLock lock(&mutex_);
  return outcome_;
}

}  // namespace cadre
