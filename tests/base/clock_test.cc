#include "base/clock.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"

namespace cadre {
namespace {

TEST(SteadyClockTest, StartsAtWallTimeAndIsMonotonic) {
  const absl::Time wall = absl::Now();
  const SteadyClock clock;
  absl::Time before = clock.Now();
  EXPECT_LT(absl::AbsDuration(before - wall), absl::Minutes(1));
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = clock.Now();
    EXPECT_LE(before, now);
    before = now;
  }
}

}  // namespace
}  // namespace cadre
