// Which shards are open, which accept contributions, and what restores those that are lost.
#include "coordinator/run/shards.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/base/expect.h"

namespace cadre {
namespace {

class ShardsTest : public ::testing::Test {
 protected:
  static v1::RunOpened OpenedOf(uint32_t shard) {
    v1::RunOpened opened;
    opened.set_shard(shard);
    return opened;
  }
  // Shard 1 is lost, and restored by this attempt.
  ShardRestore& Lose(const ShardRestore::View& view, bool ready = true) {
    shards_.Lose(1, ShardRestore("lost"));
    ShardRestore& restore = *shards_.Lost(1);
    EXPECT_TRUE(restore.Choose(view));
    if (ready) restore.SetHollow(restore.attempt()->hollow);
    return restore;
  }
  static ShardRestore::View Seeded() {
    return {.version = 3, .groups = {{.group = 2, .generation = 7, .adopted = true}}};
  }
  static ShardRestore::View FromOpenRound() {
    return {.version = 3,
            .groups = {{.group = 2, .generation = 7, .adopted = true, .contributed = true}}};
  }
  static v1::Restaged Answer(uint32_t rank, uint32_t round, bool seed,
                             const std::string& error = "") {
    v1::Restaged restaged;
    restaged.mutable_place()->set_group(2);
    restaged.mutable_place()->set_rank(rank);
    restaged.set_shard(1);
    restaged.set_round(round);
    restaged.set_seed(seed);
    restaged.set_error(error);
    return restaged;
  }

