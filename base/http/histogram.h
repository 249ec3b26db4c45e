// Counts durations in buckets, as a Prometheus histogram does.
//
// Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace cadre {

class Histogram {
 public:
  // Upper bounds of the buckets in seconds; a last one has no bound.
  static constexpr std::array<double, 10> kBounds = {0.0001, 0.0005, 0.001, 0.005, 0.01,
                                                     0.05,   0.1,    0.5,   1,     10};

  void Observe(absl::Duration duration);

  struct Snapshot {
    // Counts by bucket; not cumulative, unlike those that Prometheus expects.
    std::array<uint64_t, kBounds.size() + 1> counts{};
    double sum = 0;
  };
  Snapshot Read() const;

 private:
  std::array<std::atomic<uint64_t>, kBounds.size() + 1> counts_{};
  std::atomic<int64_t> sum_ns_{0};
};

}  // namespace cadre
