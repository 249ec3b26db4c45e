// What the cluster answers to members, and what it keeps of their reports.
#include "coordinator/cluster/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/store/keys.h"
#include "tests/base/expect.h"
#include "tests/coordinator/cluster/cluster_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- Hello

TEST_F(ClusterTest, MissingFieldsOfHelloAreNamed) {
  const struct {
    std::string field;
    std::function<void(v1::Hello&)> change;
  } cases[] = {
      {"role", [](v1::Hello& h) { h.clear_role(); }},
      {"name", [](v1::Hello& h) { h.clear_name(); }},
      {"incarnation", [](v1::Hello& h) { h.clear_incarnation(); }},
      {"address", [](v1::Hello& h) { h.clear_address(); }},
      {"reservation.run", [](v1::Hello& h) { h.mutable_reservation()->clear_run(); }},
      {"reservation.program", [](v1::Hello& h) { h.mutable_reservation()->clear_program(); }},
      {"reservation.ranks", [](v1::Hello& h) { h.mutable_reservation()->set_ranks(0); }},
      {"reservation.ranks", [](v1::Hello& h) { h.mutable_reservation()->set_rank(2); }},
      {"reservation.ranks", [](v1::Hello& h) { h.mutable_reservation()->set_ranks(1 << 30); }},
  };
  v1::Hello hello = HelloOf(v1::ROLE_WORKER, "w");
  v1::Reservation& reservation = *hello.mutable_reservation();
  reservation.set_run("run");
  reservation.set_program("program");
  reservation.set_ranks(2);
  reservation.set_rank(1);
  for (const auto& [field, change] : cases) {
    v1::Hello lacking = hello;
    change(lacking);
    EXPECT_EQ(RefusalOf(lacking), "Hello lacks the field " + field);
  }
  EXPECT_NE(Join(hello), nullptr);
}

TEST_F(ClusterTest, OtherProtocolIsRefused) {
  v1::Hello hello = HelloOf(v1::ROLE_WORKER, "w");
  hello.set_protocol(kProtocol + 2);
  EXPECT_THAT(RefusalOf(hello), HasSubstr("only adjacent protocols work together"));
  EXPECT_EQ(Counter("refused_protocol"), 1U);
}

TEST_F(ClusterTest, WorkerIsItsProcess) {
  Member& first = JoinWorker("w");
  EXPECT_FALSE(known_);
  const std::string id = first.id();
  EXPECT_EQ(id[0], 'w');
  const auto welcome = TakeSent();
  ASSERT_EQ(welcome.size(), 1U);
  EXPECT_EQ(welcome[0].welcome().DebugString(),
            Parse<v1::Welcome>(
                absl::StrCat("member_id: '", id, "' lease_ms: 10000 ", "heartbeat_ms: 2000"))
                .DebugString());
  EXPECT_TRUE(store_.contains(MemberKey(id)));
  // The same process opens another stream, before and after it knows its id.
  EXPECT_EQ(&JoinWorker("w"), &first);
  EXPECT_TRUE(known_);
  TakeSent();
  EXPECT_THAT(ended_, ElementsAre(1)) << "the earlier stream";
  v1::Hello hello = HelloOf(v1::ROLE_WORKER, "w");
  hello.set_member_id(id);
  hello.set_address("elsewhere:1");
  EXPECT_EQ(Join(hello), &first);
  EXPECT_TRUE(known_);
  EXPECT_EQ(first.record.address(), "elsewhere:1");
  // Another process with its id, or one that is not registered.
  hello.set_incarnation("p2");
  EXPECT_THAT(RefusalOf(hello), HasSubstr("is not registered: its lease has expired"));
  hello.set_member_id("w99");
  EXPECT_THAT(RefusalOf(hello), HasSubstr("worker w99 is not registered"));
  EXPECT_EQ(Counter("refused_unknown_member"), 2U);
  const std::string aggregator = JoinAggregator("a").id();
  hello.set_member_id(aggregator);
  hello.set_incarnation("p1");
  EXPECT_THAT(RefusalOf(hello), HasSubstr("is not registered")) << "it is no worker";
}

