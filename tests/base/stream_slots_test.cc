#include "base/stream_slots.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/silent_peers.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

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
