// What operators order, and which workers may receive a rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "coordinator/store/keys.h"
#include "tests/base/expect.h"
#include "tests/coordinator/cluster/cluster_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using ClusterWorkersTest = ClusterTest;

// ---- Cordons and drains

TEST_F(ClusterWorkersTest, CordonOfAHostIncludesItsWorkers) {
  Member& worker = JoinWorker("w");
  const Replied reply = Cordon({.request = 5, .member = "host of w"});
  EXPECT_EQ(reply.request, 5U);
  EXPECT_THAT(reply.members, ElementsAre(worker.id()));
  EXPECT_EQ(cluster_.standings().records().size(), 1U) << "the record of the host";
  EXPECT_TRUE(cluster_.standings().IsCordoned(Cluster::WorkerOf(worker)));
  cluster_.UpdateIdle();
  TakeSent();
  EXPECT_TRUE(worker.excluded);
  EXPECT_TRUE(store_.contains(StandingKey("host of w", "")));
  EXPECT_EQ(NewEvents().back(), "host of w receives no new work");
  Cordon({.request = 6, .member = "host of w", .undo = true});
  cluster_.UpdateIdle();
  TakeSent();
  EXPECT_FALSE(worker.excluded);
  EXPECT_FALSE(store_.contains(StandingKey("host of w", "")));
  EXPECT_EQ(NewEvents().back(), "host of w receives new work again");
}

TEST_F(ClusterWorkersTest, CordonByNameAndById) {
  Member& worker = JoinWorker("w");
  JoinWorker("v", "pv");
  EXPECT_THAT(Cordon({.member = "w"}).members, ElementsAre(worker.id()));
  EXPECT_TRUE(cluster_.standings().IsCordoned(Cluster::WorkerOf(worker)));
  EXPECT_THAT(Cordon({.member = "w", .undo = true}).members, ElementsAre(worker.id()));
  EXPECT_FALSE(cluster_.standings().IsCordoned(Cluster::WorkerOf(worker)));
  EXPECT_THAT(Cordon({.member = worker.id()}).members, ElementsAre(worker.id()));
  EXPECT_TRUE(cluster_.standings().IsCordoned(Cluster::WorkerOf(worker)));
  EXPECT_EQ(cluster_.standings().records().size(), 1U);
  EXPECT_THAT(Cordon({.member = "nobody"}).status,
              IsError(kNotFound, "no such worker, host or aggregator: 'nobody'"));
  EXPECT_EQ(Cordon({.member = ""}).status.code(), kNotFound);
}

TEST_F(ClusterWorkersTest, CordonedWorkerThatIsAwayIsReadmitted) {
  Member& worker = JoinWorker("w");
  Cordon({.member = "w"});
  cluster_.Remove(worker.id(), "has left");
  EXPECT_THAT(Cordon({.member = "w", .undo = true}).status, IsOk());
  EXPECT_TRUE(cluster_.standings().records().empty());
}

TEST_F(ClusterWorkersTest, CordonOfAnAggregator) {
  Member& member = JoinAggregator("a");
  EXPECT_THAT(Cordon({.member = "a"}).members, ElementsAre(member.id()));
  EXPECT_TRUE(cluster_.queue().IsCordoned("a"));
  EXPECT_TRUE(store_.contains(CordonedAggregatorKey("a")));
  EXPECT_EQ(NewEvents().back(), "aggregator a receives no new runs");
  EXPECT_FALSE(cluster_.queue().IsDraining("a"));
  cluster_.Remove(member.id(), "has left");
  const Replied undone = Cordon({.member = "a", .undo = true});
  EXPECT_THAT(undone.status, IsOk()) << "the cordon outlives its lease";
  EXPECT_THAT(undone.members, IsEmpty());
  EXPECT_FALSE(cluster_.queue().IsCordoned("a"));
  EXPECT_FALSE(store_.contains(CordonedAggregatorKey("a")));
  EXPECT_EQ(NewEvents().back(), "aggregator a receives new runs again");
  EXPECT_EQ(Cordon({.member = "a", .undo = true}).status.code(), kNotFound);
  Member& other = JoinAggregator("b");
  EXPECT_THAT(Cordon({.member = other.id()}).members, ElementsAre(other.id()));
  EXPECT_TRUE(cluster_.queue().IsCordoned("b")) << "by its id";
}

TEST_F(ClusterWorkersTest, DrainOfAnAggregator) {
  Member& member = JoinAggregator("a");
  EXPECT_THAT(Cordon({.member = "a", .drain = true, .drain_seconds = 5}).status,
              IsError(absl::StatusCode::kInvalidArgument, "'a' is an aggregator"));
  EXPECT_FALSE(cluster_.queue().AnyDraining());
  EXPECT_THAT(Cordon({.member = "a", .drain = true}).members, ElementsAre(member.id()));
  EXPECT_TRUE(cluster_.queue().IsDraining("a"));
  EXPECT_TRUE(cluster_.queue().IsCordoned("a"));
  EXPECT_EQ(NewEvents().back(), "aggregator a is drained: its shards move to others");
  Cordon({.member = "a"});
  EXPECT_TRUE(cluster_.queue().IsDraining("a")) << "a cordon does not end it";
  v1::CordonedAggregatorRecord record;
  ASSERT_TRUE(record.ParseFromString(store_.at(CordonedAggregatorKey("a"))));
  EXPECT_TRUE(record.draining());
  Cordon({.member = "a", .undo = true});
  EXPECT_FALSE(cluster_.queue().AnyDraining());
}