TEST_F(ClusterTest, RestartedWorkerReplacesItsEarlierProcess) {
  const std::string id = JoinWorker("w").id();
  JoinWorker("w", "p2");
  EXPECT_THAT(replaced_, IsEmpty()) << "the other process is connected";
  cluster_.Close(1);
  EXPECT_THAT(cluster_.TakeClosed(), ElementsAre(id));
  JoinWorker("w", "p3");
  EXPECT_THAT(replaced_, ElementsAre(id));
  EXPECT_FALSE(known_);
}

TEST_F(ClusterTest, AggregatorIsItsName) {
  Member& first = JoinAggregator("a");
  EXPECT_EQ(first.id()[0], 'a');
  EXPECT_FALSE(known_);
  NewEvents();
  EXPECT_EQ(&JoinAggregator("a"), &first);
  EXPECT_TRUE(known_);
  EXPECT_THAT(NewEvents(), IsEmpty()) << "the same process";
  EXPECT_EQ(&JoinAggregator("a", "p2"), &first);
  EXPECT_TRUE(known_);
  EXPECT_THAT(NewEvents(), ElementsAre("aggregator a on host of a has joined again"));
  JoinWorker("w");
  EXPECT_THAT(NewEvents(), ElementsAre("worker w on host of w has joined"));
}

TEST_F(ClusterTest, RecordIsWrittenWhenItChanges) {
  v1::Hello hello = HelloOf(v1::ROLE_WORKER, "w");
  hello.set_cores(4);
  hello.set_memory_bytes(5);
  hello.set_device("a device");
  hello.set_device_kind(v1::Cluster::CUDA);
  hello.add_precisions(v1::RunSpec::BF16);
  Member& member = *Join(hello);
  TakeSent();
  EXPECT_EQ(member.cores, 4U);
  EXPECT_EQ(member.memory_bytes, 5U);
  const std::string key = MemberKey(member.id());
  v1::MemberRecord stored;
  ASSERT_TRUE(stored.ParseFromString(store_.at(key)));
  EXPECT_EQ(stored.DebugString(), Parse<v1::MemberRecord>(absl::StrCat(R"(
      role: ROLE_WORKER name: "w" incarnation: "p1" address: "w:1" host: "host of w"
      device: "a device" device_kind: CUDA precisions: BF16 member_id: ")",
                                                                       member.id(), "\""))
                                      .DebugString());
  store_.clear();
  Join(hello);
  TakeSent();
  EXPECT_FALSE(store_.contains(key)) << "nothing has changed";
  hello.mutable_reservation()->set_run("run");
  hello.mutable_reservation()->set_program("program");
  hello.mutable_reservation()->set_ranks(1);
  Join(hello);
  TakeSent();
  EXPECT_TRUE(store_.contains(key));
  EXPECT_TRUE(member.record.has_reservation());
  hello.clear_reservation();
  Join(hello);
  EXPECT_FALSE(member.record.has_reservation());
}

TEST_F(ClusterTest, EndOfAProgramIsStoredOnce) {
  Member& member = JoinWorker("w");
  TakeSent();
  const std::string key = MemberKey(member.id());
  store_.clear();
  cluster_.SetProgramEnded(member, "");
  TakeSent();
  EXPECT_FALSE(store_.contains(key));
  cluster_.SetProgramEnded(member, "incomplete");
  TakeSent();
  EXPECT_TRUE(store_.contains(key));
  EXPECT_EQ(member.record.program_ended(), "incomplete");
}

// ---- Heartbeats

