// A flag with which another thread ends a training generation. Handlers that are registered with it
// unblock the calls that wait.
//
//   Cancellation cancellation;
//   auto guard = cancellation.OnCancel([&](const absl::Status& why) { transport->Abort(why); });
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace cadre {

class Cancellation {
 public:
  // Unregisters its handler on destruction; waits for a handler that is running.
  using Registration = std::stop_callback<std::function<void()>>;

  // Only the first call has an effect. Handlers run on the caller's thread and must not block.
  void Cancel(absl::Status reason) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (!reason_.ok()) return;
      reason_ = std::move(reason);
    }
    source_.request_stop();
  }
  // OK until Cancel was called; then its reason.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return reason_;
  }
  // Runs the handler immediately if already cancelled.
  [[nodiscard]] std::unique_ptr<Registration> OnCancel(
      std::function<void(const absl::Status& reason)> handler) {
    return std::make_unique<Registration>(
        source_.get_token(), [this, handler = std::move(handler)] { handler(status()); });
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
  std::stop_source source_;
};

}  // namespace cadre
