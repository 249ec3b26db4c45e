// The order of the runs, what they wait for, and when they are expected to start.
#include "coordinator/cluster/run_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr auto kCpu = v1::Cluster::CPU;
constexpr auto kCuda = v1::Cluster::CUDA;
const absl::Time kNow = absl::FromUnixSeconds(1000);

class RunQueueTest : public ::testing::Test {
 protected:
  // Adds a connected worker, which holds a rank of the run unless that is empty.
  void AddWorker(const std::string& run, v1::Cluster::Device kind = kCpu) {
    const std::string name = absl::StrCat("w", ++workers_);
    v1::MemberRecord record;
    record.set_member_id(name);
    record.set_role(v1::ROLE_WORKER);
    record.set_name(name);
    record.set_incarnation(name);
    record.set_host("host");
    record.set_device_kind(kind);
    Member& member = members_.Add(record, kNow);
    members_.Attach(member, workers_, kNow);
    if (run.empty()) return;
    v1::RankSlot place;
    place.set_run(run);
    members_.Place(member, place);
  }
  // A run that waits for `slots` groups of `ranks` workers.
  static RunQueue::Run Waiting(const std::string& id, size_t slots, uint32_t ranks) {
    return {.id = id, .ranks = ranks, .slots = slots};
  }

  ConnectionId workers_ = 0;
  Membership members_{absl::Seconds(10)};
  RunQueue queue_{members_};
};

TEST_F(RunQueueTest, PriorityThenAge) {
  queue_.Set(1, {.id = "run-1", .priority = 0});
  queue_.Set(2, {.id = "run-2", .priority = 5});
  queue_.Set(3, {.id = "run-3", .priority = -1});
  queue_.Set(4, {.id = "run-4", .priority = 5});
  EXPECT_THAT(queue_.InOrder({1, 2, 3, 4}), ElementsAre(2, 4, 1, 3));
  queue_.Set(4, {.id = "run-4", .priority = 6});
  EXPECT_THAT(queue_.InOrder({1, 2, 3, 4}), ElementsAre(4, 2, 1, 3));
  EXPECT_THAT(queue_.InOrder({3, 2}), ElementsAre(2, 3));
  queue_.Set(5, {.id = "run-5", .priority = 0});
  queue_.Erase(1);
  EXPECT_THAT(queue_.InOrder({1, 2, 3, 4, 5}), ElementsAre(4, 2, 1, 5, 3)) << "run 1 has ended";
}

TEST_F(RunQueueTest, DemandOfARunAndOfThoseBefore) {
  queue_.Set(1, Waiting("run-1", 2, 3));
  queue_.Set(2, Waiting("run-2", 1, 4));
  queue_.Set(3, Waiting("run-3", 1, 5));
  EXPECT_EQ(queue_.DemandUpTo(2, kCpu), 10U);
  EXPECT_EQ(queue_.DemandBefore(2, kCpu), 6U);
  EXPECT_EQ(queue_.DemandBefore(1, kCpu), 0U);
  EXPECT_EQ(queue_.FirstBefore(3, kCpu), "run-1");
  EXPECT_EQ(queue_.FirstBefore(1, kCpu), "");
  EXPECT_TRUE(queue_.AnyDemandUpTo(1));
  queue_.Set(1, Waiting("run-1", 0, 3));
  EXPECT_FALSE(queue_.AnyDemandUpTo(1));
  EXPECT_TRUE(queue_.AnyDemandUpTo(2));
  EXPECT_EQ(queue_.FirstBefore(3, kCpu), "run-2");
  queue_.Erase(2);
  EXPECT_EQ(queue_.DemandUpTo(3, kCpu), 5U);
  queue_.Erase(3);
  EXPECT_FALSE(queue_.AnyDemandUpTo(3));
}

TEST_F(RunQueueTest, DemandForAnotherDeviceDoesNotCount) {
  queue_.Set(1, {.id = "run-1", .device = kCuda, .ranks = 2, .slots = 1});
  queue_.Set(2, {.id = "run-2", .device = kCpu, .ranks = 3, .slots = 1});
  queue_.Set(3, {.id = "run-3", .ranks = 4, .slots = 1});
  EXPECT_EQ(queue_.DemandUpTo(3, kCuda), 6U);
  EXPECT_EQ(queue_.DemandUpTo(3, kCpu), 7U);
  EXPECT_EQ(queue_.FirstBefore(3, kCpu), "run-2");
}

