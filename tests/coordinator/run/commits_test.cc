// The commit that is being applied, the newest one and those that are kept: what they include.
#include "coordinator/run/commits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "tests/base/expect.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::CommitRecord CommitOf(uint32_t round, const std::vector<uint32_t>& groups = {}) {
  v1::CommitRecord commit;
  commit.set_round(round);
  for (const uint32_t group : groups) {
    v1::Participant& participant = *commit.add_participants();
    participant.set_group(group);
    participant.set_generation(10 + group);
    participant.set_samples(64);
    commit.add_claims()->mutable_place()->set_group(group);
    commit.add_times()->set_group(group);
  }
  return commit;
}

class CommitsTest : public ::testing::Test {
 protected:
  bool Apply(uint32_t shard, uint64_t digest) {
    v1::Applied applied;
    applied.set_shard(shard);
    applied.set_digest(digest);
    return commits_.Apply(applied);
  }
  // Makes a version of these groups.
  void Make(const v1::CommitRecord& commit) {
    commits_.Begin(commit, 2);
    Apply(0, 10 * commit.round());
    Apply(1, 10 * commit.round() + 1);
    commits_.Finish();
  }
  void Make(uint32_t round, const std::vector<uint32_t>& groups) { Make(CommitOf(round, groups)); }

  Commits commits_;
};

TEST_F(CommitsTest, RoundIsAppliedShardByShard) {
  EXPECT_FALSE(commits_.newest().has_value());
  commits_.Begin(CommitOf(1, {0}), 2);
  EXPECT_FALSE(commits_.applied());
  EXPECT_EQ(commits_.closing()->digests(1).shard(), 1U);
  EXPECT_TRUE(Apply(1, 11));
  EXPECT_FALSE(Apply(1, 12)) << "a duplicate";
  EXPECT_FALSE(commits_.applied());
  EXPECT_TRUE(Apply(0, 10));
  EXPECT_TRUE(commits_.applied());
  commits_.Revoke(1);
  EXPECT_FALSE(commits_.applied());
  EXPECT_EQ(commits_.closing()->digests(1).shard(), 1U);
  EXPECT_EQ(commits_.closing()->digests(1).digest(), 0U);
  Apply(1, 11);
  const v1::CommitRecord& made = commits_.Finish();
  EXPECT_TRUE(made.committed());
  EXPECT_EQ(made.digest(), 21U);
  EXPECT_EQ(made.claims_size(), 0);
  EXPECT_FALSE(commits_.closing().has_value());
  EXPECT_EQ(commits_.newest()->round(), 1U);
  EXPECT_EQ(commits_.ShardDigest(1), 11U);
  EXPECT_EQ(commits_.ShardDigest(2), std::nullopt);
}

