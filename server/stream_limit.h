// Limits the number of concurrent streams of one kind.
//
// Thread-safe. The limit must outlive every Permit; AwaitAllReturned waits until none is left.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace cadre {

class StreamLimit {
 public:
  explicit StreamLimit(int max) : max_(max) {}

  // The permit of one stream; its destructor returns it.
  class Permit {
   public:
    explicit Permit(StreamLimit& limit) : limit_(limit), granted_(limit.Acquire()) {}
    Permit(const Permit&) = delete;
    Permit& operator=(const Permit&) = delete;
    ~Permit() { limit_.Release(); }
    // False if the limit was reached; the stream must then end immediately.
    bool granted() const { return granted_; }

   private:
    StreamLimit& limit_;
    const bool granted_;
  };

  // Waits until every permit is returned. Requires: no new permits.
  void AwaitAllReturned() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* taken) { return *taken == 0; }, &taken_));
  }

 private:
  bool Acquire() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return ++taken_ <= max_;
  }
  void Release() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    --taken_;
  }

  const int max_;
  absl::Mutex mutex_;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cadre
