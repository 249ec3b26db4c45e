// Time that tests can control (tests/base/manual_clock.h).
//
// Thread-safe.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace cadre {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// The wall-clock time at construction plus the time that the steady clock has measured since: it
// never goes back and does not follow changes of the system's clock.
class SteadyClock final : public Clock {
 public:
  SteadyClock();
  absl::Time Now() const override;

 private:
  const absl::Time wall_;
  const std::chrono::steady_clock::time_point steady_;
};

}  // namespace cadre