TEST_F(ClusterTest, CountersOfAHeartbeat) {
  Member& member = JoinWorker("w");
  v1::Heartbeat heartbeat;
  (*heartbeat.mutable_counters())["refused_malformed"] = 3;
  (*heartbeat.mutable_counters())["refused_by_nobody"] = 4;
  (*heartbeat.mutable_counters())["not a name!"] = 5;
  (*heartbeat.mutable_counters())["steps"] = 6;
  cluster_.OnHeartbeat(member, heartbeat);
  EXPECT_EQ(member.counters.size(), 2U);
  EXPECT_EQ(member.counters.at("refused_malformed"), 3U);
  EXPECT_EQ(member.counters.at("steps"), 6U);
  heartbeat.clear_counters();
  for (int i = 0; i < 300; ++i) (*heartbeat.mutable_counters())[absl::StrCat("counter_", i)] = i;
  cluster_.OnHeartbeat(member, heartbeat);
  EXPECT_EQ(member.counters.size(), 256U) << "those of the last heartbeat";
}

// Refusals that a process has counted remain when it has gone.
TEST_F(ClusterTest, RefusalsOfEarlierProcessesAreKept) {
  Member& member = JoinAggregator("a");
  v1::Heartbeat heartbeat;
  (*heartbeat.mutable_counters())["refused_malformed"] = 3;
  (*heartbeat.mutable_counters())["disk_free_bytes"] = 4;
  cluster_.OnHeartbeat(member, heartbeat);
  JoinAggregator("a");
  EXPECT_EQ(Counter("refused_malformed"), 0U) << "the same process goes on counting";
  JoinAggregator("a", "p2");
  EXPECT_EQ(Counter("refused_malformed"), 3U);
  EXPECT_EQ(Counter("disk_free_bytes"), 0U);
  EXPECT_TRUE(member.counters.empty());
  cluster_.OnHeartbeat(member, heartbeat);
  const auto removed = cluster_.Remove(member.id(), "has left");
  ASSERT_TRUE(removed.has_value());
  EXPECT_EQ(Counter("refused_malformed"), 6U);
  EXPECT_FALSE(cluster_.Remove("a99", "has left").has_value());
}

TEST_F(ClusterTest, StepTimesOfAHeartbeat) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Member& member = JoinWorker("w");
  const auto report = [&](double step, double wait) {
    v1::Heartbeat heartbeat;
    heartbeat.set_step_seconds(step);
    heartbeat.set_wait_seconds(wait);
    cluster_.OnHeartbeat(member, heartbeat);
  };
  report(2, 3);
  EXPECT_EQ(member.step_seconds, 2);
  EXPECT_EQ(member.wait_seconds, 2) << "no more than the step";
  for (const auto& [step, wait] :
       {std::pair(0.0, 1.0), {kInfinity, 1.0}, {5.0, -1.0}, {5.0, kInfinity}, {-1.0, 0.0}}) {
    report(step, wait);
    EXPECT_EQ(member.step_seconds, 2);
  }
  report(5, 0);
  EXPECT_EQ(member.step_seconds, 5);
  EXPECT_EQ(member.wait_seconds, 0);
}

TEST_F(ClusterTest, ListsOfAHeartbeatAreLimited) {
  Member& worker = JoinWorker("w");
  Member& aggregator = JoinAggregator("a");
  v1::Heartbeat heartbeat;
  for (int i = 0; i < 20; ++i) heartbeat.add_fallbacks();
  for (int i = 0; i < 70; ++i) heartbeat.add_delayed_orders()->set_order(absl::StrCat("order ", i));
  cluster_.OnHeartbeat(worker, heartbeat);
  cluster_.OnHeartbeat(aggregator, heartbeat);
  EXPECT_EQ(worker.fallbacks.size(), 16U);
  EXPECT_THAT(worker.delayed_orders, IsEmpty()) << "only aggregators receive orders";
  EXPECT_EQ(aggregator.delayed_orders.size(), 64U);
}

