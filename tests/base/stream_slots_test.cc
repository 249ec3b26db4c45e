#include "base/stream_slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/silent_peers.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;

TEST(StreamSlotsTest, OnePeerLeavesAQuarter) {
  StreamSlots slots(8);
  std::vector<StreamSlots::Slot> taken;
  for (int i = 0; i < 6; ++i) taken.push_back(slots.Take("a"));
  EXPECT_TRUE(taken.back().taken());
  EXPECT_FALSE(slots.Take("a").taken());
  for (const char* peer : {"b", "c"}) taken.push_back(slots.Take(peer));
  EXPECT_TRUE(taken.back().taken());
  EXPECT_FALSE(slots.Take("d").taken());
  taken.clear();
  EXPECT_TRUE(slots.Take("a").taken());
  for (int i = 0; i < 6; ++i) taken.push_back(slots.Take("a"));
  taken.erase(taken.begin() + 1, taken.end());
  for (int i = 0; i < 5; ++i) taken.push_back(slots.Take("a"));
  EXPECT_TRUE(taken.back().taken());
  EXPECT_FALSE(slots.Take("a").taken()) << "its first stream still counts";
}

TEST(StreamSlotsTest, NewAttemptTakesTheSlotOfTheOneBefore) {
  StreamSlots slots(4);
  std::vector<int> replaced;
  std::vector<StreamSlots::Slot> taken;
  const auto take = [&](const char* peer, const char* of, int number) {
    taken.push_back(
        slots.Take(peer, {.of = of, .on_replaced = [&, number] { replaced.push_back(number); }}));
    return taken.back().taken();
  };
  EXPECT_TRUE(take("a", "x", 0));
  EXPECT_TRUE(take("a", "y", 1));
  EXPECT_TRUE(take("a", "z", 2));
  EXPECT_FALSE(take("a", "w", 3));
  EXPECT_THAT(replaced, ElementsAre()) << "these are different attempts";
  for (int i = 4; i < 8; ++i) EXPECT_TRUE(take("a", "x", i));
  EXPECT_THAT(replaced, ElementsAre(0, 4, 5, 6));
  EXPECT_FALSE(take("a", "w", 8)) << "the newest attempt has the slot";
  // The streams of the earlier attempts end later, and have nothing to return.
  taken.erase(taken.begin() + 4, taken.end() - 2);
  taken.erase(taken.begin());
  EXPECT_FALSE(take("a", "w", 9));
  // Another peer: the slot then counts for it.
  EXPECT_TRUE(take("b", "x", 10));
  EXPECT_THAT(replaced, ElementsAre(0, 4, 5, 6, 7));
  EXPECT_TRUE(take("a", "w", 11));
  // Nothing is left of a stream that has ended.
  taken.clear();
  EXPECT_TRUE(take("a", "x", 12));
  EXPECT_THAT(replaced, ElementsAre(0, 4, 5, 6, 7));
}

TEST(StreamSlotsTest, EarlierAttemptEndsAlthoughThereIsNoSlot) {
  StreamSlots slots(4);
  bool replaced = false;
  const auto first = slots.Take("b", {.of = "x", .on_replaced = [&] { replaced = true; }});
  std::vector<StreamSlots::Slot> taken;
  for (int i = 0; i < 3; ++i) taken.push_back(slots.Take("a"));
  EXPECT_FALSE(slots.Take("a", {.of = "x", .on_replaced = nullptr}).taken());
  EXPECT_TRUE(replaced);
}

// A caller without the right to the call does not learn whether the service is busy.
TEST(StreamSlotsTest, OnlyAuthenticatedCallersAreAdmitted) {
  StreamSlots slots(1);
  const absl::Status stranger = absl::PermissionDeniedError("no rank");
  EXPECT_THAT(slots.Admit(stranger, "a"), IsError(absl::StatusCode::kPermissionDenied, "no rank"));
  const auto slot = slots.Admit(absl::OkStatus(), "a");
  ASSERT_THAT(slot, IsOk());
  EXPECT_THAT(slots.Admit(absl::OkStatus(), "b"),
              IsError(absl::StatusCode::kResourceExhausted, "busy: "));
  EXPECT_THAT(slots.Admit(stranger, "b"), IsError(absl::StatusCode::kPermissionDenied, "no rank"));
}

TEST(SilentPeersTest, ReturnsStreamsWhosePeersAreSilent) {
  constexpr absl::Duration kLimit = absl::Seconds(30);
  SilentPeers<int> streams(kLimit);
  const absl::Time start = absl::FromUnixSeconds(1000);
  for (const int stream : {1, 2, 3}) streams.Await(stream, start);
  streams.Continue(2);
  streams.Await(3, start + absl::Seconds(1));
  EXPECT_EQ(streams.Take(start + kLimit - absl::Milliseconds(1)), std::nullopt);
  EXPECT_EQ(streams.Take(start + kLimit), 1);
  EXPECT_EQ(streams.Take(start + kLimit), std::nullopt) << "it is returned once";
  EXPECT_EQ(streams.Take(start + absl::Hours(1)), 3);
  EXPECT_EQ(streams.Take(start + absl::Hours(1)), std::nullopt) << "2 does not wait for its peer";
}

}  // namespace
}  // namespace cadre
