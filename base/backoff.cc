#include "base/backoff.h"

#include <algorithm>

#include "base/random.h"

namespace cadre {

absl::Duration Backoff::Next() {
  // Limits the shift; `most` is reached long before.
  const auto doublings = static_cast<int>(std::min<uint64_t>(attempt_++, 30));
  const absl::Duration whole = std::min(first_ * static_cast<double>(1U << doublings), max_);
  const double jitter = RandomUniform(seed_, RandomStream::kBackoff, 0, draws_++);
  return whole * (0.5 + 0.5 * jitter);
}

}  // namespace cadre
