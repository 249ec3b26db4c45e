#include "coordinator/run/shard_restore.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

using Source = ShardRestore::Source;

constexpr uint32_t kVersion = 7;

ShardRestore::Attempt Chosen(ShardRestore& restore, const ShardRestore::View& view) {
  restore.Choose(view);
  return restore.attempt().value_or(ShardRestore::Attempt{.hollow = 1000});
}

TEST(ShardRestoreTest, ClosingRoundComesFromItsContributionsOnly) {
  ShardRestore::View view{.version = kVersion, .closing = true, .complete = true};
  view.groups.push_back({.group = 0, .generation = 1, .adopted = true});
  ShardRestore restore("lost");
  EXPECT_EQ(Chosen(restore, view), ShardRestore::Attempt{.hollow = kVersion});
  view.complete = false;
  restore.Choose(view);
  EXPECT_FALSE(restore.attempt().has_value());
}

// Otherwise the round would wait for a group that waits for the shard.
TEST(ShardRestoreTest, OpenRoundNeedsEnoughGroupsThatCanContribute) {
  ShardRestore::View view{.version = kVersion, .min_groups = 2};
  view.groups = {{.group = 0, .generation = 1, .adopted = true, .contributed = true},
                 {.group = 1, .generation = 2}};
  ShardRestore restore("lost");
  EXPECT_EQ(Chosen(restore, view).source, Source::kSeed);
  restore.Fail("group 1 does not hold the version");
  restore.Choose(view);
  EXPECT_FALSE(restore.attempt().has_value());
  view.min_groups = 1;
  EXPECT_EQ(Chosen(restore, view).source, Source::kOpenRound);
}

// The shard has been ordered to become hollow at another version since it answered.
TEST(ShardRestoreTest, AnswersFromBeforeTheLastOrderDoNotCount) {
  ShardRestore::View view{.version = kVersion};
  view.groups = {{.group = 0, .generation = 1, .adopted = true}};
  ShardRestore restore("lost", kVersion);
  EXPECT_EQ(Chosen(restore, view).source, Source::kSeed);
  view.groups[0].contributed = true;
  EXPECT_EQ(Chosen(restore, view).source, Source::kOpenRound);
  EXPECT_FALSE(restore.ready());
  restore.SetHollow(kVersion - 1);
  EXPECT_FALSE(restore.ready());
  restore.SetHollow(kVersion);
  EXPECT_TRUE(restore.ready());
}

// It answers an OpenRun that was sent before the shard was known to be lost.
TEST(ShardRestoreTest, ShardWithoutAVersionIsNotHollowAtVersionZero) {
  ShardRestore::View view{.version = 1, .copy = 1};
  ShardRestore restore("lost");
  restore.SetHollow(0);
  EXPECT_EQ(Chosen(restore, view), (ShardRestore::Attempt{.source = Source::kCopy, .hollow = 0}));
  EXPECT_FALSE(restore.ready()) << "it is to be made hollow";
  restore.SetHollow(0);
  EXPECT_TRUE(restore.ready());
  view.copy = 8;
  view.version = kVersion;
  ShardRestore later("lost");
  EXPECT_EQ(Chosen(later, view).hollow, kVersion);
  later.SetHollow(0);
  view.version = view.copy.emplace(1);
  EXPECT_EQ(Chosen(later, view).hollow, 0U);
  EXPECT_FALSE(later.ready());
}

TEST(ShardRestoreTest, NothingIsLeftToTry) {
  ShardRestore restore("lost");
  EXPECT_FALSE(restore.Choose({.version = kVersion}));
  EXPECT_FALSE(restore.attempt().has_value());
  // All participants of a commit that has none.
  EXPECT_FALSE(restore.Choose({.version = 0, .complete = true}));
  EXPECT_FALSE(restore.attempt().has_value()) << "there is no version before the initial model";
}

