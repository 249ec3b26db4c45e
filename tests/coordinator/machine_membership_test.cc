// Joining, leases, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

v1::MemberMessage With(const v1::Hello& hello) {
  v1::MemberMessage message;
  *message.mutable_hello() = hello;
  return message;
}

FakeWorker Somebody(const std::string& name) {
  FakeWorker worker;
  worker.name = name;
  worker.incarnation = absl::StrCat("process of ", name);
  return worker;
}

class MachineMembershipTest : public ::testing::Test {
 protected:
  // What Hello on a new stream is answered by.
  v1::CoordinatorMessage Join(const v1::Hello& hello) {
    connection_ = cluster_.Open();
    cluster_.SendFrom(connection_, With(hello));
    const auto received = cluster_.SentTo(connection_);
    EXPECT_FALSE(received.empty());
    return received.empty() ? v1::CoordinatorMessage() : received.front();
  }
  void ExpectRefused(const v1::CoordinatorMessage& message, v1::Refusal refusal,
                     const std::string& counter) {
    ASSERT_TRUE(message.has_refused()) << message.ShortDebugString();
    EXPECT_EQ(message.refused().refusal(), refusal);
    EXPECT_FALSE(message.refused().reason().empty());
    EXPECT_FALSE(cluster_.IsOpen(connection_));
    EXPECT_EQ(cluster_.Counter(counter), 1u);
  }

  FakeCluster cluster_;
  ConnectionId connection_ = 0;
};

