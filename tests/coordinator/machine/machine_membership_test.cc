// Joining, leases, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/protocol.h"
#include "model/validate.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

class MachineMembershipTest : public MachineTest {
 protected:
  // A valid Hello of a worker.
  v1::Hello HelloOf(const std::string& name) {
    return cluster_.WorkerHello({.name = name, .incarnation = absl::StrCat("process of ", name)});
  }
  // Opens a stream with Hello; returns the first message of the coordinator.
  v1::CoordinatorMessage Join(const v1::Hello& hello) {
    connection_ = cluster_.Open();
    cluster_.SendFrom(connection_, hello);
    return LastSent();
  }
  v1::CoordinatorMessage LastSent() {
    const auto received = cluster_.SentTo(connection_);
    EXPECT_FALSE(received.empty());
    return received.empty() ? v1::CoordinatorMessage() : received.back();
  }
  // Expects that the last message is this refusal, that it was counted and that the stream has
  // ended.
  void ExpectRefused(v1::Refusal refusal, const std::string& counter) {
    const v1::CoordinatorMessage message = LastSent();
    ASSERT_TRUE(message.has_refused()) << message.ShortDebugString();
    EXPECT_EQ(message.refused().refusal(), refusal);
    EXPECT_FALSE(message.refused().reason().empty());
    EXPECT_FALSE(cluster_.IsOpen(connection_));
    EXPECT_EQ(cluster_.Counter(counter), 1u);
  }

  ConnectionId connection_ = 0;
};

