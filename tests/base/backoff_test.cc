#include "base/backoff.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace cadre {
namespace {

constexpr absl::Duration kFirst = absl::Milliseconds(100);
constexpr absl::Duration kMost = absl::Seconds(5);

std::vector<absl::Duration> Waits(Backoff& backoff, int count) {
  std::vector<absl::Duration> waits;
  for (int i = 0; i < count; ++i) waits.push_back(backoff.Next());
  return waits;
}

TEST(BackoffTest, DoublesUpToMaxWithJitter) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Backoff backoff(kFirst, kMost, seed);
    absl::Duration whole = kFirst;
    // Long enough that doubling an integer each time would have overflowed.
    for (int i = 0; i < 200; ++i) {
      const absl::Duration wait = backoff.Next();
      EXPECT_GE(wait, whole / 2);
      EXPECT_LE(wait, whole);
      whole = std::min(whole * 2, kMost);
    }
  }
}

TEST(BackoffTest, JitterUsesTheWholeRange) {
  Backoff backoff(kMost, kMost, 1);
  const std::vector<absl::Duration> waits = Waits(backoff, 1000);
  EXPECT_LT(*std::min_element(waits.begin(), waits.end()), kMost * 0.51);
  EXPECT_GT(*std::max_element(waits.begin(), waits.end()), kMost * 0.99);
}

TEST(BackoffTest, ResetKeepsJitterSequence) {
  Backoff backoff(kFirst, kMost, 1);
  const absl::Duration before = Waits(backoff, 10).front();
  backoff.Reset();
  const absl::Duration after = backoff.Next();
  EXPECT_LE(after, kFirst);
  EXPECT_GE(after, kFirst / 2);
  EXPECT_NE(after, before);
}

TEST(BackoffTest, SeedsKeepPeersApart) {
  std::set<absl::Duration> firsts;
  for (uint64_t seed = 0; seed < 100; ++seed) firsts.insert(Backoff(kFirst, kMost, seed).Next());
  EXPECT_GT(firsts.size(), 95U);
  Backoff a(kFirst, kMost, 7), b(kFirst, kMost, 7);
  EXPECT_EQ(Waits(a, 10), Waits(b, 10));
}

TEST(BackoffTest, MostBelowFirstIsTheBound) {
  Backoff backoff(absl::Seconds(10), absl::Seconds(1), 1);
  EXPECT_LE(backoff.Next(), absl::Seconds(1));
}

}  // namespace
}  // namespace cadre
