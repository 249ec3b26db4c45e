// Delays between retries: exponential with jitter.
//
// Thread-compatible.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace cadre {

class Backoff {
 public:
  // Delays grow by a factor of 2 from `first` up to `max`. Different seeds desynchronize peers.
  // Requires: first > 0.
  Backoff(absl::Duration first, absl::Duration max, uint64_t seed)
      : first_(first), max_(max), seed_(seed) {}

  // The next delay: uniform in [d / 2, d] for d = first, 2 first, 4 first, ..., max.
  absl::Duration Next();
  // Call after a success: the next delay starts at `first` again.
  void Reset() { attempt_ = 0; }

 private:
  const absl::Duration first_;
  const absl::Duration max_;
  const uint64_t seed_;
  uint64_t attempt_ = 0;
  uint64_t draws_ = 0;
};

}  // namespace cadre