TEST_F(RunQueueTest, WorkersOfBlockedRuns) {
  for (const char* run : {"run-1", "run-2", "run-2", "run-3", ""}) AddWorker(run);
  AddWorker("run-2", kCuda);
  queue_.Set(1, {.id = "run-1"});
  queue_.Set(2, {.id = "run-2", .lacks = 1});
  queue_.Set(3, {.id = "run-3", .lacks = 1});
  queue_.Set(4, {.id = "run-4", .lacks = 1});
  const RunQueue::Blocked others = queue_.HeldByBlocked(4, kCpu);
  EXPECT_EQ(others.workers, 3U);
  EXPECT_EQ(others.first, "run-2");
  EXPECT_EQ(queue_.HeldByBlocked(2, kCpu).workers, 1U);
  EXPECT_EQ(queue_.HeldByBlocked(2, kCpu).first, "run-3");
  EXPECT_EQ(queue_.HeldByBlocked(4, kCuda).workers, 1U);
  queue_.Set(2, {.id = "run-2"});
  queue_.Set(3, {.id = "run-3"});
  EXPECT_EQ(queue_.HeldByBlocked(1, kCpu).workers, 0U);
  EXPECT_EQ(queue_.HeldByBlocked(1, kCpu).first, "") << "run-4 holds none";
}

TEST_F(RunQueueTest, LaterOfBlockedRunsGivesUpItsWorkers) {
  for (const char* run : {"run-1", "run-2", "run-3", "run-3"}) AddWorker(run);
  const auto blocked = [](const std::string& id, size_t lacks, absl::Duration for_time) {
    return RunQueue::Run{.id = id, .lacks = lacks, .blocked_since = kNow - for_time};
  };
  queue_.Set(1, blocked("run-1", 2, kMaxBlocked));
  queue_.Set(2, blocked("run-2", 1, kMaxBlocked));
  queue_.Set(3, blocked("run-3", 1, kMaxBlocked - absl::Seconds(1)));
  EXPECT_THAT(queue_.Givers(kNow), IsEmpty()) << "two workers of the third run are enough";
  EXPECT_EQ(queue_.BlockedUntil(3), kNow + absl::Seconds(1));
  EXPECT_THAT(queue_.Givers(kNow + absl::Seconds(1)), ElementsAre(3));
  EXPECT_EQ(queue_.TakerFrom(3, kNow + absl::Seconds(1)), "run-1");
  // A later time does not count while it is blocked.
  queue_.Set(3, blocked("run-3", 1, absl::ZeroDuration()));
  EXPECT_EQ(queue_.BlockedUntil(3), kNow + absl::Seconds(1));

  queue_.Set(1, blocked("run-1", 3, kMaxBlocked));
  EXPECT_THAT(queue_.Givers(kNow + absl::Seconds(1)), ElementsAre(2, 3));
  EXPECT_EQ(queue_.TakerFrom(3, kNow + absl::Seconds(1)), "run-2") << "not enough for the first";
  queue_.Set(1, blocked("run-1", 4, kMaxBlocked));
  EXPECT_EQ(queue_.TakerFrom(2, kNow + absl::Seconds(1)), std::nullopt);

  queue_.Set(1, {.id = "run-1"});
  EXPECT_EQ(queue_.TakerFrom(3, kNow + absl::Seconds(1)), "run-2");
  AddWorker("");
  EXPECT_THAT(queue_.Givers(kNow + absl::Seconds(1)), IsEmpty()) << "one is idle";
  EXPECT_EQ(queue_.BlockedUntil(1), absl::InfiniteFuture());
}

TEST_F(RunQueueTest, RunsOfProgramsTakeAndGiveNoWorkers) {
  for (const char* run : {"run-1", "run-2"}) AddWorker(run);
  queue_.Set(1, {.id = "run-1", .lacks = 1, .of_programs = true});
  queue_.Set(2, {.id = "run-2", .lacks = 1});
  EXPECT_THAT(queue_.Givers(kNow), IsEmpty());
  queue_.Set(1, {.id = "run-1", .lacks = 1});
  queue_.Set(2, {.id = "run-2", .lacks = 1, .of_programs = true});
  EXPECT_THAT(queue_.Givers(kNow), IsEmpty());
  queue_.Set(2, {.id = "run-2", .device = kCuda, .lacks = 1});
  EXPECT_THAT(queue_.Givers(kNow), ElementsAre(2));
  queue_.Set(1, {.id = "run-1", .device = kCuda, .lacks = 1});
  EXPECT_THAT(queue_.Givers(kNow), IsEmpty()) << "it has only a worker without a GPU";
}

