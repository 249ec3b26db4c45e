#include "cli/follow.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace cadre {
namespace {

// A watch is opened anew after so long, so that none hangs on a connection that died silently.
constexpr absl::Duration kOneWatch = absl::Minutes(1);
constexpr absl::Duration kBetweenTries = absl::Milliseconds(200);

}  // namespace

bool HasEnded(v1::RunState state) {
  return state == v1::DONE || state == v1::FAILED || state == v1::STOPPED;
}

absl::Status Follow(const CoordinatorClient& client, const FollowOptions& options) {
  absl::Time heard = absl::InfinitePast();
  bool away = false;
  bool leaving = false;
  bool ended = false;
  while (true) {
    const absl::Time until = std::min(options.deadline, absl::Now() + kOneWatch);
    const absl::Status status =
        client.Watch(options.run, until, [&](const v1::WatchUpdate& update) {
          heard = absl::Now();
          away = false;
          ended = !options.run.empty() && HasEnded(update.run().state());
          leaving = !options.on_update(update);
          return !leaving && !ended;
        });
    if (leaving || ended) return absl::OkStatus();
    // OK without a last word, or a watch that was long enough: look again.
    if (!status.ok() && !absl::IsDeadlineExceeded(status)) {
      const bool gone = absl::IsUnavailable(status) || absl::IsCancelled(status);
      if (!gone || absl::Now() - heard > options.patience) return status;
      if (!away && options.on_away) options.on_away(status);
      away = true;
    }
    if (absl::Now() >= options.deadline) {
      return absl::DeadlineExceededError(
          options.run.empty()
              ? std::string("the time given is over")
              : absl::StrCat("run ", options.run, " has not ended in the time given"));
    }
    absl::SleepFor(kBetweenTries);
  }
}

Follower::Follower(const CoordinatorClient& client, std::string run) {
  thread_ = std::thread([this, &client, run = std::move(run)] {
    FollowOptions options;
    options.run = run;
    options.on_update = [this](const v1::WatchUpdate& update) {
      absl::MutexLock lock(&mutex_);
      newest_ = update;
      return !stopping_;
    };
    // A second at a time, so that stopping is noticed although nobody answers.
    absl::Status status;
    while (true) {
      options.deadline = absl::Now() + absl::Seconds(1);
      status = Follow(client, options);
      const bool again = absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
      absl::MutexLock lock(&mutex_);
      if (again) mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kBetweenTries);
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
