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
  // What the numbers decide. Each purpose has numbers of its own, so that the same cluster and the
  // same faults are drawn whatever happens in between.
  enum class Purpose : uint64_t { kEvents, kCluster, kFaults };

  explicit Dice(uint64_t seed, Purpose purpose = Purpose::kEvents)
      : seed_(seed), purpose_(static_cast<uint64_t>(purpose)) {}

  uint64_t Bits() { return RandomBits(seed_, RandomStream::kTest, purpose_, ++drawn_); }
  // In [low, high].
  uint64_t Between(uint64_t low, uint64_t high) { return low + Bits() % (high - low + 1); }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    const uint64_t span = absl::ToInt64Microseconds(high - low);
    return low + absl::Microseconds(Between(0, span));
  }
  bool Chance(double probability) { return (Bits() >> 11) * 0x1p-53 < probability; }

 private:
  const uint64_t seed_;
  const uint64_t purpose_;
  uint64_t drawn_ = 0;
};

}  // namespace cadre::simulation
