#include "server/stretches.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"
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

// Two stretches are computed at the same time, or this test would not end.
TEST(StretchesTest, AreComputedConcurrently) {
  auto* const both = new absl::Barrier(2);
  const auto compute = [&](int, Interval) {
    if (both->Block()) delete both;
    return absl::OkStatus();
  };
  const auto append = [](int, Interval) { return absl::OkStatus(); };
  EXPECT_EQ(ForEachStretch({}, {0, 2 * kStretch}, 2, compute, append), absl::OkStatus());
}

TEST(StretchesTest, FirstErrorEndsTheLoop) {
  for (const int threads : {1, 3}) {
    int appended = 0;
    const auto compute = [&](int, Interval stretch) -> absl::Status {
      const int64_t index = (stretch.begin - kSpan.begin) / kStretch;
      return index >= 2 ? absl::InternalError(absl::StrCat(index)) : absl::OkStatus();
    };
    const auto append = [&](int, Interval) {
      ++appended;
      return absl::OkStatus();
    };
    EXPECT_EQ(ForEachStretch({}, kSpan, threads, compute, append), absl::InternalError("2"));
    EXPECT_EQ(appended, 2);
    const auto fails = [&](int, Interval) { return absl::DataLossError(absl::StrCat(++appended)); };
    const auto succeeds = [](int, Interval) { return absl::OkStatus(); };
    EXPECT_EQ(ForEachStretch({}, kSpan, threads, succeeds, fails), absl::DataLossError("3"));
  }
}

TEST(StretchesTest, EmptySpan) {
  const auto fails = [](int, Interval) { return absl::InternalError("called"); };
  EXPECT_EQ(ForEachStretch({}, {3, 3}, 4, fails, fails), absl::OkStatus());
}

}  // namespace
}  // namespace cadre::testing