TEST_F(ClusterTest, DelayedOrderIsReportedOnce) {
  Member& member = JoinAggregator("a");
  NewEvents();
  v1::Heartbeat heartbeat;
  v1::DelayedOrder& order = *heartbeat.add_delayed_orders();
  order.set_run("run-1");
  order.set_order("apply");
  order.set_seconds(31.7);
  cluster_.OnHeartbeat(member, heartbeat);
  EXPECT_THAT(NewEvents(), ElementsAre("aggregator a has taken 31s to apply the round, and has not "
                                       "finished: its disk is slow or does not answer"));
  cluster_.OnHeartbeat(member, heartbeat);
  EXPECT_THAT(NewEvents(), IsEmpty());
  order.set_run("run-2");
  cluster_.OnHeartbeat(member, heartbeat);
  EXPECT_EQ(NewEvents().size(), 1U) << "that of another run";
  order.set_order("close_run");
  cluster_.OnHeartbeat(member, heartbeat);
  EXPECT_EQ(NewEvents().size(), 1U) << "another order";
  cluster_.OnHeartbeat(member, {});
  cluster_.OnHeartbeat(member, heartbeat);
  EXPECT_EQ(NewEvents().size(), 1U) << "it was carried out meanwhile";
}

TEST_F(ClusterTest, DelaysInWords) {
  Member member;
  member.record.set_name("a");
  v1::DelayedOrder delayed;
  delayed.set_seconds(61);
  delayed.set_reason("no space");
  for (const auto& [order, what] : {std::pair("open_run", "open its shard"),
                                    {"apply", "apply the round"},
                                    {"close_run", "close the run"},
                                    {"delete_run", "remove the files of the run"},
                                    {"copy", "carry out copy"}}) {
    delayed.set_order(order);
    EXPECT_EQ(Cluster::DelayText(member, delayed),
              absl::StrCat("aggregator a cannot ", what, ", for 1m1s: no space; it tries again"));
  }
  delayed.set_seconds(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(Cluster::DelayText(member, delayed), HasSubstr("for 0: no space"));
}

TEST_F(ClusterTest, HungThreadExcludesItsWorkerUntilItReacts) {
  Member& member = JoinWorker("w");
  v1::Heartbeat heartbeat;
  heartbeat.set_activity(v1::ACTIVITY_TRAINING);
  heartbeat.set_progress(7);
  const auto hang = [&] {
    member.hung = {.since = cluster_.now(), .progress = 7};
    cluster_.UpdateIdle(member);
  };
  hang();
  EXPECT_TRUE(member.excluded);
  EXPECT_TRUE(member.withdrawn);
  Wait(absl::Milliseconds(9999));
  cluster_.OnHeartbeat(member, heartbeat);
  EXPECT_EQ(cluster_.standings().records().size(), 0U);
  Wait(absl::Milliseconds(1));
  cluster_.OnHeartbeat(member, heartbeat);
  cluster_.OnHeartbeat(member, heartbeat);
  ASSERT_EQ(cluster_.standings().records().size(), 1U);
  const v1::FailureRecord& failed = cluster_.standings().records().begin()->second.failed();
  EXPECT_EQ(failed.failures(), 1U) << "recorded once";
  EXPECT_EQ(failed.cause(), v1::FAILURE_CAUSE_STALLED);
  heartbeat.set_progress(8);
  cluster_.OnHeartbeat(member, heartbeat);
  EXPECT_FALSE(member.hung.has_value());
  EXPECT_TRUE(member.excluded) << "because of the failure";
  cluster_.standings().Succeed(Cluster::WorkerOf(member));
  hang();
  heartbeat.set_progress(7);
  heartbeat.set_activity(v1::ACTIVITY_UNSPECIFIED);
  cluster_.OnHeartbeat(member, heartbeat);
  EXPECT_FALSE(member.excluded);
}

// ---- Refusals and messages

TEST_F(ClusterTest, RefusalEndsTheStream) {
  Member& member = JoinWorker("w");
  TakeSent();
  NewEvents();
  cluster_.Refuse(1, v1::REFUSAL_MALFORMED, "no step");
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].refused().refusal(), v1::REFUSAL_MALFORMED);
  EXPECT_EQ(sent[0].refused().reason(), "no step");
  EXPECT_THAT(ended_, ElementsAre(1));
  EXPECT_THAT(cluster_.TakeClosed(), ElementsAre(member.id()));
  const auto refused = cluster_.TakeRefused();
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].reason, "no step");
  EXPECT_THAT(NewEvents(), ElementsAre("a message of w on host of w was refused: no step"));
  cluster_.Refuse(1, v1::REFUSAL_MALFORMED, "no step");
  EXPECT_EQ(Counter("refused_malformed"), 1U) << "the stream has ended";
  JoinWorker("w");
  cluster_.Refuse(2, v1::REFUSAL_MALFORMED, "no step");
  EXPECT_THAT(NewEvents(), IsEmpty()) << "repeated";
  EXPECT_EQ(Counter("refused_malformed"), 2U);
}

