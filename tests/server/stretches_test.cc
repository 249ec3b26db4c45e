#include "server/stretches.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace cadre::testing {
namespace {

constexpr int64_t kStretch = 64 << 10;
constexpr Interval kSpan{77, 77 + 5 * kStretch + 1};

TEST(StretchesTest, AreAppendedInOrder) {
  for (const int threads : {1, 2, 9}) {
    absl::Mutex mutex;
    std::set<int64_t> computed;
    int64_t end = kSpan.begin;
    const auto compute = [&](int thread, Interval stretch) {
      EXPECT_LT(thread, threads);
      absl::MutexLock lock(&mutex);
      EXPECT_TRUE(computed.insert(stretch.begin).second);
      return absl::OkStatus();
    };
    const auto append = [&](int, Interval stretch) {
      EXPECT_EQ(stretch.begin, end);
      EXPECT_EQ(stretch.end, StretchEnd({}, kSpan, stretch.begin));
      end = stretch.end;
      return absl::OkStatus();
    };
    EXPECT_EQ(ForEachStretch({}, kSpan, threads, compute, append), absl::OkStatus());
    EXPECT_EQ(end, kSpan.end);
    EXPECT_EQ(computed.size(), 6u);
  }
}

}  // namespace
}  // namespace cadre::testing
