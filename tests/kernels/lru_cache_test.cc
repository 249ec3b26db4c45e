#include "kernels/cpu/lru_cache.h"

#include <gtest/gtest.h>

#include <string>

namespace cadre {
namespace {

TEST(LruCacheTest, MakesOnce) {
  LruCache<int, std::string> cache(2);
  int made = 0;
  const auto make = [&] { return std::to_string(++made); };
  EXPECT_EQ(cache.GetOrMake(1, make), "1");
  EXPECT_EQ(cache.GetOrMake(1, make), "1");
  EXPECT_EQ(cache.GetOrMake(2, make), "2");
  EXPECT_EQ(cache.size(), 2U);
}

TEST(LruCacheTest, EvictsTheLeastRecentlyUsed) {
  LruCache<int, int> cache(2);
  int made = 0;
  const auto make = [&] { return ++made; };
  cache.GetOrMake(1, make);
  cache.GetOrMake(2, make);
  EXPECT_EQ(cache.GetOrMake(1, make), 1);
  EXPECT_EQ(cache.GetOrMake(3, make), 3);  // 2 goes
  EXPECT_EQ(cache.size(), 2U);
  EXPECT_EQ(cache.GetOrMake(1, make), 1);
  EXPECT_EQ(cache.GetOrMake(2, make), 4);
}

}  // namespace
}  // namespace cadre
