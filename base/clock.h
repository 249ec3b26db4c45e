// Injectable time: programs use RealClock, tests and the simulator use ManualClock.
//
// Thread-safe.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace cadre {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// The wall clock.
class RealClock final : public Clock {
 public:
  absl::Time Now() const override;
};

// A monotonic clock. Only differences between readings are meaningful.
class SteadyClock final : public Clock {
 public:
  absl::Time Now() const override;
};

// Changes only by Advance().
class ManualClock final : public Clock {
 public:
  explicit ManualClock(absl::Time start) : now_(start) {}
  absl::Time Now() const override ABSL_LOCKS_EXCLUDED(mutex_);
  // Requires: `step` is not negative.
  void Advance(absl::Duration step) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
