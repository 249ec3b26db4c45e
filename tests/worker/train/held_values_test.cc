#include "worker/train/held_values.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

using Place = HeldValues::Place;

TEST(HeldValues, ContributionIsHeldUntilTheVersionIsAdopted) {
  HeldValues held;
  EXPECT_EQ(held.Contribution(0), Place::kNowhere);
  EXPECT_EQ(held.Version(0), Place::kNowhere);
  held.BeginStage();
  EXPECT_EQ(held.Contribution(5), Place::kNowhere) << "not durable";
  held.EndStage(5);
  EXPECT_EQ(held.Contribution(5), Place::kBuffer);
  EXPECT_EQ(held.Contribution(4), Place::kNowhere);
  held.BeginPull();
  EXPECT_EQ(held.Contribution(5), Place::kReplica);
  EXPECT_EQ(held.Version(5), Place::kNowhere);
  held.EndPull(5);
  EXPECT_EQ(held.Contribution(5), Place::kReplica);
  EXPECT_EQ(held.Version(5), Place::kBuffer);
  held.Adopt();
  EXPECT_EQ(held.Contribution(5), Place::kNowhere);
  EXPECT_EQ(held.Version(5), Place::kBuffer);
}

TEST(HeldValues, VersionIsHeldUntilTheNextContribution) {
  HeldValues held;
  held.BeginPull();
  held.EndPull(4);
  held.Adopt();
  EXPECT_EQ(held.Version(4), Place::kBuffer);
  EXPECT_EQ(held.Version(3), Place::kNowhere);
  held.BeginStage();
  EXPECT_EQ(held.Version(4), Place::kNowhere);
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
  EXPECT_EQ(held.Contribution(5), Place::kNowhere);
  EXPECT_EQ(held.Contribution(6), Place::kNowhere);
  EXPECT_EQ(held.Version(5), Place::kNowhere);
}

}  // namespace
}  // namespace cadre
