// Exponential backoff with "equal jitter": half of the delay is fixed and half is random. Peers
// that lost the same server at the same time therefore return at different times, and no delay is
// so short that a starting server is overloaded. Delays are a function of the seed, so that a
// simulation repeats them.
#include "base/backoff.h"

#include <algorithm>

#include "base/random.h"

namespace cadre {

absl::Duration Backoff::Next() {
  // At most 2^30, so that the shift cannot overflow; `max` is reached much earlier.
  const int64_t factor = int64_t{1} << std::min<uint64_t>(attempt_++, 30);
  const absl::Duration whole = std::min(first_ * factor, max_);
  const double jitter = RandomUniform(seed_, RandomStream::kBackoff, 0, draws_++);
  return whole * (0.5 + 0.5 * jitter);
}

}  // namespace cadre
