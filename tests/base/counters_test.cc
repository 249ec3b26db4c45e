#include "base/counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(CountersTest, UnknownNamesAreZero) {
  const Counters counters;
  EXPECT_EQ(counters.Get("rounds"), 0U);
  EXPECT_THAT(counters.Snapshot(), IsEmpty());
}

TEST(CountersTest, AddsUp) {
  Counters counters;
  counters.Add("stale");
  counters.Add("bytes", 100);
  counters.Add("bytes", 20);
  counters.Add("none", 0);
  EXPECT_EQ(counters.Get("stale"), 1U);
  EXPECT_EQ(counters.Get("bytes"), 120U);
  EXPECT_THAT(counters.Snapshot(),
              ElementsAre(Pair("bytes", 120), Pair("none", 0), Pair("stale", 1)));
}

TEST(CountersTest, ThreadsLoseNothing) {
  Counters counters;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) counters.Add(i % 2 == 0 ? "even" : "odd", 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counters.Get("even"), 4U * 500 * 3);
  EXPECT_EQ(counters.Get("odd"), 4U * 500 * 3);
}

}  // namespace
}  // namespace cadre