TEST_F(MachineMembershipTest, WelcomeGrantsALease) {
  const v1::CoordinatorMessage message = Join(cluster_.WorkerHello(Somebody("a")));
  ASSERT_TRUE(message.has_welcome());
  EXPECT_EQ(message.welcome().member_id(), "w1");
  EXPECT_EQ(message.welcome().lease_ms(), 10'000u);
  EXPECT_EQ(message.welcome().heartbeat_ms(), 2'000u);
}

TEST_F(MachineMembershipTest, AnotherSchemaIsRefused) {
  v1::Hello hello = cluster_.WorkerHello(Somebody("a"));
  hello.set_schema_hash(kSchema + 1);
  ExpectRefused(Join(hello), v1::REFUSAL_SCHEMA, "refused_schema");
  EXPECT_EQ(cluster_.machine().Status(cluster_.now()).workers_size(), 0);
}

TEST_F(MachineMembershipTest, AnIncompleteHelloIsRefused) {
  v1::Hello hello = cluster_.WorkerHello(Somebody("a"));
  hello.set_role(v1::ROLE_UNSPECIFIED);
  ExpectRefused(Join(hello), v1::REFUSAL_MALFORMED, "refused_malformed");
}

TEST_F(MachineMembershipTest, AnUnknownMemberIsRefused) {
  v1::Hello hello = cluster_.WorkerHello(Somebody("a"));
  hello.set_member_id("w99");
  ExpectRefused(Join(hello), v1::REFUSAL_UNKNOWN_MEMBER, "refused_unknown_member");
}

TEST_F(MachineMembershipTest, IdBelongsToProcess) {
  FakeWorker worker = Somebody("a");
  worker.member_id = Join(cluster_.WorkerHello(worker)).welcome().member_id();
  worker.incarnation = "another";
  ExpectRefused(Join(cluster_.WorkerHello(worker)), v1::REFUSAL_UNKNOWN_MEMBER,
                "refused_unknown_member");
}

TEST_F(MachineMembershipTest, HelloComesFirstAndOnce) {
  connection_ = cluster_.Open();
  v1::MemberMessage heartbeat;
  heartbeat.mutable_heartbeat();
  cluster_.SendFrom(connection_, heartbeat);
  ExpectRefused(cluster_.SentTo(connection_).back(), v1::REFUSAL_OUT_OF_ORDER,
                "refused_out_of_order");
  const v1::Hello hello = cluster_.WorkerHello(Somebody("a"));
  ASSERT_TRUE(Join(hello).has_welcome());
  cluster_.SendFrom(connection_, With(hello));
  EXPECT_EQ(cluster_.SentTo(connection_).back().refused().refusal(), v1::REFUSAL_OUT_OF_ORDER);
  EXPECT_EQ(cluster_.Counter("refused_out_of_order"), 2u);
  EXPECT_FALSE(cluster_.IsOpen(connection_));
}

TEST_F(MachineMembershipTest, OversizedMessageKeepsLease) {
  ASSERT_TRUE(Join(cluster_.WorkerHello(Somebody("a"))).has_welcome());
  cluster_.Do(MessageRefused{connection_, v1::REFUSAL_OVERSIZED, "too large"});
  ExpectRefused(cluster_.SentTo(connection_).back(), v1::REFUSAL_OVERSIZED, "refused_oversized");
  ASSERT_EQ(cluster_.machine().Status(cluster_.now()).workers_size(), 1);
  EXPECT_FALSE(cluster_.machine().Status(cluster_.now()).workers(0).connected());
}

TEST_F(MachineMembershipTest, MessageOfOtherRoleIsRefused) {
  ASSERT_TRUE(Join(cluster_.WorkerHello(Somebody("a"))).has_welcome());
  v1::MemberMessage message;
  message.mutable_applied()->set_run("run-1");
  cluster_.SendFrom(connection_, message);
  ExpectRefused(cluster_.SentTo(connection_).back(), v1::REFUSAL_MALFORMED, "refused_malformed");
  FakeAggregator& aggregator = cluster_.AddAggregator("agg");
  v1::MemberMessage prepared;
  prepared.mutable_prepared();
  cluster_.SendFrom(aggregator.connection, prepared);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 2u);
}

TEST_F(MachineMembershipTest, AnEmptyMessageIsRefused) {
  ASSERT_TRUE(Join(cluster_.WorkerHello(Somebody("a"))).has_welcome());
  cluster_.SendFrom(connection_, v1::MemberMessage());
  ExpectRefused(cluster_.SentTo(connection_).back(), v1::REFUSAL_MALFORMED, "refused_malformed");
}

TEST_F(MachineMembershipTest, ASilentMemberIsDropped) {
  ASSERT_TRUE(Join(cluster_.WorkerHello(Somebody("a"))).has_welcome());
  cluster_.Run(absl::Seconds(9));
  EXPECT_EQ(cluster_.machine().Status(cluster_.now()).workers_size(), 1);
  cluster_.Run(absl::Seconds(1));
  EXPECT_EQ(cluster_.machine().Status(cluster_.now()).workers_size(), 0);
  EXPECT_EQ(cluster_.Counter("leases_lost"), 1u);
  EXPECT_FALSE(cluster_.IsOpen(connection_));
}

TEST_F(MachineMembershipTest, HeartbeatsKeepALease) {
  cluster_.AddWorker("a");
  cluster_.Run(absl::Minutes(5));
  EXPECT_EQ(cluster_.machine().Status(cluster_.now()).workers_size(), 1);
  EXPECT_EQ(cluster_.Counter("leases_lost"), 0u);
}

TEST_F(MachineMembershipTest, OnlyATickEndsALease) {
  ASSERT_TRUE(Join(cluster_.WorkerHello(Somebody("a"))).has_welcome());
  const absl::Time late = cluster_.now() + absl::Minutes(1);
  v1::MemberMessage heartbeat;
  heartbeat.mutable_heartbeat();
  cluster_.machine().Handle(MessageReceived{connection_, heartbeat}, late);
  cluster_.machine().Handle(Tick{}, late);
  EXPECT_EQ(cluster_.machine().Status(late).workers_size(), 1);
}

TEST_F(MachineMembershipTest, AStreamWithoutHelloIsEnded) {
  connection_ = cluster_.Open();
  cluster_.Run(absl::Seconds(11));
  EXPECT_FALSE(cluster_.IsOpen(connection_));
}

TEST_F(MachineMembershipTest, ReconnectWithinLeaseKeepsId) {
  FakeWorker& worker = cluster_.AddWorker("a");
  const std::string id = worker.member_id;
  cluster_.Cut(worker);
  cluster_.Connect(worker);
  EXPECT_EQ(worker.member_id, id);
}

TEST_F(MachineMembershipTest, LostWelcomeAddsNoMember) {
  FakeWorker& worker = cluster_.AddWorker("a");
  const std::string id = worker.member_id;
  worker.member_id.clear();  // it never read Welcome
  cluster_.Cut(worker);
  cluster_.Connect(worker);
  EXPECT_EQ(worker.member_id, id);
  EXPECT_EQ(cluster_.machine().Status(cluster_.now()).workers_size(), 1);
}

TEST_F(MachineMembershipTest, NewStreamReplacesOld) {
  FakeWorker& worker = cluster_.AddWorker("a");
  const ConnectionId before = worker.connection;
  cluster_.Connect(worker);
  EXPECT_FALSE(cluster_.IsOpen(before));
  EXPECT_TRUE(cluster_.IsOpen(worker.connection));
}

TEST_F(MachineMembershipTest, RestartedWorkerReplacesMember) {
  FakeWorker& worker = cluster_.AddWorker("a");
  const std::string id = worker.member_id;
  cluster_.Kill(worker);
  cluster_.Restart(worker);
  EXPECT_NE(worker.member_id, id);
  EXPECT_EQ(cluster_.machine().Status(cluster_.now()).workers_size(), 1);
}

TEST_F(MachineMembershipTest, RestartedAggregatorKeepsMember) {
  FakeAggregator& aggregator = cluster_.AddAggregator("agg");
  cluster_.Kill(aggregator);
  cluster_.Restart(aggregator);
  ASSERT_TRUE(aggregator.received.front().has_welcome());
  EXPECT_EQ(aggregator.received.front().welcome().member_id(), "a1");
}

TEST_F(MachineMembershipTest, GoodbyeEndsTheLeaseAtOnce) {
  FakeWorker& worker = cluster_.AddWorker("a");
  v1::MemberMessage message;
  message.mutable_goodbye()->set_reason("done");
  cluster_.SendFrom(worker.connection, message);
  EXPECT_EQ(cluster_.machine().Status(cluster_.now()).workers_size(), 0);
  EXPECT_EQ(cluster_.Counter("leases_lost"), 0u);
}

TEST_F(MachineMembershipTest, MemberIdsAreNeverUsedAgain) {
  cluster_.AddWorker("a");
  v1::MemberMessage message;
  message.mutable_goodbye();
  cluster_.SendFrom(cluster_.workers()[0].connection, message);
  cluster_.RestartCoordinator();
  FakeWorker& next = cluster_.AddWorker("b");
  EXPECT_EQ(next.member_id, "w2") << "w1 was somebody else";
  EXPECT_EQ(cluster_.Counter("refused_unknown_member"), 1u) << "w1 came back after its goodbye";
}

TEST_F(MachineMembershipTest, RefusalCountersOutliveMembers) {
  FakeAggregator& aggregator = cluster_.AddAggregator("agg");
  v1::MemberMessage message;
  (*message.mutable_heartbeat()->mutable_counters())["refused_wrong_crc"] = 3;
  (*message.mutable_heartbeat()->mutable_counters())["staged_bytes"] = 1000;
  cluster_.SendFrom(aggregator.connection, message);
  EXPECT_EQ(cluster_.Counter("refused_wrong_crc"), 3u);
  EXPECT_EQ(cluster_.Counter("staged_bytes"), 0u) << "not an event of the cluster";
  cluster_.Kill(aggregator);
  cluster_.Restart(aggregator);
  EXPECT_EQ(cluster_.Counter("refused_wrong_crc"), 3u);
  cluster_.Kill(aggregator);
  cluster_.Run(absl::Seconds(20));
  EXPECT_EQ(cluster_.Counter("refused_wrong_crc"), 3u) << "the aggregator is gone, they are not";
}

TEST_F(MachineMembershipTest, ClosedStreamsAreIgnored) {
  ASSERT_TRUE(Join(cluster_.WorkerHello(Somebody("a"))).has_welcome());
  cluster_.Do(StreamClosed{connection_});
  const size_t before = cluster_.SentTo(connection_).size();
  v1::MemberMessage message;
  message.mutable_goodbye();
  cluster_.SendFrom(connection_, message);
  cluster_.SendFrom(connection_, With(cluster_.WorkerHello(Somebody("b"))));
  cluster_.Do(MessageRefused{connection_, v1::REFUSAL_OVERSIZED, ""});
  cluster_.Do(StreamClosed{connection_});
  EXPECT_EQ(cluster_.SentTo(connection_).size(), before);
  EXPECT_EQ(cluster_.machine().Status(cluster_.now()).workers_size(), 1);
}

}  // namespace
}  // namespace cadre::testing