  v1::RunRecord run_ =
      Parse<v1::RunRecord>(R"(lineage: "run-1.0" version: 3 shards: "agg-0" shards: "agg-1")");
  Shards shards_{run_};
};

TEST_F(ShardsTest, AggregatorOwnsItsShard) {
  EXPECT_TRUE(shards_.Owns("agg-1", 1));
  EXPECT_FALSE(shards_.Owns("agg-0", 1));
  EXPECT_FALSE(shards_.Owns("agg-1", 2));
  EXPECT_TRUE(shards_.MayStore("agg-1", 1));
  EXPECT_FALSE(shards_.MayStore("agg-2", 1));
  run_.set_version(0);
  EXPECT_TRUE(shards_.MayStore("agg-2", 1)) << "others may have been chosen since";
}

TEST_F(ShardsTest, TargetsOfMovesMayStoreTheShard) {
  run_.mutable_move()->set_shard(1);
  run_.mutable_move()->set_to("agg-2");
  EXPECT_TRUE(shards_.MayStore("agg-2", 1)) << "the move may be complete";
  EXPECT_FALSE(shards_.MayStore("agg-2", 0)) << "another shard moves there";
  EXPECT_FALSE(shards_.MayStore("agg-3", 1)) << "it moves to another one";
  run_.add_leaving("agg-3");
  EXPECT_TRUE(shards_.MayStore("agg-3", 1)) << "it may have moved there again";
}

TEST_F(ShardsTest, OpenedLostAndClosed) {
  EXPECT_FALSE(shards_.AllOpen());
  EXPECT_FALSE(shards_.AllKnown());
  shards_.Open(OpenedOf(0));
  EXPECT_TRUE(shards_.IsOpen(0));
  EXPECT_FALSE(shards_.AllOpen());
  shards_.Lose(1, ShardRestore("lost"));
  EXPECT_TRUE(shards_.AllKnown());
  EXPECT_FALSE(shards_.AllOpen());
  EXPECT_FALSE(shards_.IsOpen(1));
  shards_.Open(OpenedOf(1));
  EXPECT_EQ(shards_.Lost(1), nullptr);
  EXPECT_TRUE(shards_.AllOpen());
  shards_.Close("agg-1");
  EXPECT_FALSE(shards_.IsOpen(1));
  EXPECT_TRUE(shards_.AllKnown()) << "what it had is known";
  shards_.Reset();
  EXPECT_FALSE(shards_.IsOpen(0));
  EXPECT_FALSE(shards_.AllKnown());
  run_.clear_shards();
  EXPECT_FALSE(shards_.AllOpen()) << "none is chosen";
}

TEST_F(ShardsTest, FolderWithoutAnOpenShardIsAnotherOne) {
  v1::Hello hello;
  hello.set_name("agg-1");
  EXPECT_FALSE(shards_.Lacks(hello)) << "the shard is not open";
  shards_.Open(OpenedOf(1));
  EXPECT_TRUE(shards_.Lacks(hello));
  hello.add_shards()->set_lineage("run-2.0");
  EXPECT_TRUE(shards_.Lacks(hello));
  hello.add_shards()->set_lineage("run-1.0");
  EXPECT_FALSE(shards_.Lacks(hello));
  hello.clear_shards();
  hello.set_name("agg-0");
  EXPECT_FALSE(shards_.Lacks(hello));
}

// A lost shard takes part in the open round if its values come from that round.
TEST_F(ShardsTest, LostShardMayAcceptContributions) {
  shards_.Open(OpenedOf(0));
  EXPECT_FALSE(shards_.Accepts(1));
  EXPECT_FALSE(shards_.AllAccept());
  EXPECT_TRUE(shards_.MayClose()) << "a shard whose aggregator is away";
  shards_.Lose(1, ShardRestore("lost"));
  EXPECT_FALSE(shards_.Accepts(1)) << "nothing is tried yet";
  EXPECT_FALSE(shards_.MayClose());
  Lose(Seeded());
  EXPECT_FALSE(shards_.Accepts(1));
  EXPECT_FALSE(shards_.MayClose());
  ShardRestore& restore = Lose(Seeded());
  restore.Fail("the group has left");
  restore.Choose(FromOpenRound());
  ASSERT_EQ(restore.attempt()->source, ShardRestore::Source::kOpenRound);
  EXPECT_FALSE(shards_.Accepts(1)) << "it is not open at that version yet";
  EXPECT_FALSE(shards_.AllAccept());
  EXPECT_FALSE(shards_.MayClose());
  restore.SetHollow(3);
  EXPECT_TRUE(shards_.Accepts(1));
  EXPECT_TRUE(shards_.AllAccept());
  EXPECT_TRUE(shards_.MayClose());
}

TEST_F(ShardsTest, ReasonNamesTheSource) {
  EXPECT_EQ(shards_.RestoreReason(), "");
  shards_.Lose(1, ShardRestore("lost"));
  const std::string lost = "shard 1 on agg-1 is being restored";
  EXPECT_EQ(shards_.RestoreReason(), lost);
  Lose(Seeded());
  EXPECT_EQ(shards_.RestoreReason(), lost + " from group 2");
  Lose(FromOpenRound());
  EXPECT_EQ(shards_.RestoreReason(), lost + " from the round in progress");
  Lose({.version = 3, .closing = true, .complete = true});
  EXPECT_EQ(shards_.RestoreReason(), lost + " from the contributions to round 4");
  Lose({.version = 3, .copy = 3});
  EXPECT_EQ(shards_.RestoreReason(), lost + " from the copy on agg-0");
}

TEST_F(ShardsTest, AnswersOfRanksBelongToTheAttempt) {
  shards_.OnRestaged(Answer(0, 3, true, "no such shard is lost"));
  ShardRestore* restore = &Lose(Seeded(), /*ready=*/false);
  restore->asked = {{2, 0}, {2, 1}};
  shards_.OnRestaged(Answer(0, 3, true, "too early"));
  restore->SetHollow(2);
  shards_.OnRestaged(Answer(0, 4, true, "another round"));
  shards_.OnRestaged(Answer(0, 3, false, "a contribution"));
  shards_.OnRestaged(Answer(2, 3, true, "not asked"));
  EXPECT_TRUE(restore->attempt().has_value()) << restore->reason();
  EXPECT_EQ(restore->asked.size(), 2U);
  shards_.OnRestaged(Answer(0, 3, true));
  EXPECT_EQ(restore->asked.size(), 1U);
  shards_.OnRestaged(Answer(0, 3, true, "a repetition"));
  EXPECT_TRUE(restore->attempt().has_value()) << restore->reason();
  shards_.OnRestaged(Answer(1, 3, true, "not held"));
  EXPECT_FALSE(restore->attempt().has_value());
  EXPECT_EQ(restore->reason(), "lost; group 2, rank 1: not held");
}

}  // namespace
}  // namespace cadre