// A rank that has been asked and has left may be the only one that had its values.
TEST(ShardRestoreTest, ClosingRoundNeedsTheRanksThatWereAsked) {
  ShardRestore::View view{.version = kVersion, .closing = true};
  view.groups = {{.group = 0, .generation = 1}, {.group = 1, .generation = 2}};
  ShardRestore restore("lost", kVersion);
  restore.asked = {{0, 0}, {1, 0}};
  EXPECT_TRUE(restore.Choose(view));
  EXPECT_EQ(restore.attempt(), ShardRestore::Attempt{.hollow = kVersion});
  ShardRestore lacking("lost", kVersion);
  lacking.asked = {{0, 0}, {1, 0}};
  view.groups.pop_back();
  EXPECT_FALSE(lacking.Choose(view));
  ShardRestore closed("lost", kVersion - 1);
  EXPECT_FALSE(closed.Choose(view)) << "it has accepted none of this round";
}

TEST(ShardRestoreTest, GroupThatHasContributedIsAbleToContribute) {
  ShardRestore::View view{.version = kVersion};
  view.groups = {{.group = 0, .generation = 1, .contributed = true}};
  ShardRestore restore("lost");
  EXPECT_EQ(Chosen(restore, view).source, Source::kOpenRound);
}

// The shard is open already at the version that precedes the copy.
TEST(ShardRestoreTest, ShardWithoutValuesDiscardsNone) {
  ShardRestore restore("lost", kVersion - 1);
  EXPECT_TRUE(restore.Choose({.version = kVersion, .copy = kVersion}));
  EXPECT_EQ(restore.attempt()->source, Source::kCopy);
  EXPECT_TRUE(restore.ready());
}

TEST(ShardRestoreTest, TriesEverySourceOnce) {
  ShardRestore::View view{.version = kVersion, .complete = true};
  view.groups = {{.group = 0, .generation = 1},
                 {.group = 1, .generation = 2, .adopted = true},
                 {.group = 2, .generation = 3, .adopted = true, .contributed = true}};
  const auto seed = [](uint32_t group, uint32_t generation) {
    return ShardRestore::Attempt{
        .source = Source::kSeed, .hollow = kVersion - 1, .group = group, .generation = generation};
  };
  ShardRestore restore("lost");
  EXPECT_EQ(Chosen(restore, view), seed(1, 2)) << "it is known to have adopted the version";
  restore.Fail("one");
  EXPECT_EQ(Chosen(restore, view), seed(0, 1));
  restore.Fail("two");
  EXPECT_EQ(Chosen(restore, view), ShardRestore::Attempt{.hollow = kVersion - 1});
  restore.Fail("three");
  EXPECT_EQ(Chosen(restore, view),
            (ShardRestore::Attempt{.source = Source::kOpenRound, .hollow = kVersion}));
  EXPECT_EQ(restore.reason(), "lost; one; two; three");
  view.groups.clear();
  restore.Choose(view);
  EXPECT_FALSE(restore.attempt().has_value());
}

// An attempt is not given up because a better one has become possible, but because it is not
// possible any more.
TEST(ShardRestoreTest, KeepsAPossibleAttempt) {
  ShardRestore::View view{.version = kVersion};
  view.groups = {{.group = 1, .generation = 2}};
  ShardRestore restore("lost");
  EXPECT_TRUE(restore.Choose(view));
  restore.asked.insert({1, 0});
  view.groups.insert(view.groups.begin(), {.group = 0, .generation = 1, .adopted = true});
  EXPECT_FALSE(restore.Choose(view));
  EXPECT_EQ(restore.attempt()->group, 1u);
  view.groups[1].generation = 3;  // The group was formed again.
  EXPECT_TRUE(restore.Choose(view));
  EXPECT_EQ(restore.attempt()->group, 0u);
  EXPECT_TRUE(restore.asked.empty());
}

TEST(ShardRestoreTest, OpenRoundContinuesWhenItCloses) {
  ShardRestore::View view{.version = kVersion};
  view.groups = {{.group = 0, .generation = 1, .adopted = true, .contributed = true}};
  ShardRestore restore("lost");
  EXPECT_EQ(Chosen(restore, view).source, Source::kOpenRound);
  EXPECT_FALSE(restore.ready());
  restore.SetHollow(kVersion);
  EXPECT_TRUE(restore.ready());
  view.closing = view.complete = true;
  EXPECT_EQ(Chosen(restore, view), ShardRestore::Attempt{.hollow = kVersion});
  EXPECT_TRUE(restore.ready()) << "the contributions stay";
  // The round is committed by the other shards' answers.
  view.version = kVersion + 1;
  view.closing = false;
  EXPECT_FALSE(restore.Choose(view));
}

