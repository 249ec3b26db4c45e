#include "member/held_values.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

TEST(HeldValues, ContributionIsHeldUntilTheVersionIsAdopted) {
  HeldValues held;
  EXPECT_FALSE(held.HasContribution(0));
  EXPECT_FALSE(held.HasVersion(0));
  held.BeginStage();
  EXPECT_FALSE(held.HasContribution(5)) << "not durable";
  held.EndStage(5);
  EXPECT_TRUE(held.HasContribution(5));
  EXPECT_FALSE(held.HasContribution(4));
  held.BeginPull();
  EXPECT_TRUE(held.HasContribution(5));
  EXPECT_FALSE(held.HasVersion(5));
  held.EndPull(5);
  EXPECT_TRUE(held.HasContribution(5));
  EXPECT_TRUE(held.HasVersion(5));
  held.Adopt();
  EXPECT_FALSE(held.HasContribution(5));
  EXPECT_TRUE(held.HasVersion(5));
}

TEST(HeldValues, VersionIsHeldUntilTheNextIsPulled) {
  HeldValues held;
  held.BeginPull();
  held.EndPull(4);
  held.Adopt();
  EXPECT_TRUE(held.HasVersion(4));
  EXPECT_FALSE(held.HasVersion(3));
  held.BeginStage();
  held.EndStage(5);
  EXPECT_TRUE(held.HasVersion(4));
  held.BeginPull();
  EXPECT_FALSE(held.HasVersion(4));
}

// A contribution that a shard refuses because it is late is not held.
TEST(HeldValues, RefusedContributionIsNotHeld) {
  HeldValues held;
  held.BeginStage();
  held.EndStage(5);
  held.BeginPull();
  held.EndPull(5);
  held.Adopt();
  held.BeginStage();
  held.BeginPull();
  EXPECT_FALSE(held.HasContribution(5));
  EXPECT_FALSE(held.HasContribution(6));
  EXPECT_FALSE(held.HasVersion(5));
}

}  // namespace
}  // namespace cadre
