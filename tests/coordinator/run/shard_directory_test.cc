// What the ranks of a run are told of its aggregators, and since when one is away.
#include "coordinator/run/shard_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/run/group_planner.h"
#include "tests/coordinator/run/fake_run.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A run with two shards and one started group of one rank.
class ShardDirectoryTest : public testing::RunPartTest {
 protected:
  ShardDirectoryTest()
      : RunPartTest(R"(run: "run-1" state: RUN_STATE_RUNNING version: 3
                       shards: "agg-0" shards: "agg-1")") {
    for (const char* name : {"agg-0", "agg-1"}) AddMember(v1::ROLE_AGGREGATOR, name);
    AddMember(v1::ROLE_WORKER, "w1");
    Slot slot("run-1", 0, kStart);
    slot.Form(7, {"w1"}, v1::Plan(), kStart);
    run_.slots.Add(slot);
    TakeSent();
  }
  // The aggregator's stream ends.
  void Lose(const std::string& name) {
    cluster_.members().Detach(ConnectionOf(name));
    directory_.OnLost(name);
  }
  void Join(const std::string& name) {
    Member& member = *cluster_.members().Aggregator(name);
    cluster_.members().Attach(member, ++connections_, cluster_.now());
    directory_.OnJoined(name);
  }
  ConnectionId ConnectionOf(const std::string& name) {
    return cluster_.members().Aggregator(name)->connection;
  }
  // The addresses of each message that the rank has received since the last call.
  std::vector<std::string> NewAddresses() {
    std::vector<std::string> lists;
    for (const auto& message : TakeSent()) {
      std::string& list = lists.emplace_back(message.shard_addresses().run() + ":");
      for (const v1::ShardAddress& shard : message.shard_addresses().shards()) {
        list += absl::StrCat(" ", shard.shard(), "=", shard.name(), "@", shard.address());
      }
    }
    return lists;
  }
  void Wait(absl::Duration time) { cluster_.Begin(cluster_.now() + time); }

  GroupPlanner planner_{options_, cluster_};
  ShardDirectory directory_{run_, record(), run_.opened, {cluster_, planner_, options_}};
};

TEST_F(ShardDirectoryTest, RanksAreToldWhoIsAwayAndWhoReturns) {
  Lose("agg-1");
  EXPECT_THAT(NewAddresses(), ElementsAre("run-1: 0=agg-0@agg-0:1 1=agg-1@"));
  directory_.OnLost("agg-1");
  EXPECT_THAT(NewAddresses(), IsEmpty()) << "its lease has ended as well";
  Join("agg-1");
  EXPECT_THAT(NewAddresses(), ElementsAre("run-1: 0=agg-0@agg-0:1 1=agg-1@agg-1:1"));
}

TEST_F(ShardDirectoryTest, AggregatorsOfOtherRunsDoNotMatter) {
  AddMember(v1::ROLE_AGGREGATOR, "agg-2");
  directory_.OnJoined("agg-2");
  Lose("agg-2");
  EXPECT_THAT(NewAddresses(), IsEmpty());
  EXPECT_FALSE(directory_.FindAway().has_value());
}

TEST_F(ShardDirectoryTest, TheOneThatIsAwayForTheLongestTimeIsNamed) {
  EXPECT_FALSE(directory_.FindAway().has_value());
  EXPECT_EQ(directory_.PatientUntil(), absl::InfiniteFuture());
  Wait(absl::Seconds(10));
  Lose("agg-1");
  Wait(absl::Seconds(10));
  Lose("agg-0");
  ASSERT_TRUE(directory_.FindAway().has_value());
  EXPECT_EQ(directory_.FindAway()->name, "agg-1");
  EXPECT_EQ(directory_.FindAway()->since, kStart + absl::Seconds(10));
  EXPECT_EQ(directory_.PatientUntil(), kStart + absl::Seconds(10) + options_.aggregator_patience);
  Join("agg-1");
  EXPECT_EQ(directory_.FindAway()->name, "agg-0");
  EXPECT_EQ(directory_.FindAway()->since, kStart + absl::Seconds(20));
}

// The end of the old stream is noticed when the aggregator has a new one.
TEST_F(ShardDirectoryTest, EndOfAnOldStreamIsNoLoss) {
  directory_.OnLost("agg-1");
  EXPECT_THAT(NewAddresses(), IsEmpty());
  Wait(absl::Minutes(1));
  Lose("agg-1");
  EXPECT_EQ(NewAddresses().size(), 1U);
  EXPECT_EQ(directory_.FindAway()->since, cluster_.now()) << "the wait begins with the loss";
}

// A coordinator that has just started does not know since when.
TEST_F(ShardDirectoryTest, AggregatorThatHasNotJoinedIsAwaySinceTheStart) {
  cluster_.members().Remove("agg-0");
  Wait(absl::Minutes(1));
  EXPECT_EQ(directory_.FindAway()->name, "agg-0");
  EXPECT_EQ(directory_.FindAway()->since, kStart);
  cluster_.members().Remove("agg-1");
  EXPECT_EQ(directory_.FindAway()->name, "agg-0") << "the one of the first shard";
}

TEST_F(ShardDirectoryTest, OpenShardsAwaitNoAggregator) {
  for (const uint32_t shard : {0, 1}) {
    v1::RunOpened opened;
    opened.set_shard(shard);
    run_.opened.Open(opened);
  }
  cluster_.members().Remove("agg-0");
  EXPECT_FALSE(directory_.FindAway().has_value());
}

}  // namespace
}  // namespace cadre
