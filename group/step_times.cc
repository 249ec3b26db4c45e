#include "group/step_times.h"

#include <algorithm>
#include <iterator>
#include <utility>

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
  std::array<double, kKept> sorted = seconds_;
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(std::min(steps_, kKept));
  const auto middle = sorted.begin() + (std::distance(sorted.begin(), end) - 1) / 2;
  std::nth_element(sorted.begin(), middle, end);
  return *middle;
}

}  // namespace cadre
