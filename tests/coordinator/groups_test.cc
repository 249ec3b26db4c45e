#include "coordinator/groups.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

v1::Prepared FromRank(const Slot& slot, uint32_t rank) {
  v1::Prepared prepared;
  *prepared.mutable_place() = slot.Place(rank);
  return prepared;
}

TEST(SlotTest, GoesThroughItsStates) {
  const absl::Time now = absl::FromUnixSeconds(5);
  Slot slot("run-1", 2, now);
  EXPECT_TRUE(slot.waiting());
  slot.Form(7, {"w1", "w2"}, v1::Plan(), 3, 30);
  EXPECT_TRUE(slot.preparing());
  EXPECT_EQ(slot.Place(1).generation(), 7u);
  EXPECT_EQ(slot.Place(1).group(), 2u);
  slot.Prepare(FromRank(slot, 0));
  slot.Prepare(FromRank(slot, 0));
  EXPECT_FALSE(slot.prepared()) << "one rank twice is not two";
  slot.Prepare(FromRank(slot, 1));
  EXPECT_TRUE(slot.prepared());
  EXPECT_FALSE(slot.record().lived());
  slot.Start(40);
  EXPECT_TRUE(slot.started());
  EXPECT_FALSE(slot.record().at_end());
  slot.Clear("lost", now + absl::Seconds(1));
  EXPECT_TRUE(slot.waiting());
  EXPECT_TRUE(slot.record().lived());
  EXPECT_EQ(slot.record().reason(), "lost");
  EXPECT_EQ(slot.waiting_since(), now + absl::Seconds(1));
  EXPECT_EQ(slot.ranks(), 0u);
}

TEST(SlotTest, AStartAtTheEndIsAnEnd) {
  Slot slot("run-1", 0, absl::FromUnixSeconds(5));
  slot.Form(1, {"w1"}, v1::Plan(), 3, 30);
  slot.Start(0);
  EXPECT_TRUE(slot.record().at_end());
  EXPECT_FALSE(slot.SetAtEnd());
}

TEST(SlotTest, CountsEveryRoundAndVersionOnce) {
  Slot slot("run-1", 0, absl::FromUnixSeconds(5));
  slot.Form(1, {"w1"}, v1::Plan(), 0, 0);
  EXPECT_TRUE(slot.CountRound(1));
  EXPECT_FALSE(slot.CountRound(1));
  EXPECT_TRUE(slot.CountRound(2));
  EXPECT_FALSE(slot.CountRound(1));
  EXPECT_TRUE(slot.CountVersion(1));
  EXPECT_FALSE(slot.CountVersion(1));
  slot.Clear("", absl::FromUnixSeconds(6));
  slot.Form(2, {"w1"}, v1::Plan(), 0, 0);
  EXPECT_TRUE(slot.CountRound(1)) << "another generation sends its own bytes";
}

}  // namespace
}  // namespace cadre
