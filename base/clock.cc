#include "base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace cadre {

absl::Time RealClock::Now() const { return absl::Now(); }

absl::Time SteadyClock::Now() const {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

absl::Time ManualClock::Now() const {
  absl::MutexLock lock(&mutex_);
  return now_;
}

void ManualClock::Advance(absl::Duration step) {
  absl::MutexLock lock(&mutex_);
  now_ += step;
}

}  // namespace cadre
