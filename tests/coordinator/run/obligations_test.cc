#include "coordinator/run/obligations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace cadre {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kOwedSince = absl::FromUnixSeconds(1'000'000);
constexpr absl::Duration kInstant = absl::Milliseconds(1);

Obligation OwedApply(uint32_t round, const std::string& error = "") {
  return {.kind = "apply",
          .member = "agg-1",
          .number = round,
          .text = "aggregator agg-1 has not applied a round",
          .error = error};
}

TEST(Obligations, AreLateAfterTheirLimit) {
  Obligations obligations;
  EXPECT_EQ(obligations.NextLate(kOwedSince), absl::InfiniteFuture());
  EXPECT_THAT(obligations.Update({OwedApply(1)}, kOwedSince), IsEmpty());
  const absl::Time late = kOwedSince + kMaxObligationAge;
  EXPECT_EQ(obligations.NextLate(kOwedSince + absl::Seconds(3)), late);
  EXPECT_THAT(obligations.Update({OwedApply(1)}, late - kInstant), IsEmpty());
  const auto found = obligations.Update({OwedApply(1, "No space left on device")}, late);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].Text(),
            "aggregator agg-1 has not applied a round for 30s: No space left on device");
  EXPECT_THAT(obligations.Update({OwedApply(1)}, late + kInstant), IsEmpty()) << "it was reported";
  EXPECT_THAT(obligations.Late(late + absl::Seconds(40)), SizeIs(1));
  EXPECT_EQ(obligations.Late(late + absl::Seconds(40))[0].age, absl::Seconds(70));
  EXPECT_EQ(obligations.NextLate(late), absl::InfiniteFuture());
}

TEST(Obligations, MayTakeLongerThanOthers) {
  Obligations obligations;
  Obligation large = OwedApply(1);
  large.allowed = absl::Minutes(20);
  obligations.Update({large}, kOwedSince);
  EXPECT_EQ(obligations.NextLate(kOwedSince), kOwedSince + large.allowed);
  EXPECT_THAT(obligations.Late(kOwedSince + large.allowed - kInstant), IsEmpty());
  EXPECT_THAT(obligations.Update({large}, kOwedSince + large.allowed), SizeIs(1));
  EXPECT_EQ(obligations.Late(kOwedSince + absl::Seconds(1201.9))[0].Text(),
            "aggregator agg-1 has not applied a round for 20m1s");
}

TEST(Obligations, BeginAgainWithTheNextRound) {
  Obligations obligations;
  obligations.Update({OwedApply(1)}, kOwedSince);
  obligations.Update({OwedApply(2)}, kOwedSince + absl::Seconds(20));
  EXPECT_THAT(obligations.Late(kOwedSince + absl::Seconds(40)), IsEmpty());
  obligations.Update({}, kOwedSince + absl::Seconds(45));
  EXPECT_THAT(obligations.Late(kOwedSince + absl::Minutes(5)), IsEmpty()) << "it was answered";
}

TEST(Obligations, MemberThatMakesProgressIsNotLate) {
  Obligations obligations;
  Obligation pull{.kind = "pull", .member = "w1", .group = 0, .number = 3, .text = "loads"};
  absl::Time now = kOwedSince;
  for (; now < kOwedSince + absl::Minutes(10); now += absl::Seconds(20)) {
    pull.progress = now - absl::Seconds(5);
    EXPECT_THAT(obligations.Update({pull}, now), IsEmpty());
    EXPECT_EQ(obligations.NextLate(now), std::max(kOwedSince, pull.progress) + kMaxObligationAge);
  }
  EXPECT_THAT(obligations.Update({pull}, now + absl::Seconds(10)), SizeIs(1));
  // After more progress, it can become late again.
  pull.progress = now + absl::Seconds(11);
  EXPECT_THAT(obligations.Update({pull}, now + absl::Seconds(12)), IsEmpty());
  EXPECT_THAT(obligations.Update({pull}, now + absl::Minutes(1)), SizeIs(1));
}

TEST(Obligations, TheOldestIsNamedFirst) {
  Obligations obligations;
  const Obligation plan{.kind = "plan", .text = "no plan was found"};
  obligations.Update({plan}, kOwedSince);
  obligations.Update({OwedApply(1), plan}, kOwedSince + absl::Seconds(5));
  const auto late = obligations.Late(kOwedSince + absl::Minutes(1));
  ASSERT_THAT(late, SizeIs(2));
  EXPECT_EQ(late[0].what.kind, "plan");
}

}  // namespace
}  // namespace cadre
