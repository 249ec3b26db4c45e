// Waiting times for retries: exponential with full jitter.
//
// Thread-compatible.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace cadre {

class Backoff {
 public:
  // Requires: first > 0, factor 2 up to `most`. Different seeds keep peers from retrying in step.
  Backoff(absl::Duration first, absl::Duration most, uint64_t seed)
      : first_(first), most_(most), seed_(seed) {}

  // The next wait: uniform in [half, whole] of first, 2 first, 4 first, ..., most.
  absl::Duration Next();
  // After a success.
  void Reset() { attempt_ = 0; }

 private:
  const absl::Duration first_;
  const absl::Duration most_;
  const uint64_t seed_;
  uint64_t attempt_ = 0;
  uint64_t draws_ = 0;
};

}  // namespace cadre
