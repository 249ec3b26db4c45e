#include "group/step_times.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/median.h"

namespace cadre {

void StepTimes::Begin(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  begun_ = now;
}

void StepTimes::Step(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const absl::Time begun = std::exchange(begun_, now);
  if (begun == absl::InfinitePast()) return;
  seconds_[steps_++ % kKept] = absl::ToDoubleSeconds(now - begun);
}

double StepTimes::Median() const {
  absl::MutexLock lock(&mutex_);
  if (steps_ == 0) return 0;
  // An odd number, so that the first step, in which programs compile, does not enter a mean of two.
  const size_t oldest = steps_ < kKept && steps_ % 2 == 0 ? 1 : 0;
  return cadre::Median(
      std::vector<double>(seconds_.begin() + oldest, seconds_.begin() + std::min(steps_, kKept)));
}

}  // namespace cadre
