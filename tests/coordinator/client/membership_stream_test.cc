#include "coordinator/client/membership_stream.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/protocol.h"

namespace cadre {
namespace {

constexpr absl::Duration kHeartbeat = absl::Seconds(2);

class MembershipStreamTest : public ::testing::Test {
 protected:
  void Join(const char* id = "m-1") {
    stream_.Open(now_);
    v1::Welcome welcome;
    welcome.set_member_id(id);
    welcome.set_heartbeat_ms(absl::ToInt64Milliseconds(kHeartbeat));
    stream_.Welcome(welcome, now_);
  }
  bool Refuse(v1::Refusal refusal) {
    v1::Refused refused;
    refused.set_refusal(refusal);
    return stream_.Refuse(refused);
  }
  static v1::MemberMessage Goodbye() {
    v1::MemberMessage message;
    message.mutable_goodbye();
    return message;
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  MembershipStream stream_{/*seed=*/1, /*epoch=*/5, /*max_queued=*/2};
};

TEST_F(MembershipStreamTest, HelloHasTheIdOfTheLastWelcome) {
  EXPECT_EQ(stream_.First({}).hello().member_id(), "");
  EXPECT_EQ(stream_.First({}).hello().protocol(), kProtocol);
  Join("m-7");
  stream_.Close();
  EXPECT_FALSE(stream_.welcomed());
  EXPECT_TRUE(stream_.ever_welcomed());
  EXPECT_EQ(stream_.First({}).hello().member_id(), "m-7");
}

TEST_F(MembershipStreamTest, HelloHasTheHighestEpoch) {
  EXPECT_EQ(stream_.First({}).hello().highest_epoch(), 5U) << "of an earlier process";
  EXPECT_TRUE(stream_.AcceptEpoch(7));
  EXPECT_FALSE(stream_.AcceptEpoch(6));
  EXPECT_EQ(stream_.First({}).hello().highest_epoch(), 7U);
}

TEST_F(MembershipStreamTest, EachStreamTriesTheNextCoordinator) {
  MembershipStream stream(/*seed=*/1, /*epoch=*/0, /*max_queued=*/2, /*servers=*/3);
  for (const size_t server : {0, 1, 2, 0}) {
    EXPECT_EQ(stream.server(), server);
    stream.Open(now_);
    EXPECT_LT(stream.deadline(), now_ + absl::Seconds(5)) << "it may be one that does not respond";
    stream.Close();
  }
}

TEST_F(MembershipStreamTest, HandshakeEndsOnce) {
  EXPECT_EQ(stream_.deadline(), absl::InfiniteFuture());
  stream_.Open(now_);
  EXPECT_FALSE(stream_.TakeHandshakeTimeout(now_));
  now_ = stream_.deadline();
  EXPECT_TRUE(stream_.TakeHandshakeTimeout(now_));
  EXPECT_FALSE(stream_.TakeHandshakeTimeout(now_));
}

TEST_F(MembershipStreamTest, HeartbeatsFollowWelcome) {
  Join();
  EXPECT_EQ(stream_.deadline(), now_ + kHeartbeat);
  EXPECT_FALSE(stream_.TakeHeartbeat(now_));
  now_ += kHeartbeat;
  EXPECT_TRUE(stream_.TakeHeartbeat(now_));
  EXPECT_EQ(stream_.deadline(), now_ + kHeartbeat);
  stream_.Close();
  EXPECT_EQ(stream_.deadline(), absl::InfiniteFuture());
}

TEST_F(MembershipStreamTest, QueueIsLimitedAndEndsWithItsStream) {
  EXPECT_FALSE(stream_.Queue(Goodbye()));
  Join();
  EXPECT_TRUE(stream_.Queue(Goodbye()));
  EXPECT_TRUE(stream_.Queue(Goodbye()));
  EXPECT_FALSE(stream_.Queue(Goodbye()));
  EXPECT_TRUE(stream_.TakeMessage()->has_goodbye());
  stream_.Close();
  Join();
  EXPECT_FALSE(stream_.TakeMessage());
}

TEST_F(MembershipStreamTest, LowerEpochsAreStaleAndCounted) {
  EXPECT_FALSE(stream_.AcceptEpoch(4));
  EXPECT_TRUE(stream_.AcceptEpoch(5));
  EXPECT_TRUE(stream_.AcceptEpoch(6));
  EXPECT_FALSE(stream_.AcceptEpoch(5));
  EXPECT_EQ(stream_.epoch(), 6);
  EXPECT_EQ(stream_.HeartbeatOf({}).heartbeat().counters().at("stale_epochs"), 2);
}

TEST_F(MembershipStreamTest, FirstRefusalIsFinal) {
  stream_.Open(now_);
  EXPECT_TRUE(Refuse(v1::REFUSAL_MALFORMED));
  EXPECT_EQ(stream_.Close(), absl::InfiniteDuration());
}

TEST_F(MembershipStreamTest, LaterRefusalsAreFinalIfTheyWouldRepeat) {
  Join();
  EXPECT_FALSE(Refuse(v1::REFUSAL_MALFORMED));
  EXPECT_LT(stream_.Close(), absl::InfiniteDuration());
  Join();
  EXPECT_TRUE(Refuse(v1::REFUSAL_PROTOCOL));
  EXPECT_EQ(stream_.Close(), absl::InfiniteDuration());
}

TEST_F(MembershipStreamTest, UnknownMemberJoinsAsANewOne) {
  Join();
  EXPECT_FALSE(Refuse(v1::REFUSAL_UNKNOWN_MEMBER));
  EXPECT_EQ(stream_.First({}).hello().member_id(), "");
  EXPECT_LT(stream_.Close(), absl::InfiniteDuration());
}

TEST_F(MembershipStreamTest, WaitsGrowUntilAWelcome) {
  absl::Duration longest;
  for (int i = 0; i < 10; ++i) {
    stream_.Open(now_);
    longest = std::max(longest, stream_.Close());
  }
  EXPECT_GE(longest, absl::Milliseconds(200));
  Join();
  EXPECT_LE(stream_.Close(), absl::Milliseconds(100));
}

// A coordinator that rejects the member, or has too low an epoch, does so again.
TEST_F(MembershipStreamTest, WaitsForACoordinatorThatRejectsGrowFurther) {
  Join();
  stream_.Close();
  const auto longest = [this](auto reject) {
    absl::Duration longest;
    for (int i = 0; i < 10; ++i) {
      stream_.Open(now_);
      reject();
      longest = std::max(longest, stream_.Close());
    }
    return longest;
  };
  EXPECT_GE(longest([this] { EXPECT_FALSE(stream_.AcceptEpoch(4)); }), absl::Milliseconds(2500));
  Join();
  EXPECT_LE(stream_.Close(), absl::Milliseconds(100)) << "it was welcomed";
  EXPECT_GE(longest([this] { EXPECT_FALSE(Refuse(v1::REFUSAL_MALFORMED)); }),
            absl::Milliseconds(2500));
  stream_.Open(now_);
  EXPECT_LE(stream_.Close(), absl::Milliseconds(400)) << "it was not reached";
  // A member that is refused after its Welcome joins again soon, and so does one that must only
  // join as a new one.
  Join();
  Refuse(v1::REFUSAL_MALFORMED);
  EXPECT_LE(stream_.Close(), absl::Milliseconds(100));
  EXPECT_LE(longest([this] { Refuse(v1::REFUSAL_UNKNOWN_MEMBER); }), absl::Milliseconds(400));
}

TEST_F(MembershipStreamTest, RejectionDoesNotDelayTheOtherCoordinators) {
  MembershipStream stream(/*seed=*/1, /*epoch=*/5, /*max_queued=*/2, /*servers=*/2);
  for (int i = 0; i < 10; ++i) {
    stream.Open(now_);
    EXPECT_FALSE(stream.AcceptEpoch(4));
    EXPECT_LE(stream.Close(), absl::Milliseconds(400)) << "the other one may lead";
    stream.Open(now_);
    stream.Close();
  }
}

TEST_F(MembershipStreamTest, ReasonIsNewOnce) {
  EXPECT_TRUE(stream_.IsNewReason("a"));
  EXPECT_FALSE(stream_.IsNewReason("a"));
  EXPECT_TRUE(stream_.IsNewReason("b"));
  Join();
  EXPECT_TRUE(stream_.IsNewReason("b"));
}

}  // namespace
}  // namespace cadre
