#include "base/clock.h"

#include "absl/time/clock.h"

namespace cadre {

SteadyClock::SteadyClock() : wall_(absl::Now()), steady_(std::chrono::steady_clock::now()) {}

absl::Time SteadyClock::Now() const {
  return wall_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_);
}

}  // namespace cadre
