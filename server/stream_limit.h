// How many streams of a kind may be under way at once.
//
// Thread-safe. Must outlive every Place taken from it: AwaitNone waits for that.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace cadre {

class StreamLimit {
 public:
  explicit StreamLimit(int most) : most_(most) {}

  // One stream's place; given back when it is destroyed.
  class Place {
   public:
    explicit Place(StreamLimit& limit) : limit_(limit), granted_(limit.Enter()) {}
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { limit_.Leave(); }
    // False: there are too many, this one must end at once.
    bool granted() const { return granted_; }

   private:
    StreamLimit& limit_;
    const bool granted_;
  };

  // Waits until every place is given back. Requires: no more are taken.
  void AwaitNone() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* taken) { return *taken == 0; }, &taken_));
  }

 private:
  bool Enter() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return ++taken_ <= most_;
  }
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    --taken_;
  }

  const int most_;
  absl::Mutex mutex_;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cadre
