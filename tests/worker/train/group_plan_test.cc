#include "worker/train/group_plan.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

v1::LinkProfile Link(double beta) {
  v1::LinkProfile link;
  link.set_beta(beta);
  return link;
}

TEST(LinkCache, KeepsLinksByPeersForALimitedTime) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  LinkCache cache;
  EXPECT_FALSE(cache.Get({"a:1", "b:1"}, start));
  cache.Put({"a:1", "b:1"}, Link(1), start);
  cache.Put({"a:1", "c:1"}, Link(2), start);
  cache.Put({"a:1", "b:1"}, Link(3), start + absl::Minutes(5));
  ASSERT_TRUE(cache.Get({"a:1", "b:1"}, start + LinkCache::kKept));
  EXPECT_EQ(cache.Get({"a:1", "b:1"}, start + LinkCache::kKept)->beta(), 3);
  EXPECT_EQ(cache.Get({"a:1", "c:1"}, start + LinkCache::kKept)->beta(), 2);
  EXPECT_FALSE(cache.Get({"b:1", "a:1"}, start));
  EXPECT_FALSE(cache.Get({"a:1", "c:1"}, start + LinkCache::kKept + absl::Seconds(1)));
  EXPECT_TRUE(cache.Get({"a:1", "b:1"}, start + LinkCache::kKept + absl::Seconds(1)));
}

}  // namespace
}  // namespace cadre
