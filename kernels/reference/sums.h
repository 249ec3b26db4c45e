// Sums in double, rounded once.
//
// Thread-safe (pure function).
#pragma once

#include <glog/logging.h>

#include <algorithm>
#include <span>

namespace cadre {

// Requires: equal sizes.
inline void Store(std::span<const double> sums, std::span<float> out) {
  CHECK_EQ(sums.size(), out.size());
  std::transform(sums.begin(), sums.end(), out.begin(),
                 [](double sum) { return static_cast<float>(sum); });
}

}  // namespace cadre
