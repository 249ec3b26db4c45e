// A clock that a test sets.
//
// Thread-compatible.
#pragma once

#include "base/clock.h"

namespace cadre {

class ManualClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration step) { now_ += step; }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

}  // namespace cadre