TEST_F(ClusterWorkersTest, DrainedProcessIsOrderedToLeave) {
  JoinWorker("w");
  TakeSent();
  cluster_.OnCordonMembers({.member = "w", .drain = true, .drain_seconds = 60});
  auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].drain().seconds(), 60);
  EXPECT_EQ(NewEvents().back(), "w is drained");
  Wait(absl::Seconds(61));
  JoinWorker("w");
  sent = TakeSent();
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(sent[1].drain().seconds(), 0.001) << "immediately; 0 would be its own limit";
  cluster_.Close(2);
  JoinWorker("w", "p2");
  EXPECT_EQ(TakeSent().size(), 1U) << "a new process stays";
  JoinAggregator("a");
  EXPECT_EQ(TakeSent().size(), 1U);
}

TEST_F(ClusterWorkersTest, DrainWithoutALimit) {
  JoinWorker("w");
  TakeSent();
  cluster_.OnCordonMembers({.member = "w", .drain = true});
  const auto sent = TakeSent();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].drain().seconds(), 0);
}

// ---- Idle workers

TEST_F(ClusterWorkersTest, IdleWorkersByFailuresThenAgeAndHost) {
  for (const char* name : {"a1", "b1", "a2", "c1"}) {
    v1::Hello hello = HelloOf(v1::ROLE_WORKER, name, name);
    hello.set_host(std::string(1, name[0]));
    Join(hello);
  }
  EXPECT_THAT(cluster_.IdleByHost(), ElementsAre("w1", "w3", "w2", "w4"));
  cluster_.standings().Doubt({"a", "a1"}, cluster_.now(), cluster_.now() + absl::Minutes(1));
  EXPECT_THAT(cluster_.IdleByHost(), ElementsAre("w2", "w3", "w4", "w1"));
}

TEST_F(ClusterWorkersTest, WorkersThatMayNotReceiveARankAreCounted) {
  EXPECT_EQ(cluster_.ExcludedWorkers(), "");
  Member& first = JoinWorker("a", "pa");
  Member& second = JoinWorker("b", "pb");
  Member& third = JoinWorker("c", "pc");
  JoinWorker("d", "pd");
  cluster_.members().Exclude(first, true, false);
  EXPECT_EQ(cluster_.ExcludedWorkers(), ", 1 is excluded (see 'cadre members')");
  cluster_.members().Exclude(second, true, false);
  cluster_.members().Exclude(third, true, false);
  EXPECT_EQ(cluster_.ExcludedWorkers(), ", 3 are excluded (see 'cadre members')");
  cluster_.members().Place(second, v1::RankSlot());
  cluster_.Close(3);
  EXPECT_EQ(cluster_.ExcludedWorkers(), ", 1 is excluded (see 'cadre members')")
      << "one has a rank, one has no stream";
}

TEST_F(ClusterWorkersTest, TrustedWorkersOfAKind) {
  const auto join = [&](const std::string& name, v1::Cluster::Device kind) -> Member& {
    v1::Hello hello = HelloOf(v1::ROLE_WORKER, name);
    hello.set_incarnation(name);
    hello.set_device_kind(kind);
    return *Join(hello);
  };
  const auto trusted = [&](v1::RunSpec::Precision precision = v1::RunSpec::FP32) {
    return cluster_.CountTrusted(v1::Cluster::CPU, precision);
  };
  join("a", v1::Cluster::CPU);
  Member& failed = join("b", v1::Cluster::CPU);
  join("c", v1::Cluster::CUDA);
  EXPECT_EQ(trusted(), 2U);
  EXPECT_EQ(trusted(v1::RunSpec::BF16), 0U);
  cluster_.standings().Fail(Cluster::WorkerOf(failed), v1::FAILURE_CAUSE_DEVICE, "lost",
                            cluster_.now());
  Wait(absl::Seconds(2));
  EXPECT_EQ(trusted(), 1U) << "it is on probation";
  v1::Hello rank = HelloOf(v1::ROLE_WORKER, "a");
  rank.set_incarnation("a");
  rank.set_device_kind(v1::Cluster::CPU);
  rank.mutable_reservation()->set_run("run");
  rank.mutable_reservation()->set_program("program");
  rank.mutable_reservation()->set_ranks(1);
  Join(rank);
  EXPECT_EQ(trusted(), 0U) << "a rank of a program";
}

TEST_F(ClusterWorkersTest, ExclusionEndsByItself) {
  Member& member = JoinWorker("w");
  cluster_.standings().Fail(Cluster::WorkerOf(member), v1::FAILURE_CAUSE_DEVICE, "lost",
                            cluster_.now());
  cluster_.UpdateIdle();
  EXPECT_TRUE(member.excluded);
  EXPECT_FALSE(member.withdrawn) << "for a second";
  EXPECT_EQ(cluster_.NextAvailable(), cluster_.now() + absl::Seconds(1));
  Wait(absl::Milliseconds(999));
  cluster_.UpdateIdle();
  EXPECT_TRUE(member.excluded);
  Wait(absl::Milliseconds(1));
  cluster_.UpdateIdle();
  EXPECT_FALSE(member.excluded);
  EXPECT_EQ(cluster_.NextAvailable(), absl::InfiniteFuture());
}

TEST_F(ClusterWorkersTest, LostHostsMayReturnForTenMinutes) {
  cluster_.NoteLost("a");
  Wait(absl::Minutes(10) - absl::Seconds(1));
  cluster_.NoteLost("b");
  EXPECT_EQ(cluster_.lost_hosts().size(), 2U);
  Wait(absl::Seconds(1));
  cluster_.NoteLost("c");
  EXPECT_EQ(cluster_.lost_hosts().size(), 2U);
  EXPECT_FALSE(cluster_.lost_hosts().contains("a"));
}

}  // namespace
}  // namespace cadre::testing
