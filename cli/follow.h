// Follows runs through the coordinator's Watch, across restarts of the coordinator.
//
// Thread-compatible.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/client/coordinator_client.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

// Whether the run is done, failed or stopped.
bool HasEnded(v1::RunState state);
// Whether nothing more will happen without an operator: the run has ended, or it has diverged and
// is parked.
bool HasEnded(const v1::RunStatus& run);
// Whether the run has reached its end, with its last checkpoint if it writes any.
bool HasSucceeded(const v1::RunStatus& run);

struct FollowOptions {
  // A run id; empty: every run, until on_update returns false.
  std::string run;
  absl::Time deadline = absl::InfiniteFuture();
  // How long the coordinator may be unreachable after its last reply before Follow gives up.
  absl::Duration patience = absl::Seconds(60);
  // Returns false to stop following. Required.
  std::function<bool(const v1::WatchUpdate&)> on_update;
  // Called when the coordinator becomes unreachable, with the reason; Follow retries. Optional.
  std::function<void(const absl::Status&)> on_away;
};

// Calls on_update on the calling thread until the run has ended or on_update returns false.
// Errors: NotFound; DeadlineExceeded; Unavailable after `patience`.
absl::Status Follow(const CoordinatorClient& client, const FollowOptions& options);

// Follows one run on its own thread and keeps the newest update. It retries an unreachable
// coordinator until it is destroyed. Thread-safe.
class Follower {
 public:
  // `client` is borrowed and must outlive the follower.
  Follower(const CoordinatorClient& client, std::string run);
  // Waits for the current call: at most the client's dial timeout, or until the next update.
  ~Follower();

  // The newest update, if one arrived since the last call.
  std::optional<v1::WatchUpdate> Take() ABSL_LOCKS_EXCLUDED(mutex_);
  // Set once the follower has stopped by itself: OK if the run has ended.
  std::optional<absl::Status> Outcome() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable absl::Mutex mutex_;
  std::optional<v1::WatchUpdate> newest_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cadre
