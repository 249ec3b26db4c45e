// Which versions the copies of shards have, and which orders to copy are sent.
#include "coordinator/run/shard_copies.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/base/expect.h"

namespace cadre {
namespace {

// The copies of two shards: agg-1 holds that of shard 0.
class ShardCopiesTest : public ::testing::Test {
 protected:
  static v1::ShardCopy CopyOf(uint32_t shard, uint32_t version, uint64_t digest) {
    v1::ShardCopy copy;
    copy.set_shard(shard);
    copy.set_version(version);
    copy.set_digest(digest);
    return copy;
  }
  // agg-1 has opened its own shard and lists these copies.
  void Open(const std::vector<v1::ShardCopy>& held) {
    v1::RunOpened opened;
    opened.set_shard(1);
    for (const v1::ShardCopy& copy : held) *opened.add_copies() = copy;
    copies_.OnOpened(opened);
  }

  v1::RunRecord run_ =
      Parse<v1::RunRecord>("spec { averaging { copies: 2 } } shards: 'agg-0' shards: 'agg-1'");
  ShardCopies copies_{run_};
};

TEST_F(ShardCopiesTest, HolderTellsWhatItHas) {
  EXPECT_FALSE(copies_.Knows(0));
  EXPECT_EQ(copies_.NewestOf(0), std::nullopt);
  Open({});
  EXPECT_TRUE(copies_.Knows(0));
  EXPECT_EQ(copies_.NewestOf(0), std::nullopt);
  Open({CopyOf(0, 3, 30), CopyOf(0, 4, 40), CopyOf(1, 9, 90)});
  EXPECT_FALSE(copies_.Knows(1)) << "agg-0 holds the copy of shard 1";
  EXPECT_EQ(copies_.NewestOf(0), 4U) << "version 9 is one of another shard";
  EXPECT_TRUE(copies_.Has(0, {3, 30}));
  EXPECT_TRUE(copies_.Has(0, {4, 40}));
  EXPECT_FALSE(copies_.Has(0, {4, 41}));
  EXPECT_FALSE(copies_.Has(0, {5, 50}));
  EXPECT_FALSE(copies_.Has(0, {5, 0}));
  EXPECT_FALSE(copies_.Has(1, {9, 90}));
}

TEST_F(ShardCopiesTest, HolderKeepsTheNewestTwo) {
  Open({CopyOf(0, 3, 30), CopyOf(0, 4, 40)});
  EXPECT_TRUE(copies_.OnCopied("agg-1", CopyOf(0, 5, 50)));
  EXPECT_FALSE(copies_.Has(0, {3, 30}));
  EXPECT_TRUE(copies_.Has(0, {4, 40}));
  EXPECT_TRUE(copies_.Has(0, {5, 50}));
}

TEST_F(ShardCopiesTest, OnlyTheHolderReportsCopies) {
  Open({});
  EXPECT_FALSE(copies_.OnCopied("agg-0", CopyOf(0, 5, 50)));
  EXPECT_FALSE(copies_.OnCopied("agg-1", CopyOf(2, 5, 50))) << "there is no shard 2";
  EXPECT_FALSE(copies_.Has(0, {5, 50}));
  EXPECT_TRUE(copies_.OnCopied("agg-0", CopyOf(1, 5, 50)));
  EXPECT_FALSE(copies_.Knows(1)) << "agg-0 has not said yet what else it has";
  run_.mutable_spec()->mutable_averaging()->clear_copies();
  EXPECT_FALSE(copies_.OnCopied("agg-1", CopyOf(0, 5, 50)));
  EXPECT_FALSE(copies_.Has(0, {5, 50}));
}

TEST_F(ShardCopiesTest, RunWithoutCopiesHasNone) {
  run_.mutable_spec()->mutable_averaging()->clear_copies();
  Open({CopyOf(0, 3, 30)});
  EXPECT_FALSE(copies_.Knows(0));
}

TEST_F(ShardCopiesTest, OrderIsSentOnce) {
  EXPECT_FALSE(copies_.MustOrder(0, {5, 50})) << "it is not known what the holder has";
  Open({CopyOf(0, 4, 40)});
  EXPECT_FALSE(copies_.MustOrder(0, {4, 40}));
  EXPECT_TRUE(copies_.MustOrder(0, {5, 50}));
  copies_.SetOrdered(0, {5, 50});
  EXPECT_FALSE(copies_.MustOrder(0, {5, 50}));
  EXPECT_TRUE(copies_.MustOrder(0, {6, 60}));
  copies_.ForgetOrder(0);
  EXPECT_TRUE(copies_.MustOrder(0, {5, 50}));
  copies_.SetOrdered(0, {5, 50});
  copies_.Close("agg-0");
  EXPECT_TRUE(copies_.MustOrder(0, {5, 50})) << "the order named the address of the shard";
  EXPECT_TRUE(copies_.Knows(0));
  copies_.ForgetOrder(1);
  EXPECT_FALSE(copies_.Knows(1));
}

TEST_F(ShardCopiesTest, WhatALostHolderHasIsNotKnown) {
  Open({CopyOf(0, 4, 40)});
  copies_.Close("agg-1");
  EXPECT_FALSE(copies_.Knows(0));
  Open({CopyOf(0, 4, 40)});
  copies_.Reset();
  EXPECT_FALSE(copies_.Knows(0));
}

TEST_F(ShardCopiesTest, LateHolderIsAwaitedAfterItsNextCopy) {
  EXPECT_TRUE(copies_.Awaits(0, {5, 50}));
  copies_.GiveUp(0);
  EXPECT_TRUE(copies_.Awaits(0, {5, 50})) << "a holder that is away may be the only one";
  Open({CopyOf(0, 4, 40)});
  EXPECT_FALSE(copies_.Awaits(0, {4, 40}));
  EXPECT_TRUE(copies_.Awaits(0, {5, 50}));
  copies_.GiveUp(0);
  EXPECT_FALSE(copies_.Awaits(0, {5, 50}));
  copies_.OnCopied("agg-1", CopyOf(0, 5, 50));
  EXPECT_TRUE(copies_.Awaits(0, {6, 60}));
}

}  // namespace
}  // namespace cadre
