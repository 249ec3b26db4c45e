#include "coordinator/run/shard_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/shard_space.h"

namespace cadre::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kParameters = 1000;

v1::RunSpec Spec(uint32_t aggregators) {
  v1::RunSpec spec;
  spec.mutable_averaging()->set_every_steps(5);
  spec.mutable_cluster()->set_aggregators(aggregators);
  return spec;
}

int64_t Needed(const v1::RunSpec& spec, uint32_t shards) {
  return SpaceOfLargestShard(spec, kParameters, shards);
}

TEST(ShardPlacement, AllAreUsed) {
  const ShardPlacement placement =
      PlaceShards(Spec(0), kParameters, {{.name = "b", .free = 1 << 20}, {.name = "a"}});
  EXPECT_THAT(placement.chosen, ElementsAre("a", "b"));
  EXPECT_THAT(placement.left_out, IsEmpty());
}

TEST(ShardPlacement, SmallDiskIsLeftOutByName) {
  const v1::RunSpec spec = Spec(0);
  const ShardPlacement placement = PlaceShards(
      spec, kParameters, {{.name = "small", .free = 100}, {.name = "a"}, {.name = "b"}});
  EXPECT_THAT(placement.chosen, ElementsAre("a", "b"));
  ASSERT_EQ(placement.left_out.size(), 1u);
  EXPECT_EQ(placement.left_out[0], "aggregator small has 100 bytes free, and a shard needs " +
                                       std::to_string(Needed(spec, 2)));
}

// Without the smallest one, the shards are larger than what the next one has.
TEST(ShardPlacement, LeavingOneOutMayRuleOutAnother) {
  const v1::RunSpec spec = Spec(0);
  const ShardPlacement placement = PlaceShards(spec, kParameters,
                                               {{.name = "a", .free = 1 << 20},
                                                {.name = "b", .free = Needed(spec, 2) - 1},
                                                {.name = "c", .free = Needed(spec, 3) - 1}});
  EXPECT_THAT(placement.chosen, ElementsAre("a"));
  EXPECT_EQ(placement.left_out.size(), 2u);
}

TEST(ShardPlacement, FewestShardsThenMostSpace) {
  const ShardPlacement placement = PlaceShards(Spec(2), kParameters,
                                               {{.name = "a", .free = 4 << 20, .shards = 2},
                                                {.name = "b", .free = 100, .shards = 0},
                                                {.name = "c", .free = 1 << 20, .shards = 1},
                                                {.name = "d", .free = 2 << 20, .shards = 1},
                                                {.name = "e", .free = 1 << 20, .shards = 0}});
  EXPECT_THAT(placement.chosen, ElementsAre("d", "e"));
  EXPECT_THAT(placement.left_out, IsEmpty()) << "the run does not need it";
}

TEST(ShardPlacement, TooLittleSpaceIsTheReason) {
  const ShardPlacement placement = PlaceShards(
      Spec(2), kParameters, {{.name = "a", .free = 100}, {.name = "b"}, {.name = "c", .free = 7}});
  EXPECT_THAT(placement.chosen, IsEmpty());
  EXPECT_THAT(placement.reason, HasSubstr("waiting for aggregators with free space: "));
  EXPECT_THAT(placement.reason, HasSubstr("aggregator a has 100 bytes free"));
  EXPECT_THAT(placement.reason, HasSubstr("aggregator c has 7 bytes free"));
}

TEST(ShardPlacement, CordonedOnesAreNotUsed) {
  std::vector<ShardCandidate> candidates = {
      {.name = "a", .cordoned = true}, {.name = "b"}, {.name = "c", .connected = false}};
  EXPECT_THAT(PlaceShards(Spec(0), kParameters, candidates).chosen, ElementsAre("b"));
  const ShardPlacement two = PlaceShards(Spec(2), kParameters, candidates);
  EXPECT_THAT(two.chosen, IsEmpty());
  EXPECT_EQ(two.reason, "waiting for aggregators: 2 needed, 2 connected, of which 1 cordoned");
}

TEST(ShardPlacement, ThoseThatHaveRefusedAreNotUsed) {
  const std::vector<ShardCandidate> candidates = {{.name = "a", .full = true},
                                                  {.name = "b", .full = true},
                                                  {.name = "c", .cordoned = true, .full = true},
                                                  {.name = "d", .connected = false, .full = true},
                                                  {.name = "e"}};
  EXPECT_THAT(PlaceShards(Spec(0), kParameters, candidates).chosen, ElementsAre("e"));
  EXPECT_EQ(PlaceShards(Spec(2), kParameters, candidates).reason,
            "waiting for aggregators: 2 needed, 4 connected, of which 1 cordoned and 2 without "
            "space for a shard");
  EXPECT_EQ(PlaceShards(Spec(1), kParameters, {{.name = "a", .full = true}}).reason,
            "waiting for aggregators: 1 needed, 1 connected, of which 1 without space for a shard");
  EXPECT_EQ(
      PlaceShards(Spec(2), kParameters, {{.name = "a"}, {.name = "d", .connected = false}}).reason,
      "waiting for aggregators: 1 of 2 connected");
}

TEST(ShardPlacement, ExactlyEnoughSpaceIsEnough) {
  const v1::RunSpec spec = Spec(2);
  const int64_t needed = Needed(spec, 2);
  EXPECT_THAT(
      PlaceShards(spec, kParameters, {{.name = "a", .free = needed}, {.name = "b", .free = needed}})
          .chosen,
      ElementsAre("a", "b"));
}

// ---- One shard, which moves

TEST(ShardPlacement, OneShardGoesToTheFewestThenToTheMostSpace) {
  const ShardPlacement placement = PlaceOneShard(Spec(2), kParameters, 2,
                                                 {{.name = "a", .free = 4 << 20, .shards = 2},
                                                  {.name = "b", .free = 100, .shards = 0},
                                                  {.name = "c", .free = 1 << 20, .shards = 1},
                                                  {.name = "d", .free = 2 << 20, .shards = 1},
                                                  {.name = "e", .free = 2 << 20, .shards = 1}});
  EXPECT_THAT(placement.chosen, ElementsAre("d"));
}

TEST(ShardPlacement, EveryAggregatorThatCannotTakeAShardIsNamed) {
  const v1::RunSpec spec = Spec(2);
  const int64_t needed = Needed(spec, 2);
  const ShardPlacement placement = PlaceOneShard(spec, kParameters, 2,
                                                 {{.name = "a", .connected = false},
                                                  {.name = "b", .cordoned = true},
                                                  {.name = "c", .full = true},
                                                  {.name = "d", .free = needed - 1}});
  EXPECT_THAT(placement.chosen, IsEmpty());
  EXPECT_EQ(placement.reason,
            "no other aggregator can take it: aggregator a is away; aggregator b is cordoned; "
            "aggregator c has recently failed to take it; aggregator d has " +
                std::to_string(needed - 1) + " bytes free, and a shard needs " +
                std::to_string(needed));
  EXPECT_THAT(PlaceOneShard(spec, kParameters, 2, {{.name = "d", .free = needed}}).chosen,
              ElementsAre("d"));
  EXPECT_EQ(PlaceOneShard(spec, kParameters, 2, {}).reason,
            "no other aggregator can take it: each has a shard of the run");
}

}  // namespace
}  // namespace cadre::testing