// The outer update of a closing round requires the values of the version before.
TEST(ShardRestoreTest, RunsWithAnOuterOptimizerBeginWithASeed) {
  ShardRestore::View view{.version = kVersion, .closing = true, .complete = true, .outer = true};
  view.groups = {{.group = 0, .generation = 1},
                 {.group = 1, .generation = 2, .adopted = true, .contributed = true}};
  ShardRestore restore("lost", kVersion);
  EXPECT_EQ(Chosen(restore, view).group, 1U);
  EXPECT_EQ(restore.attempt()->source, Source::kSeed);
  EXPECT_FALSE(restore.ready()) << "it must be hollow before the version";
  restore.Fail("one");
  EXPECT_EQ(Chosen(restore, view).group, 0U);
  restore.Fail("two");
  restore.Choose(view);
  EXPECT_FALSE(restore.attempt().has_value());

  ShardRestore with_values("has lost contributions", kVersion, /*has_values=*/true);
  EXPECT_EQ(Chosen(with_values, view), ShardRestore::Attempt{.hollow = kVersion});
  EXPECT_TRUE(with_values.ready());
}

TEST(ShardRestoreTest, CopyComesFirst) {
  ShardRestore::View view{.version = kVersion, .closing = true, .outer = true, .copy = kVersion};
  view.groups = {{.group = 0, .generation = 1, .adopted = true}};
  const auto copy = [](uint32_t version) {
    return ShardRestore::Attempt{.source = Source::kCopy, .hollow = version - 1};
  };
  ShardRestore restore("lost");
  EXPECT_EQ(Chosen(restore, view), copy(kVersion));
  EXPECT_EQ(restore.attempt()->round(), kVersion);
  restore.Fail("the copy is damaged");
  EXPECT_EQ(Chosen(restore, view).source, Source::kSeed);
  // The shard has made the version of the closing round.
  view.copy = kVersion + 1;
  ShardRestore later("lost");
  EXPECT_EQ(Chosen(later, view), copy(kVersion + 1));

  // It needs no copy of a version that it has.
  ShardRestore with_values("has lost contributions", kVersion, /*has_values=*/true);
  EXPECT_EQ(Chosen(with_values, view), copy(kVersion + 1));
  EXPECT_FALSE(with_values.ready()) << "it discards its values before it takes those of the copy";
  with_values.SetHollow(kVersion);
  EXPECT_TRUE(with_values.ready());
  // The copy remains the source when the version is committed meanwhile.
  view.closing = false;
  view.version = kVersion + 1;
  EXPECT_FALSE(with_values.Choose(view));
  view = {.version = kVersion, .closing = true, .complete = true, .outer = true, .copy = kVersion};
  ShardRestore other("has lost contributions", kVersion, /*has_values=*/true);
  EXPECT_EQ(Chosen(other, view).source, Source::kContributions);
}

TEST(ShardRestoreTest, VersionZeroHasNoSeeds) {
  ShardRestore::View view{.version = 0};
  view.groups = {{.group = 0, .generation = 1, .adopted = true}};
  ShardRestore restore("lost");
  EXPECT_EQ(Chosen(restore, view).source, Source::kOpenRound);
}

TEST(ShardRestoreTest, ShardIsMadeHollowAgainAfterAFailure) {
  ShardRestore::View view{.version = kVersion};
  view.groups = {{.group = 0, .generation = 1, .adopted = true},
                 {.group = 1, .generation = 2, .adopted = true}};
  ShardRestore restore("lost");
  EXPECT_EQ(Chosen(restore, view).group, 0U);
  restore.SetHollow(kVersion - 1);
  EXPECT_TRUE(restore.ready());
  restore.Fail("another digest");
  EXPECT_EQ(Chosen(restore, view).group, 1U);
  EXPECT_FALSE(restore.ready()) << "it holds a wrong version";
  restore.SetHollow(kVersion - 1);
  EXPECT_TRUE(restore.ready());
}

}  // namespace
}  // namespace cadre
