// The time of a program's steps without its pauses: the median of the newest ones. A program
// compiles, evaluates or saves between two steps, so a mean would take a pause for slow steps.
//
// Thread-safe.
#pragma once

#include <array>
#include <cstddef>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace cadre {

class StepTimes {
 public:
  // The program begins to train, or goes on.
  void Begin(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // A step is done.
  void Step(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Seconds of a step; 0: none is done.
  double Median() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // The median of so many does not change by pauses in fewer than half of them.
  static constexpr size_t kKept = 9;

  mutable absl::Mutex mutex_;
  absl::Time begun_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // The newest step is (steps_ - 1) % kKept.
  std::array<double, kKept> seconds_ ABSL_GUARDED_BY(mutex_) = {};
  size_t steps_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cadre
