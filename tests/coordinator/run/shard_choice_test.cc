// When a run chooses the aggregators of its shards, and when it chooses others.
#include "coordinator/run/shard_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "model/shard_space.h"
#include "tests/coordinator/run/fake_run.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ShardChoiceTest : public testing::RunPartTest {
 protected:
  ShardChoiceTest()
      : RunPartTest(R"(run: "run-1" state: RUN_STATE_QUEUED
                       spec { averaging { every_steps: 5 } cluster { groups: 1 } })") {}
  // An aggregator that has reported so many free bytes, of which some are reserved.
  Member& AddAggregator(const std::string& name, int64_t free = 1 << 30, int64_t reserved = 0) {
    Member& member = AddMember(v1::ROLE_AGGREGATOR, name);
    member.counters["disk_free_bytes"] = free;
    member.counters["disk_reserved_bytes"] = reserved;
    return member;
  }
  int64_t Needed(uint32_t shards) { return SpaceOfLargestShard(spec(), run_.parameters, shards); }
  bool Refuse(const Member& member, const std::string& error) {
    v1::RunOpened opened;
    opened.set_error(error);
    return choice_.OnTooLittleSpace(member, opened);
  }

  ShardChoice choice_{run_, run_.stored, run_.opened, cluster_};
};

TEST_F(ShardChoiceTest, ChosenOnceTheWorkersOfAGroupAreIdle) {
  EXPECT_FALSE(choice_.Choose(1));
  EXPECT_TRUE(choice_.lacking());
  AddAggregator("agg-0");
  AddAggregator("agg-1");
  EXPECT_TRUE(choice_.Choose(0));
  EXPECT_FALSE(choice_.lacking());
  EXPECT_THAT(record().shards(), IsEmpty());
  EXPECT_TRUE(choice_.Choose(1));
  EXPECT_THAT(record().shards(), ElementsAre("agg-0", "agg-1"));
  EXPECT_TRUE(IsStored());
  AddAggregator("agg-2");
  EXPECT_TRUE(choice_.Choose(1));
  EXPECT_THAT(record().shards(), ElementsAre("agg-0", "agg-1")) << "the choice is kept";
}

TEST_F(ShardChoiceTest, LostAggregatorIsReplacedBeforeThereAreValues) {
  AddAggregator("agg-0");
  AddAggregator("agg-1");
  choice_.Choose(1);
  run_.opened.Open(v1::RunOpened());
  cluster_.members().Remove("agg-1");
  EXPECT_TRUE(choice_.Choose(1));
  EXPECT_THAT(record().shards(), ElementsAre("agg-0"));
  EXPECT_THAT(record().former_shards(), ElementsAre("agg-0", "agg-1"));
  EXPECT_FALSE(run_.opened.IsOpen(0)) << "it was opened as one of two shards";
  EXPECT_TRUE(IsStored());
  v1::CommitRecord initial;
  run_.made.SetInitial(initial);
  cluster_.members().Remove("agg-0");
  EXPECT_TRUE(choice_.Choose(1));
  EXPECT_THAT(record().shards(), ElementsAre("agg-0")) << "it has the values";
}

TEST_F(ShardChoiceTest, WithdrawnChoiceIsStored) {
  AddAggregator("agg-0");
  choice_.Choose(1);
  cluster_.members().Remove("agg-0");
  EXPECT_FALSE(choice_.Choose(1));
  EXPECT_THAT(record().shards(), IsEmpty());
  EXPECT_THAT(record().former_shards(), ElementsAre("agg-0"));
  EXPECT_TRUE(IsStored());
}

TEST_F(ShardChoiceTest, AggregatorsWithoutSpaceAreNamed) {
  AddAggregator("agg-0");
  AddAggregator("agg-1", 7);
  EXPECT_TRUE(choice_.Choose(1));
  EXPECT_THAT(record().shards(), ElementsAre("agg-0"));
  EXPECT_THAT(record().warnings(),
              ElementsAre("aggregator agg-1 has 7 bytes free, and a shard needs " +
                          std::to_string(Needed(1)) + ": it stores no shard of this run"));
}

TEST_F(ShardChoiceTest, ReservedBytesAreNotFree) {
  const int64_t needed = Needed(1);
  AddAggregator("agg-0", needed + 5, 6);
  EXPECT_FALSE(choice_.Choose(1));
  cluster_.members().Aggregator("agg-0")->counters["disk_reserved_bytes"] = 5;
  EXPECT_TRUE(choice_.Choose(1));
  EXPECT_THAT(record().shards(), ElementsAre("agg-0"));
}

TEST_F(ShardChoiceTest, MoreReservedThanFreeIsNothing) {
  AddAggregator("agg-0", 5, 100);
  EXPECT_EQ(choice_.FindPlacement().reason,
            "waiting for aggregators with free space: aggregator agg-0 has 0 bytes free, and a "
            "shard needs " +
                std::to_string(Needed(1)));
}