TEST_F(RunQueueTest, StartIsExpectedWhenEnoughWorkersAreIdle) {
  for (const char* run : {"", "run-1", "run-1", "run-2", "run-2"}) AddWorker(run);
  queue_.Set(1, {.id = "run-1", .end = kNow + absl::Hours(2)});
  queue_.Set(2, {.id = "run-2", .end = kNow + absl::Hours(1)});
  queue_.Set(3, Waiting("run-3", 1, 3));
  const auto third = queue_.ExpectedStart(3, kCpu);
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(third->after, "run-2") << "the idle one and two of this run";
  EXPECT_EQ(third->at, kNow + absl::Hours(1));
  queue_.Set(4, Waiting("run-4", 1, 2));
  const auto fourth = queue_.ExpectedStart(4, kCpu);
  ASSERT_TRUE(fourth.has_value());
  EXPECT_EQ(fourth->after, "run-1") << "run-3 is before it";
  EXPECT_EQ(fourth->at, kNow + absl::Hours(2));
  queue_.Set(4, Waiting("run-4", 1, 3));
  EXPECT_FALSE(queue_.ExpectedStart(4, kCpu).has_value()) << "there are five workers";
  EXPECT_FALSE(queue_.ExpectedStart(5, kCpu).has_value()) << "there is no such run";
}

TEST_F(RunQueueTest, RunsWithoutAKnownEndAreNotAwaited) {
  AddWorker("run-1");
  AddWorker("run-2");
  queue_.Set(1, {.id = "run-1"});
  queue_.Set(2, {.id = "run-2", .ranks = 1, .slots = 1, .end = kNow + absl::Hours(1)});
  EXPECT_FALSE(queue_.ExpectedStart(2, kCpu).has_value()) << "its own end does not count";
  queue_.Set(3, Waiting("run-3", 1, 1));
  queue_.Set(2, {.id = "run-2", .end = kNow + absl::Hours(1)});
  EXPECT_EQ(queue_.ExpectedStart(3, kCpu)->after, "run-2");
  queue_.Set(3, Waiting("run-3", 1, 2));
  EXPECT_FALSE(queue_.ExpectedStart(3, kCpu).has_value());
}

TEST_F(RunQueueTest, ShardsOfAggregators) {
  queue_.Set(1, {.id = "run-1", .shards = {"a", "b"}, .unreported_bytes = 10});
  queue_.Set(2, {.id = "run-2", .shards = {"b"}, .unreported_bytes = 5});
  EXPECT_EQ(queue_.CountShards("a"), 1);
  EXPECT_EQ(queue_.CountShards("b"), 2);
  EXPECT_EQ(queue_.CountShards("c"), 0);
  EXPECT_EQ(queue_.UnreportedBytes("a", 0), 10);
  EXPECT_EQ(queue_.UnreportedBytes("b", 0), 15);
  EXPECT_EQ(queue_.UnreportedBytes("b", 1), 5);
  EXPECT_EQ(queue_.UnreportedBytes("c", 0), 0);
  queue_.Erase(1);
  EXPECT_EQ(queue_.CountShards("b"), 1);
}

TEST_F(RunQueueTest, ShardsThatArriveCount) {
  queue_.Set(1, {.id = "run-1", .shards = {"a"}});
  queue_.Set(2, {.id = "run-2", .shards = {"a"}});
  queue_.SetArriving(1, "b", 10);
  queue_.SetArriving(2, "b", 5);
  EXPECT_EQ(queue_.CountShards("a"), 2) << "they are there until the moves are complete";
  EXPECT_EQ(queue_.CountShards("b"), 2);
  EXPECT_EQ(queue_.UnreportedBytes("b", 1), 5) << "of another run";
  EXPECT_EQ(queue_.UnreportedBytes("a", 1), 0);
  queue_.Set(1, {.id = "run-1", .shards = {"a"}});
  EXPECT_EQ(queue_.CountShards("b"), 2) << "the run has formed a group";
  queue_.SetArriving(1, "c", 10);
  EXPECT_EQ(queue_.CountShards("b"), 1);
  EXPECT_EQ(queue_.CountShards("c"), 1);
  queue_.SetArriving(1, "", 0);
  EXPECT_EQ(queue_.CountShards("c"), 0);
  queue_.Erase(2);
  EXPECT_EQ(queue_.CountShards("b"), 0);
}

TEST_F(RunQueueTest, CordonedAggregators) {
  EXPECT_FALSE(queue_.IsCordoned("a"));
  queue_.SetCordoned("a", true);
  EXPECT_TRUE(queue_.IsCordoned("a"));
  EXPECT_FALSE(queue_.IsCordoned("b"));
  queue_.SetCordoned("a", false);
  EXPECT_FALSE(queue_.IsCordoned("a"));
}

}  // namespace
}  // namespace cadre