TEST_F(MachineMembershipTest, WelcomeGrantsLease) {
  const v1::CoordinatorMessage message = Join(HelloOf("a"));
  ASSERT_TRUE(message.has_welcome());
  EXPECT_EQ(message.welcome().member_id(), "w1");
  EXPECT_EQ(message.welcome().lease_ms(), 10'000u);
  EXPECT_EQ(message.welcome().heartbeat_ms(), 2'000u);
}

struct InvalidHello {
  const char* label;
  v1::Refusal refusal;
  const char* counter;
  void (*change)(v1::Hello&);
};
class MachineHelloTest : public MachineMembershipTest,
                         public ::testing::WithParamInterface<InvalidHello> {};

InvalidHello Malformed(const char* label, void (*change)(v1::Hello&)) {
  return {label, v1::REFUSAL_MALFORMED, "refused_malformed", change};
}

v1::Reservation& Reserve(v1::Hello& hello, uint32_t ranks, uint32_t rank) {
  v1::Reservation& reservation = *hello.mutable_reservation();
  reservation.set_run("run");
  reservation.set_program("program");
  reservation.set_ranks(ranks);
  reservation.set_rank(rank);
  return reservation;
}

TEST_F(MachineMembershipTest, LastOfTheMostRanksJoins) {
  v1::Hello hello = HelloOf("a");
  Reserve(hello, kMaxRanksPerGroup, kMaxRanksPerGroup - 1);
  Join(hello);
  EXPECT_EQ(cluster_.Status().workers_size(), 1);
}

TEST_P(MachineHelloTest, IsRefused) {
  v1::Hello hello = HelloOf("a");
  GetParam().change(hello);
  Join(hello);
  ExpectRefused(GetParam().refusal, GetParam().counter);
  EXPECT_EQ(cluster_.Status().workers_size(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, MachineHelloTest,
    ::testing::Values(
        InvalidHello{"OtherProtocol", v1::REFUSAL_PROTOCOL, "refused_protocol",
                     [](v1::Hello& h) { h.set_protocol(kProtocol + 2); }},
        InvalidHello{"NoRole", v1::REFUSAL_MALFORMED, "refused_malformed",
                     [](v1::Hello& h) { h.clear_role(); }},
        Malformed("NoName", [](v1::Hello& h) { h.clear_name(); }),
        Malformed("NoIncarnation", [](v1::Hello& h) { h.clear_incarnation(); }),
        Malformed("NoAddress", [](v1::Hello& h) { h.clear_address(); }),
        Malformed("ReservationWithoutRun", [](v1::Hello& h) { Reserve(h, 2, 0).clear_run(); }),
        Malformed("ReservationWithoutProgram",
                  [](v1::Hello& h) { Reserve(h, 2, 0).clear_program(); }),
        Malformed("ReservationWithoutRanks", [](v1::Hello& h) { Reserve(h, 0, 0); }),
        Malformed("ReservationOfARankTooMany", [](v1::Hello& h) { Reserve(h, 2, 2); }),
        Malformed("ReservationOfTooManyRanks",
                  [](v1::Hello& h) { Reserve(h, kMaxRanksPerGroup + 1, 0); }),
        InvalidHello{"UnknownMember", v1::REFUSAL_UNKNOWN_MEMBER, "refused_unknown_member",
                     [](v1::Hello& h) { h.set_member_id("w99"); }}),
    [](const auto& info) { return info.param.label; });

TEST_F(MachineMembershipTest, IdBelongsToProcess) {
  v1::Hello hello = HelloOf("a");
  hello.set_member_id(Join(hello).welcome().member_id());
  hello.set_incarnation("another");
  Join(hello);
  ExpectRefused(v1::REFUSAL_UNKNOWN_MEMBER, "refused_unknown_member");
}

TEST_F(MachineMembershipTest, HelloComesFirstAndOnce) {
  connection_ = cluster_.Open();
  cluster_.SendFrom(connection_, v1::Heartbeat());
  ExpectRefused(v1::REFUSAL_OUT_OF_ORDER, "refused_out_of_order");
  ASSERT_TRUE(Join(HelloOf("a")).has_welcome());
  cluster_.SendFrom(connection_, HelloOf("a"));
  EXPECT_EQ(LastSent().refused().refusal(), v1::REFUSAL_OUT_OF_ORDER);
  EXPECT_EQ(cluster_.Counter("refused_out_of_order"), 2u);
  EXPECT_FALSE(cluster_.IsOpen(connection_));
}

TEST_F(MachineMembershipTest, OversizedMessageKeepsLease) {
  ASSERT_TRUE(Join(HelloOf("a")).has_welcome());
  cluster_.Do(MessageRefused{connection_, v1::REFUSAL_OVERSIZED, "too large"});
  ExpectRefused(v1::REFUSAL_OVERSIZED, "refused_oversized");
  ASSERT_EQ(cluster_.Status().workers_size(), 1);
  EXPECT_FALSE(cluster_.Status().workers(0).connected());
}

TEST_F(MachineMembershipTest, MessageOfOtherRoleIsRefused) {
  ASSERT_TRUE(Join(HelloOf("a")).has_welcome());
  cluster_.SendFrom(connection_, v1::Applied());
  ExpectRefused(v1::REFUSAL_MALFORMED, "refused_malformed");
  cluster_.Send(cluster_.AddAggregator("agg"), v1::Prepared());
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 2u);
  ASSERT_TRUE(Join(HelloOf("b")).has_welcome());
  cluster_.SendFrom(connection_, v1::MemberMessage());
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 3u) << "the message has no body";
}

TEST_F(MachineMembershipTest, SilentMemberIsDropped) {
  ASSERT_TRUE(Join(HelloOf("a")).has_welcome());
  cluster_.Run(absl::Seconds(9));
  EXPECT_EQ(cluster_.Status().workers_size(), 1);
  cluster_.Run(absl::Seconds(1));
  EXPECT_EQ(cluster_.Status().workers_size(), 0);
  EXPECT_EQ(cluster_.Counter("leases_lost"), 1u);
  EXPECT_FALSE(cluster_.IsOpen(connection_));
}

TEST_F(MachineMembershipTest, OnlyTickEndsLease) {
  ASSERT_TRUE(Join(HelloOf("a")).has_welcome());
  const absl::Time late = cluster_.now() + absl::Minutes(1);
  MessageReceived heartbeat{.connection = connection_};
  heartbeat.message.mutable_heartbeat();
  HandleOne(cluster_.machine(), heartbeat, late);
  HandleOne(cluster_.machine(), Tick{}, late);
  EXPECT_EQ(cluster_.machine().Status(late).workers_size(), 1);
}

TEST_F(MachineMembershipTest, StreamWithoutHelloIsEnded) {
  connection_ = cluster_.Open();
  cluster_.Run(absl::Seconds(11));
  EXPECT_FALSE(cluster_.IsOpen(connection_));
}

TEST_F(MachineMembershipTest, ReconnectWithinLeaseKeepsId) {
  FakeWorker& worker = cluster_.AddWorker("a");
  const std::string id = worker.member_id;
  cluster_.Reconnect(worker);
  EXPECT_EQ(worker.member_id, id);
  worker.member_id.clear();  // Welcome was lost.
  cluster_.Reconnect(worker);
  EXPECT_EQ(worker.member_id, id);
  EXPECT_EQ(cluster_.Status().workers_size(), 1);
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
  EXPECT_EQ(cluster_.Status().workers_size(), 1);
}

TEST_F(MachineMembershipTest, RestartedAggregatorKeepsMember) {
  FakeAggregator& aggregator = cluster_.AddAggregator("agg");
  cluster_.Kill(aggregator);
  cluster_.Restart(aggregator);
  ASSERT_TRUE(aggregator.received.front().has_welcome());
  EXPECT_EQ(aggregator.received.front().welcome().member_id(), "a1");
}

TEST_F(MachineMembershipTest, GoodbyeEndsLease) {
  cluster_.Send(cluster_.AddWorker("a"), v1::Goodbye());
  EXPECT_EQ(cluster_.Status().workers_size(), 0);
  EXPECT_EQ(cluster_.Counter("leases_lost"), 0u);
  // Ids are not reused, not even after a restart of the coordinator.
  cluster_.RestartCoordinator();
  EXPECT_EQ(cluster_.AddWorker("b").member_id, "w2");
  EXPECT_EQ(cluster_.Counter("refused_unknown_member"), 1u) << "w1 reconnected after its Goodbye";
}

TEST_F(MachineMembershipTest, RefusalCountersOutliveMembers) {
  FakeAggregator& aggregator = cluster_.AddAggregator("agg");
  v1::Heartbeat heartbeat;
  (*heartbeat.mutable_counters())["refused_wrong_crc"] = 3;
  (*heartbeat.mutable_counters())["staged_bytes"] = 1000;
  cluster_.Send(aggregator, heartbeat);
  EXPECT_EQ(cluster_.Counter("refused_wrong_crc"), 3u);
  EXPECT_EQ(cluster_.Counter("staged_bytes"), 0u) << "only refusals are summed over the cluster";
  cluster_.Kill(aggregator);
  cluster_.Restart(aggregator);
  EXPECT_EQ(cluster_.Counter("refused_wrong_crc"), 3u);
  cluster_.Kill(aggregator);
  cluster_.Run(absl::Seconds(20));
  EXPECT_EQ(cluster_.Counter("refused_wrong_crc"), 3u)
      << "the counters remain when the member is lost";
}

// They would remain in the store forever.
TEST_F(MachineMembershipTest, CountersOfUnknownRefusalsAreIgnored) {
  FakeAggregator& aggregator = cluster_.AddAggregator("agg");
  v1::Heartbeat heartbeat;
  (*heartbeat.mutable_counters())["refused_anything"] = 3;
  (*heartbeat.mutable_counters())[std::string(64, 'x')] = 3;
  (*heartbeat.mutable_counters())["staged_bytes"] = 1000;
  cluster_.Send(aggregator, heartbeat);
  const v1::StatusReply status = cluster_.Status();
  ASSERT_EQ(status.aggregators_size(), 1);
  EXPECT_EQ(status.aggregators(0).member().counters_size(), 1);
  cluster_.Kill(aggregator);
  cluster_.Run(absl::Seconds(20));
  EXPECT_EQ(cluster_.Status().counters().count("refused_anything"), 0u);
}

TEST_F(MachineMembershipTest, NumbersOfAMemberAreBounded) {
  FakeAggregator& aggregator = cluster_.AddAggregator("agg");
  v1::Heartbeat heartbeat;
  for (int i = 0; i < 300; ++i) {
    (*heartbeat.mutable_counters())["counter_" + std::to_string(i)] = 1;
    v1::DelayedOrder& delayed = *heartbeat.add_delayed_orders();
    delayed.set_run("run-" + std::to_string(i));
    delayed.set_order("apply");
  }
  cluster_.Send(aggregator, heartbeat);
  EXPECT_EQ(cluster_.Status().aggregators(0).member().counters_size(), 256);
  EXPECT_EQ(cluster_.Status().aggregators(0).delayed_orders_size(), 64);
  FakeWorker& worker = cluster_.AddWorker("w");
  cluster_.Send(worker, heartbeat);
  EXPECT_EQ(cluster_.Status().workers(0).counters_size(), 256);
}

TEST_F(MachineMembershipTest, ClosedStreamsAreIgnored) {
  ASSERT_TRUE(Join(HelloOf("a")).has_welcome());
  cluster_.Do(StreamClosed{connection_});
  const size_t before = cluster_.SentTo(connection_).size();
  cluster_.SendFrom(connection_, v1::Goodbye());
  cluster_.SendFrom(connection_, HelloOf("b"));
  cluster_.Do(MessageRefused{connection_, v1::REFUSAL_OVERSIZED, ""});
  cluster_.Do(StreamClosed{connection_});
  EXPECT_EQ(cluster_.SentTo(connection_).size(), before);
  EXPECT_EQ(cluster_.Status().workers_size(), 1);
}

}  // namespace
}  // namespace cadre::testing
