#include "base/backoff.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace cadre {
namespace {

constexpr absl::Duration kFirst = absl::Milliseconds(100);
constexpr absl::Duration kMax = absl::Seconds(5);

std::vector<absl::Duration> Delays(Backoff& backoff, int count) {
  std::vector<absl::Duration> delays;
  for (int i = 0; i < count; ++i) delays.push_back(backoff.Next());
  return delays;
}

TEST(BackoffTest, DoublesUpToMaxWithJitter) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Backoff backoff(kFirst, kMax, seed);
    absl::Duration whole = kFirst;
    // So many delays that doubling an integer each time would overflow.
    for (int i = 0; i < 200; ++i) {
      const absl::Duration delay = backoff.Next();
      EXPECT_GE(delay, whole / 2);
      EXPECT_LE(delay, whole);
      whole = std::min(whole * 2, kMax);
    }
  }
}

TEST(BackoffTest, JitterUsesWholeRange) {
  Backoff backoff(kMax, kMax, 1);
  const std::vector<absl::Duration> delays = Delays(backoff, 1000);
  EXPECT_LT(*std::min_element(delays.begin(), delays.end()), kMax * 0.51);
  EXPECT_GT(*std::max_element(delays.begin(), delays.end()), kMax * 0.99);
}

TEST(BackoffTest, ResetKeepsJitterSequence) {
  Backoff backoff(kFirst, kMax, 1);
  const absl::Duration before = Delays(backoff, 10).front();
  backoff.Reset();
  const absl::Duration after = backoff.Next();
  EXPECT_LE(after, kFirst);
  EXPECT_GE(after, kFirst / 2);
  EXPECT_NE(after, before);
}

TEST(BackoffTest, SeedsDiffer) {
  std::set<absl::Duration> firsts;
  for (uint64_t seed = 0; seed < 100; ++seed) firsts.insert(Backoff(kFirst, kMax, seed).Next());
  EXPECT_GT(firsts.size(), 95U);
  Backoff a(kFirst, kMax, 7), b(kFirst, kMax, 7);
  EXPECT_EQ(Delays(a, 10), Delays(b, 10));
}

TEST(BackoffTest, MaxBelowFirst) {
  Backoff backoff(absl::Seconds(10), absl::Seconds(1), 1);
  EXPECT_LE(backoff.Next(), absl::Seconds(1));
}

}  // namespace
}  // namespace cadre