TEST_F(ClusterTest, EventOfAMemberNamesItsGroup) {
  Member& member = JoinWorker("w");
  v1::RankSlot place;
  place.set_run("run-1");
  place.set_group(3);
  cluster_.members().Place(member, place);
  cluster_.Remove(member.id(), "has left");
  const v1::EventsReply reply = cluster_.event_log().Read({});
  const v1::ClusterEvent& event = reply.events(reply.events_size() - 1);
  EXPECT_EQ(event.kind(), v1::EVENT_KIND_MEMBER_LEFT);
  EXPECT_EQ(event.run(), "run-1");
  EXPECT_EQ(event.group(), 3U);
  EXPECT_EQ(event.member(), "w");
  EXPECT_EQ(event.text(), "worker w has left");
}

TEST_F(ClusterTest, RemovedMemberIsForgotten) {
  Member& member = JoinWorker("w");
  const std::string id = member.id();
  TakeSent();
  ASSERT_TRUE(store_.contains(MemberKey(id)));
  cluster_.Remove(id, "has left");
  TakeSent();
  EXPECT_THAT(ended_, ElementsAre(1));
  EXPECT_FALSE(store_.contains(MemberKey(id)));
  EXPECT_EQ(cluster_.members().Find(id), nullptr);
  const std::string away = JoinWorker("v").id();
  TakeSent();
  cluster_.Close(2);
  cluster_.Remove(away, "has left");
  TakeSent();
  EXPECT_THAT(ended_, IsEmpty()) << "it has no stream";
}

TEST_F(ClusterTest, ReleaseTellsWhetherTheRunHasEnded) {
  const std::string id = JoinWorker("w").id();
  TakeSent();
  for (const auto& [state, done, ended] : {std::tuple(v1::RUN_STATE_RUNNING, false, false),
                                           {v1::RUN_STATE_PARKED, false, false},
                                           {v1::RUN_STATE_DONE, true, true},
                                           {v1::RUN_STATE_FAILED, false, true},
                                           {v1::RUN_STATE_STOPPED, false, true}}) {
    cluster_.SendRelease(id, {}, "a reason", state);
    const auto sent = TakeSent();
    ASSERT_EQ(sent.size(), 1U);
    EXPECT_EQ(sent[0].release().run_done(), done) << state;
    EXPECT_EQ(sent[0].release().run_ended(), ended) << state;
    EXPECT_EQ(sent[0].release().reason(), "a reason");
  }
  cluster_.Close(1);
  cluster_.SendRelease(id, {}, "a reason", v1::RUN_STATE_DONE);
  cluster_.SendRelease("w99", {}, "a reason", v1::RUN_STATE_DONE);
  EXPECT_THAT(TakeSent(), IsEmpty());
}

}  // namespace
}  // namespace cadre::testing
