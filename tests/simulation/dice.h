// The random numbers of a simulation. They are its only source of randomness; equal seeds give
// equal numbers.
//
// Thread-compatible.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "base/random.h"

namespace cadre::simulation {

class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}

  uint64_t Bits() { return RandomBits(seed_, RandomStream::kTest, 0, ++drawn_); }
  // In [low, high].
  uint64_t Between(uint64_t low, uint64_t high) { return low + Bits() % (high - low + 1); }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    const uint64_t span = absl::ToInt64Microseconds(high - low);
    return low + absl::Microseconds(Between(0, span));
  }
  bool Chance(double probability) { return (Bits() >> 11) * 0x1p-53 < probability; }

 private:
  const uint64_t seed_;
  uint64_t drawn_ = 0;
};

}  // namespace cadre::simulation