TEST_F(CommitsTest, WhatAShardReportsIsRecorded) {
  commits_.Begin(CommitOf(1, {0}), 1);
  EXPECT_TRUE(commits_.Apply(Parse<v1::Applied>(R"(
      shard: 0 digest: 5 variance_between_groups: 2 displacement: 3 outer {} residual {}
      changes { squared: 4 sampled_squared: 1 product: 1 mean_squared: 1 })")));
  const v1::ShardDigest& digest = commits_.closing()->digests(0);
  EXPECT_EQ(digest.variance_between_groups(), 2);
  EXPECT_EQ(digest.displacement(), 3);
  EXPECT_TRUE(digest.has_outer());
  EXPECT_TRUE(digest.has_residual());
  EXPECT_TRUE(digest.has_changes());
  const v1::CommitRecord& made = commits_.Finish();
  EXPECT_THAT(made.changes().squared(), ElementsAre(4));
  EXPECT_FALSE(made.digests(0).has_changes());
  commits_.Begin(CommitOf(2, {0}), 1);
  Apply(0, 1);
  EXPECT_FALSE(commits_.closing()->digests(0).has_outer());
  EXPECT_FALSE(commits_.closing()->digests(0).has_residual());
  EXPECT_FALSE(commits_.closing()->digests(0).has_changes());
}

TEST_F(CommitsTest, GroupsThatDoNotTakePartKeepWhatWasIncluded) {
  Make(1, {0, 1});
  Make(2, {1});
  EXPECT_EQ(commits_.IncludedOf(0)->round(), 1U);
  EXPECT_EQ(commits_.IncludedOf(1)->round(), 2U);
  EXPECT_EQ(commits_.IncludedOf(2), nullptr);
  EXPECT_TRUE(commits_.Includes(0, 10, 1));
  EXPECT_FALSE(commits_.Includes(0, 10, 2));
  EXPECT_FALSE(commits_.Includes(0, 11, 1)) << "another generation";
  EXPECT_TRUE(commits_.Includes(1, 11, 2));
  EXPECT_FALSE(commits_.Includes(2, 12, 2));
}

TEST_F(CommitsTest, CopyIncludesWhatItsOriginalIncludes) {
  Make(1, {0});
  v1::CommitRecord second = CommitOf(2, {1});
  second.add_keep(1);
  Make(second);
  v1::CommitRecord copy = CommitOf(3);
  copy.set_restores(1);
  Make(copy);
  EXPECT_TRUE(commits_.Includes(0, 10, 1));
  EXPECT_EQ(commits_.IncludedOf(1), nullptr);
}

TEST_F(CommitsTest, ContributionsToTheClosingRound) {
  EXPECT_FALSE(commits_.InClosing(0, 10));
  commits_.Begin(CommitOf(1, {0}), 2);
  EXPECT_TRUE(commits_.InClosing(0, 10));
  EXPECT_FALSE(commits_.InClosing(0, 9));
  EXPECT_FALSE(commits_.InClosing(1, 11));
  EXPECT_FALSE(commits_.Includes(0, 10, 1)) << "there is no version yet";
  commits_.Abandon();
  EXPECT_FALSE(commits_.closing().has_value());
}

TEST_F(CommitsTest, ScreenedContributionsAreTakenOut) {
  commits_.Begin(CommitOf(1, {0, 1, 2}), 2);
  Apply(0, 10);
  Apply(1, 11);
  v1::ScreenedChange left_out;
  left_out.set_group(1);
  left_out.set_generation(11);
  left_out.set_round(1);
  v1::ScreenedChange clipped = left_out;
  clipped.set_group(2);
  clipped.set_scale(0.5F);
  int participants = 0;
  commits_.Screen({left_out, clipped}, [&](v1::CommitRecord& commit) {
    participants = commit.participants_size();
    commit.set_samples(128);
  });
  EXPECT_EQ(participants, 2);
  const v1::CommitRecord& closing = *commits_.closing();
  EXPECT_EQ(closing.attempt(), 1U);
  EXPECT_EQ(closing.samples(), 128U);
  ASSERT_EQ(closing.participants_size(), 2);
  EXPECT_EQ(closing.participants(0).group(), 0U);
  EXPECT_EQ(closing.participants(0).scale(), 0);
  EXPECT_EQ(closing.participants(1).group(), 2U);
  EXPECT_EQ(closing.participants(1).scale(), 0.5F);
  ASSERT_EQ(closing.claims_size(), 2);
  EXPECT_EQ(closing.claims(1).place().group(), 2U);
  ASSERT_EQ(closing.times_size(), 2);
  EXPECT_EQ(closing.times(1).group(), 2U);
  EXPECT_FALSE(commits_.InClosing(1, 11));
  EXPECT_TRUE(commits_.InClosing(2, 12));
  EXPECT_FALSE(commits_.applied()) << "it is made again";
  EXPECT_FALSE(closing.digests(0).applied());
  EXPECT_TRUE(commits_.LeavesOut(1, 11, 1));
  EXPECT_FALSE(commits_.LeavesOut(1, 12, 1));
  EXPECT_FALSE(commits_.LeavesOut(1, 11, 2));
  EXPECT_FALSE(commits_.LeavesOut(2, 11, 1)) << "clipped";
  EXPECT_FALSE(commits_.LeavesOut(0, 10, 1));
  EXPECT_EQ(commits_.ScreenedOf(0), nullptr);
  EXPECT_EQ(commits_.ScreenedOf(2)->scale(), 0.5F);
}

TEST_F(CommitsTest, NewestScreenedContributionIsCarriedAlong) {
  EXPECT_EQ(commits_.ScreenedOf(1), nullptr);
  commits_.Begin(CommitOf(1, {0, 1}), 2);
  v1::ScreenedChange change;
  change.set_group(1);
  change.set_round(1);
  commits_.Screen({change}, [](v1::CommitRecord&) {});
  Apply(0, 1);
  Apply(1, 1);
  commits_.Finish();
  Make(2, {0, 1});
  EXPECT_EQ(commits_.ScreenedOf(1)->round(), 1U);
  commits_.Begin(CommitOf(3, {0, 1}), 2);
  EXPECT_EQ(commits_.ScreenedOf(1)->round(), 1U);
  change.set_round(3);
  commits_.Screen({change}, [](v1::CommitRecord&) {});
  EXPECT_EQ(commits_.closing()->screened_size(), 1);
  EXPECT_EQ(commits_.ScreenedOf(1)->round(), 3U);
  EXPECT_EQ(commits_.ScreenedOf(0), nullptr);
}

TEST_F(CommitsTest, CommitsOfKeptVersionsAreFound) {
  v1::CommitRecord initial = CommitOf(0);
  initial.add_digests()->set_digest(7);
  EXPECT_EQ(commits_.SetInitial(initial).digest(), 7U);
  EXPECT_TRUE(commits_.newest()->committed());
  Make(1, {0});
  EXPECT_EQ(commits_.DigestOf(0), 7U);
  v1::CommitRecord second = CommitOf(2, {0});
  second.add_keep(0);
  Make(second);
  EXPECT_EQ(commits_.Find(2)->round(), 2U);
  EXPECT_EQ(commits_.Find(1)->round(), 1U);
  EXPECT_EQ(commits_.Find(0)->round(), 0U);
  EXPECT_EQ(commits_.Find(3), nullptr);
  Make(3, {0});
  EXPECT_EQ(commits_.Find(0), nullptr);
  EXPECT_EQ(commits_.Find(1), nullptr);
  EXPECT_EQ(commits_.DigestOf(1), std::nullopt);
  EXPECT_EQ(commits_.DigestOf(2), 41U);
}

TEST_F(CommitsTest, LoadedCommits) {
  commits_.Load(CommitOf(4), 4);
  commits_.Load(CommitOf(5), 4);
  commits_.Load(CommitOf(2), 4);
  EXPECT_EQ(commits_.newest()->round(), 4U);
  EXPECT_EQ(commits_.closing()->round(), 5U);
  EXPECT_NE(commits_.Find(2), nullptr);
  EXPECT_EQ(commits_.Find(5), nullptr);
}

TEST_F(CommitsTest, ShardMustHaveTheRecordedDigest) {
  v1::Applied applied;
  applied.set_round(1);
  applied.set_digest(10);
  EXPECT_TRUE(commits_.Agrees(applied)) << "none is known";
  Make(1, {0});
  EXPECT_TRUE(commits_.Agrees(applied));
  applied.set_digest(9);
  EXPECT_FALSE(commits_.Agrees(applied));
  commits_.Begin(CommitOf(2, {0}), 2);
  EXPECT_FALSE(commits_.Agrees(applied)) << "of the newest version";
  applied.set_round(2);
  EXPECT_TRUE(commits_.Agrees(applied)) << "it is the first to tell";
  Apply(0, 20);
  EXPECT_FALSE(commits_.Agrees(applied));
  applied.set_digest(20);
  EXPECT_TRUE(commits_.Agrees(applied));
}

TEST_F(CommitsTest, AttemptsOfOlderBuildsAreTheFirst) {
  v1::Applied applied;
  v1::CommitRecord closing;
  EXPECT_EQ(AttemptOf(applied, closing), 0U) << "of a coordinator that makes one only";
  closing.set_attempt(3);
  EXPECT_EQ(AttemptOf(applied, closing), 1U);
  applied.set_attempt(2);
  EXPECT_EQ(AttemptOf(applied, closing), 2U);
}

// ---- The policy

class KeptByTest : public CommitsTest {
 protected:
  // Versions 0 to `newest` are known.
  void LoadUpTo(uint32_t newest) {
    for (uint32_t version = 0; version <= newest; ++version) {
      commits_.Load(CommitOf(version), newest);
    }
  }
  std::vector<uint32_t> KeptBy(const v1::CommitRecord& next, uint32_t every, uint32_t count,
                               const std::set<uint32_t>& loaded = {}) {
    return commits_.KeptBy(next, {.every = every, .count = count}, loaded);
  }
};

TEST_F(KeptByTest, NewestMultiples) {
  LoadUpTo(12);
  EXPECT_THAT(KeptBy(CommitOf(13), 4, 2), ElementsAre(8, 4)) << "the newest two remain anyway";
  EXPECT_THAT(KeptBy(CommitOf(13), 5, 1), ElementsAre(10));
  EXPECT_THAT(KeptBy(CommitOf(13), 1, 0), IsEmpty());
}

// Versions between a copy and its original are on a branch that the run has left.
TEST_F(KeptByTest, VersionsOfABranchThatWasLeftAreNotKept) {
  LoadUpTo(6);
  v1::CommitRecord copy = CommitOf(7);
  copy.set_restores(3);
  EXPECT_THAT(KeptBy(copy, 1, 2), ElementsAre(3, 2));
  commits_.Load(copy, 7);
  commits_.Load(CommitOf(6), 7);
  EXPECT_THAT(KeptBy(CommitOf(8), 1, 2), ElementsAre(3, 2)) << "the newest one is the copy";
  commits_.Load(CommitOf(8), 8);
  commits_.Load(copy, 8);
  EXPECT_THAT(KeptBy(CommitOf(9), 1, 3), ElementsAre(7, 3, 2)) << "an older one is the copy";
  v1::CommitRecord again = CommitOf(9);
  again.set_restores(2);
  EXPECT_THAT(KeptBy(again, 1, 3), ElementsAre(2, 1, 0));
}

TEST_F(KeptByTest, LoadedVersionsArePinned) {
  LoadUpTo(9);
  EXPECT_THAT(KeptBy(CommitOf(10), 4, 1, {3}), ElementsAre(8, 3));
  EXPECT_THAT(KeptBy(CommitOf(10), 4, 1, {8, 9, 10}), ElementsAre(8)) << "kept anyway";
  EXPECT_THAT(KeptBy(CommitOf(10), 4, 0, {1, 2, 3}), ElementsAre(1, 2)) << "two at most";
  EXPECT_THAT(KeptBy(CommitOf(10), 4, 0, {11, 3}), ElementsAre(3));
  Commits lacking;
  lacking.Load(CommitOf(9), 9);
  EXPECT_THAT(lacking.KeptBy(CommitOf(10), {.every = 4, .count = 1}, {3}), IsEmpty())
      << "no shard has version 3";
}

TEST(CommitRecordTest, SumsOfAllShardsAreRecorded) {
  const auto commit = Parse<v1::CommitRecord>(R"(
      outer {} down {}
      digests { outer { change_squared: 1 momentum_squared: 2 product: 3 }
                residual { change_squared: 4 residual_squared: 5 } }
      digests { outer { change_squared: 10 momentum_squared: 20 product: 30 }
                residual { change_squared: 40 residual_squared: 50 } })");
  v1::RunRecord run;
  RecordOuter(commit, run);
  RecordResidual(commit, run);
  EXPECT_EQ(run.outer().change_squared(), 11);
  EXPECT_EQ(run.outer().momentum_squared(), 22);
  EXPECT_EQ(run.outer().product(), 33);
  EXPECT_EQ(run.residual().change_squared(), 44);
  EXPECT_EQ(run.residual().residual_squared(), 55);
  RecordOuter({}, run);
  RecordResidual({}, run);
  EXPECT_EQ(run.outer().product(), 33) << "a round without an outer optimizer has none";
  EXPECT_EQ(run.residual().change_squared(), 44);
}

TEST(CommitRecordTest, NewestTwoAreKept) {
  v1::CommitRecord commit = CommitOf(10);
  commit.add_keep(4);
  EXPECT_TRUE(Keeps(commit, 10));
  EXPECT_TRUE(Keeps(commit, 9));
  EXPECT_FALSE(Keeps(commit, 8));
  EXPECT_TRUE(Keeps(commit, 4));
}

}  // namespace
}  // namespace cadre
