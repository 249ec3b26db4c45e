// A flag with which another thread ends a training generation. Handlers that are registered with it
// unblock the calls that wait.
//
//   Cancellation cancellation;
//   auto guard = cancellation.OnCancel([&](const absl::Status& why) { transport->Abort(why); });
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace cadre {

class Cancellation {
 public:
  using Handler = std::function<void(const absl::Status& reason)>;

  // Unregisters its handler on destruction; waits for a handler that is running.
  class Registration {
   public:
    Registration(Cancellation& owner, uint64_t id) : owner_(&owner), id_(id) {}
    Registration(Registration&& other) noexcept : owner_(other.owner_), id_(other.id_) {
      other.owner_ = nullptr;
    }
    Registration& operator=(Registration&&) = delete;
    ~Registration() {
      if (owner_ != nullptr) owner_->Unregister(id_);
    }

   private:
    Cancellation* owner_;
    uint64_t id_;
  };

  // Only the first call has an effect. Handlers run on the caller's thread and must not block.
  void Cancel(absl::Status reason) ABSL_LOCKS_EXCLUDED(mutex_);
  // OK until Cancel was called; then its reason.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs the handler immediately if already cancelled. The handler must not call this object.
  [[nodiscard]] Registration OnCancel(Handler handler) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Unregister(uint64_t id) ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Handler> handlers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
