#include "coordinator/service/begin_limit.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

const absl::Time kBegin = absl::UnixEpoch() + absl::Hours(10);

TEST(BeginLimitTest, WaitsDoubleUpToALimit) {
  BeginLimit limit;
  absl::Time now = kBegin;
  ASSERT_TRUE(limit.Take(now)) << "the first time, without a wait";
  absl::Duration wait = BeginLimit::kMinWait;
  for (int i = 0; i < 15; ++i) {
    EXPECT_EQ(limit.next(), now + wait);
    EXPECT_FALSE(limit.Take(now));
    EXPECT_FALSE(limit.Take(now + wait - absl::Milliseconds(1)));
    now += wait;
    ASSERT_TRUE(limit.Take(now));
    wait = std::min(2 * wait, BeginLimit::kMaxWait);
  }
  EXPECT_EQ(wait, BeginLimit::kMaxWait);
}

TEST(BeginLimitTest, ForgetsAfterAnHour) {
  BeginLimit limit;
  absl::Time now = kBegin;
  for (int i = 0; i < 5; ++i) {
    now = std::max(now, limit.next());
    ASSERT_TRUE(limit.Take(now));
  }
  now += BeginLimit::kForget;
  ASSERT_TRUE(limit.Take(now));
  EXPECT_EQ(limit.next(), now + BeginLimit::kMinWait);
}

}  // namespace
}  // namespace cadre
