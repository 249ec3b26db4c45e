// Durations of many events of one kind, and their percentiles.
//
// Thread-compatible.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "bench/harness.h"
#include "nlohmann/json.hpp"

namespace cadre {

class Latencies {
 public:
  void Add(double seconds) { seconds_.push_back(static_cast<float>(seconds)); }
  void Add(const Latencies& other) {
    seconds_.insert(seconds_.end(), other.seconds_.begin(), other.seconds_.end());
  }

  size_t count() const { return seconds_.size(); }

  // The smallest value that at least the share `p` of all values does not exceed; 0 without values.
  double Percentile(double p) {
    if (seconds_.empty()) return 0;
    const double rank = std::ceil(p * static_cast<double>(seconds_.size()));
    const auto at = seconds_.begin() + std::max<std::ptrdiff_t>(0, std::lround(rank) - 1);
    std::nth_element(seconds_.begin(), at, seconds_.end());
    return *at;
  }

  // Count, median, 99th percentile and maximum, in milliseconds.
  nlohmann::ordered_json ToJson() {
    return {{"count", count()},
            {"p50_ms", Rounded(Percentile(0.5) * 1e3, 4)},
            {"p99_ms", Rounded(Percentile(0.99) * 1e3, 4)},
            {"max_ms", Rounded(Percentile(1) * 1e3, 4)}};
  }

 private:
  std::vector<float> seconds_;
};

}  // namespace cadre
