#include "member/group_session.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "member/thread_runtime.h"

namespace cadre {
namespace {

v1::CoordinatorMessage Request(uint64_t number) {
  v1::CoordinatorMessage message;
  message.mutable_trace_steps()->set_request(number);
  message.mutable_trace_steps()->set_steps(3);
  return message;
}

class RecordingOwner final : public SessionOwner {
 public:
  void Report(const TrainingReport& report) override {
    answered.push_back(std::get<v1::Traced>(report).request());
  }
  bool connected() const override { return true; }

  std::vector<uint64_t> answered;
};

TEST(GroupSessionTest, NudgeConcernsOneRound) {
  RecordingOwner owner;
  GroupSession session(v1::Assignment(), owner, ThreadRuntime::Insecure());
  EXPECT_FALSE(session.nudged(3));
  v1::CoordinatorMessage nudge;
  nudge.mutable_nudge()->set_round(3);
  session.Deliver(nudge);
  EXPECT_TRUE(session.nudged(3));
  EXPECT_FALSE(session.nudged(4));
}

v1::CoordinatorMessage AddressOf(uint32_t shard, const std::string& address) {
  v1::CoordinatorMessage message;
  v1::ShardAddress& sent = *message.mutable_shard_addresses()->add_shards();
  sent.set_shard(shard);
  sent.set_address(address);
  return message;
}

// An aggregator that is away may be reachable for ranks at its last address.
TEST(GroupSessionTest, ShardThatIsAwayKeepsItsAddress) {
  RecordingOwner owner;
  v1::Assignment assignment;
  assignment.add_shards()->set_address("a:1");
  assignment.add_shards()->set_shard(1);
  GroupSession session(assignment, owner, ThreadRuntime::Insecure());
  EXPECT_FALSE(session.ShardIsAway(0));
  EXPECT_TRUE(session.ShardIsAway(1)) << "it has no address yet";
  EXPECT_EQ(session.LocationOf(1).address, "");
  session.Deliver(AddressOf(0, ""));
  session.Deliver(AddressOf(1, "b:1"));
  EXPECT_TRUE(session.ShardIsAway(0));
  EXPECT_EQ(session.LocationOf(0).address, "a:1");
  EXPECT_FALSE(session.ShardIsAway(1));
  session.Deliver(AddressOf(0, "a:2"));
  EXPECT_FALSE(session.ShardIsAway(0));
  EXPECT_EQ(session.LocationOf(0).address, "a:2");
}

// The name is that of the present aggregator, whose certificate must prove it.
TEST(GroupSessionTest, ShardMovesToAnotherAggregator) {
  RecordingOwner owner;
  v1::Assignment assignment;
  assignment.add_shards()->set_address("a:1");
  assignment.mutable_shards(0)->set_name("agg-0");
  GroupSession session(assignment, owner, ThreadRuntime::Insecure());
  EXPECT_EQ(session.LocationOf(0), ShardLocation("a:1", "agg-0"));
  v1::CoordinatorMessage moved = AddressOf(0, "b:1");
  moved.mutable_shard_addresses()->mutable_shards(0)->set_name("agg-2");
  session.Deliver(moved);
  EXPECT_EQ(session.LocationOf(0), ShardLocation("b:1", "agg-2"));
}

TEST(GroupSessionTest, ShardThatHasMovedToAnAggregatorThatIsAwayHasNoAddress) {
  RecordingOwner owner;
  v1::Assignment assignment;
  assignment.add_shards()->set_address("a:1");
  assignment.mutable_shards(0)->set_name("agg-0");
  GroupSession session(assignment, owner, ThreadRuntime::Insecure());
  v1::CoordinatorMessage away = AddressOf(0, "");
  away.mutable_shard_addresses()->mutable_shards(0)->set_name("agg-0");
  session.Deliver(away);
  EXPECT_EQ(session.LocationOf(0), ShardLocation("a:1", "agg-0"));
  away.mutable_shard_addresses()->mutable_shards(0)->set_name("agg-2");
  session.Deliver(away);
  EXPECT_EQ(session.LocationOf(0), ShardLocation("", "agg-2"));
  EXPECT_TRUE(session.ShardIsAway(0));
}

class GroupSessionTraceTest : public ::testing::Test {
 protected:
  void Answer(uint64_t request) {
    v1::Traced traced;
    traced.set_request(request);
    session_.Send(traced);
  }

  RecordingOwner owner_;
  GroupSession session_{v1::Assignment(), owner_, ThreadRuntime::Insecure()};
};

TEST_F(GroupSessionTraceTest, RequestIsTakenOnce) {
  EXPECT_FALSE(session_.TakeTraceRequest().has_value());
  session_.Deliver(Request(7));
  const auto taken = session_.TakeTraceRequest();
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->request(), 7U);
  EXPECT_EQ(taken->steps(), 3U);
  EXPECT_FALSE(session_.TakeTraceRequest().has_value());
  Answer(7);
  EXPECT_EQ(owner_.answered, std::vector<uint64_t>({7}));
}

TEST_F(GroupSessionTraceTest, RequestRepeatedWhileTracingIsIgnored) {
  session_.Deliver(Request(7));
  ASSERT_TRUE(session_.TakeTraceRequest().has_value());
  session_.Deliver(Request(7));
  EXPECT_FALSE(session_.TakeTraceRequest().has_value());
  Answer(7);
  // The answer was lost with the stream, so the request is repeated.
  session_.Deliver(Request(7));
  EXPECT_TRUE(session_.TakeTraceRequest().has_value());
}

TEST_F(GroupSessionTraceTest, NewerRequestReplacesPendingOne) {
  session_.Deliver(Request(7));
  session_.Deliver(Request(8));
  EXPECT_EQ(session_.TakeTraceRequest()->request(), 8U);
  // Request 9 is taken after 8 has been answered.
  session_.Deliver(Request(9));
  Answer(8);
  EXPECT_EQ(session_.TakeTraceRequest()->request(), 9U);
}

TEST(GroupSession, RestageReachesTheHandler) {
  RecordingOwner owner;
  GroupSession session(v1::Assignment(), owner, ThreadRuntime::Insecure());
  v1::CoordinatorMessage restage;
  restage.mutable_restage()->set_round(3);
  session.Deliver(restage);  // dropped: there is no handler yet
  std::vector<uint32_t> rounds;
  session.HandleRestage([&](const v1::Restage& one) { rounds.push_back(one.round()); });
  session.Deliver(restage);
  session.HandleRestage(nullptr);
  session.Deliver(restage);
  EXPECT_EQ(rounds, std::vector<uint32_t>({3}));
}

}  // namespace
}  // namespace cadre
