#include "base/http/histogram.h"

#include <algorithm>

namespace cadre {

void Histogram::Observe(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin();
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_ns_.fetch_add(absl::ToInt64Nanoseconds(duration), std::memory_order_relaxed);
}

Histogram::Snapshot Histogram::Read() const {
  Snapshot snapshot;
  for (size_t i = 0; i < counts_.size(); ++i) {
    snapshot.counts[i] = counts_[i].load(std::memory_order_relaxed);
  }
  snapshot.sum = static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) / 1e9;
  return snapshot;
}

}  // namespace cadre