// What the run itself has reserved before its shards were to be chosen again.
TEST_F(ShardChoiceTest, OwnReservationServesTheNextShard) {
  const int64_t needed = Needed(1);
  AddAggregator("agg-0", needed, needed);
  EXPECT_THAT(choice_.FindPlacement().chosen, IsEmpty());
  record().add_former_shards("agg-0");
  EXPECT_THAT(choice_.FindPlacement().chosen, ElementsAre("agg-0"));
  // At most the bytes of one shard. The number of former shards tells how large it was.
  record().add_former_shards("agg-1");
  EXPECT_THAT(choice_.FindPlacement().chosen, IsEmpty()) << "it was one of two shards";
  spec().mutable_cluster()->set_aggregators(1);
  EXPECT_THAT(choice_.FindPlacement().chosen, ElementsAre("agg-0"));
}

TEST_F(ShardChoiceTest, BytesForOtherRunsAreNotFree) {
  AddAggregator("agg-0", Needed(1) + 9);
  cluster_.queue().Set(2, {.id = "run-2", .shards = {"agg-0"}, .unreported_bytes = 10});
  EXPECT_THAT(choice_.FindPlacement().chosen, IsEmpty());
  cluster_.queue().Set(2, {.id = "run-2", .shards = {"agg-0"}, .unreported_bytes = 9});
  EXPECT_THAT(choice_.FindPlacement().chosen, ElementsAre("agg-0"));
  cluster_.queue().Set(1, {.id = "run-1", .shards = {"agg-0"}, .unreported_bytes = 10});
  EXPECT_THAT(choice_.FindPlacement().chosen, ElementsAre("agg-0")) << "those of the run itself";
}

TEST_F(ShardChoiceTest, CordonedAndDisconnectedAggregatorsAreNotChosen) {
  AddAggregator("agg-0");
  AddAggregator("agg-1");
  AddAggregator("agg-2");
  cluster_.queue().SetCordoned("agg-0", true);
  cluster_.members().Detach(2);
  EXPECT_THAT(choice_.FindPlacement().chosen, ElementsAre("agg-2"));
}

TEST_F(ShardChoiceTest, AggregatorThatRefusesForLackOfSpaceIsNotChosenForAMinute) {
  Member& first = AddAggregator("agg-0");
  Member& second = AddAggregator("agg-1");
  spec().mutable_cluster()->set_aggregators(1);
  choice_.Choose(1);
  ASSERT_THAT(record().shards(), ElementsAre("agg-0"));
  EXPECT_FALSE(Refuse(first, "permission denied"));
  EXPECT_THAT(record().shards(), ElementsAre("agg-0"));
  const std::string error = std::string(kTooLittleSpace) + ": 5 bytes";
  EXPECT_TRUE(Refuse(first, error));
  EXPECT_THAT(record().shards(), IsEmpty());
  EXPECT_THAT(record().warnings(),
              ElementsAre("aggregator agg-0 has refused a shard of this run: " + error));
  EXPECT_THAT(choice_.FindPlacement().chosen, ElementsAre("agg-1"));
  EXPECT_TRUE(Refuse(second, error));
  EXPECT_THAT(choice_.FindPlacement().chosen, IsEmpty());
  cluster_.Begin(kStart + absl::Seconds(59));
  EXPECT_THAT(choice_.FindPlacement().chosen, IsEmpty());
  cluster_.Begin(kStart + absl::Minutes(1));
  EXPECT_THAT(choice_.FindPlacement().chosen, ElementsAre("agg-0"));
}

TEST_F(ShardChoiceTest, AggregatorThatHasFailedToTakeAShardIsNotChosenForTenMinutes) {
  AddAggregator("agg-0");
  choice_.ExcludeFailed("agg-0");
  cluster_.members().Aggregator("agg-0")->counters["disk_free_bytes"] *= 2;
  cluster_.Begin(kStart + absl::Minutes(10) - absl::Seconds(1));
  EXPECT_THAT(choice_.FindPlacement().chosen, IsEmpty());
  cluster_.Begin(kStart + absl::Minutes(10));
  EXPECT_THAT(choice_.FindPlacement().chosen, ElementsAre("agg-0"));
}

TEST_F(ShardChoiceTest, RefusalDoesNotCountWhenMoreIsFree) {
  Member& member = AddMember(v1::ROLE_AGGREGATOR, "agg-0");
  Refuse(member, kTooLittleSpace);
  EXPECT_THAT(choice_.FindPlacement().chosen, IsEmpty()) << "it has reported nothing yet";
  member.counters["disk_free_bytes"] = 1 << 29;
  EXPECT_THAT(choice_.FindPlacement().chosen, ElementsAre("agg-0"));
  Refuse(member, kTooLittleSpace);
  EXPECT_THAT(choice_.FindPlacement().chosen, IsEmpty());
  member.counters["disk_free_bytes"] = (1 << 29) + 1;
  EXPECT_THAT(choice_.FindPlacement().chosen, ElementsAre("agg-0"));
}

}  // namespace
}  // namespace cadre
