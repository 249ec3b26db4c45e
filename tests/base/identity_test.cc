#include "base/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace cadre {
namespace {

TEST(IdentityTest, AreUnique) {
  std::set<std::string> names;
  std::set<uint64_t> seeds;
  for (int i = 0; i < 200; ++i) {
    names.insert(NewIdentity());
    seeds.insert(NewSeed());
  }
  EXPECT_EQ(names.size(), 200U);
  EXPECT_EQ(seeds.size(), 200U);
}

TEST(IdentityTest, HasThirtyTwoHexDigits) {
  EXPECT_THAT(NewIdentity(), ::testing::MatchesRegex("[0-9a-f]{32}"));
}

TEST(IdentityTest, HostNameIsNotEmpty) { EXPECT_FALSE(HostName().empty()); }

}  // namespace
}  // namespace cadre
