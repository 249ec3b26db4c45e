#include "base/clock.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"

namespace cadre {
namespace {

TEST(ManualClockTest, ChangesOnlyByAdvance) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  ManualClock clock(start);
  EXPECT_EQ(clock.Now(), start);
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(absl::Milliseconds(1500));
  EXPECT_EQ(clock.Now(), start + absl::Milliseconds(1500));
  clock.Advance(absl::ZeroDuration());
  EXPECT_EQ(clock.Now(), start + absl::Milliseconds(1500));
}

TEST(RealClockTest, MatchesWallClock) {
  const RealClock clock;
  const absl::Time before = absl::Now();
  const absl::Time now = clock.Now();
  EXPECT_LE(before, now);
  EXPECT_LE(now, absl::Now());
}

TEST(SteadyClockTest, IsMonotonic) {
  const SteadyClock clock;
  absl::Time before = clock.Now();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = clock.Now();
    EXPECT_LE(before, now);
    before = now;
  }
  EXPECT_LT(before, absl::InfiniteFuture());
}

}  // namespace
}  // namespace cadre
