#include "base/log_limit.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/time/time.h"

namespace cadre {
namespace {

TEST(LogLimitTest, OneLinePerInterval) {
  LogLimit limit(absl::Seconds(10));
  const absl::Time start = absl::UnixEpoch();
  EXPECT_EQ(limit.Pass("a", start), "a");
  EXPECT_EQ(limit.Pass("b", start + absl::Seconds(1)), std::nullopt);
  EXPECT_EQ(limit.Pass("c", start + absl::Seconds(9)), std::nullopt);
  EXPECT_EQ(limit.Pass("d", start + absl::Seconds(10)), "d (2 similar lines were omitted)");
  EXPECT_EQ(limit.Pass("e", start + absl::Seconds(20)), "e");
}

TEST(LogLimitTest, ClockSetBack) {
  LogLimit limit(absl::Seconds(10));
  const absl::Time start = absl::UnixEpoch();
  EXPECT_EQ(limit.Pass("a", start), "a");
  EXPECT_EQ(limit.Pass("b", start - absl::Hours(1)), "b");
}

}  // namespace
}  // namespace cadre
