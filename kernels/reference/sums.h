// Sums in double, rounded to float at the end.
//
// Thread-safe (pure functions).
#pragma once

#include <glog/logging.h>

#include <algorithm>
#include <span>

namespace cadre {

// The exact product of two floats.
inline double Product(double a, float b) { return a * b; }

// out = sums, rounded. Requires: equal sizes.
inline void Store(std::span<const double> sums, std::span<float> out) {
  CHECK_EQ(sums.size(), out.size());
  std::transform(sums.begin(), sums.end(), out.begin(), [](double sum) -> float { return sum; });
}

}  // namespace cadre
