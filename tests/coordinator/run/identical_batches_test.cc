#include "coordinator/run/identical_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kBatch = 8;

// One of a group of programs; group 9 is not one.
bool IsProgram(uint32_t group) { return group != 9; }

// A round in which groups 0, 1, ... have these losses after `steps` steps, and differ.
v1::CommitRecord RoundOf(const std::vector<float>& losses, uint64_t steps = 2) {
  v1::CommitRecord commit;
  for (size_t group = 0; group < losses.size(); ++group) {
    commit.add_participants()->set_group(group);
    v1::ParticipantTimes& times = *commit.add_times();
    times.set_group(group);
    times.set_samples(steps * kBatch);
    times.set_loss(losses[group]);
    commit.set_samples(commit.samples() + times.samples());
  }
  v1::ShardDigest& shard = *commit.add_digests();
  shard.set_variance_between_groups(0.25);
  shard.set_displacement(1);
  return commit;
}

class IdenticalBatchesTest : public ::testing::Test {
 protected:
  std::vector<uint32_t> Commit(const v1::CommitRecord& commit) {
    return batches_.OnCommit(commit, kBatch, IsProgram);
  }
  // Commits the rounds of a run. Returns what the last one finds; those before must find nothing.
  std::vector<uint32_t> CommitAll(const std::vector<v1::CommitRecord>& rounds) {
    batches_ = IdenticalBatches();
    std::vector<uint32_t> found;
    for (const v1::CommitRecord& commit : rounds) {
      EXPECT_THAT(found, IsEmpty());
      found = Commit(commit);
    }
    return found;
  }
  IdenticalBatches batches_;
};

TEST_F(IdenticalBatchesTest, EqualContributionsThatMoveTheModel) {
  v1::CommitRecord commit = RoundOf({1, 2, 3}, /*steps=*/1);
  commit.mutable_digests(0)->set_variance_between_groups(0);
  EXPECT_THAT(Commit(commit), ElementsAre(0, 1, 2));
  commit.add_digests()->set_variance_between_groups(1e-300);
  EXPECT_THAT(Commit(commit), IsEmpty()) << "another shard has values that differ";
  commit.mutable_digests()->RemoveLast();
  commit.mutable_digests(0)->set_displacement(0);
  EXPECT_THAT(Commit(commit), IsEmpty()) << "nothing was learned";
}

TEST_F(IdenticalBatchesTest, ContributionsOfOthersAreNotJudged) {
  v1::CommitRecord commit = RoundOf({1, 2});
  commit.mutable_digests(0)->set_variance_between_groups(0);
  commit.mutable_participants(1)->set_group(9);
  EXPECT_THAT(Commit(commit), IsEmpty());
  commit.mutable_participants()->RemoveLast();
  EXPECT_THAT(Commit(commit), IsEmpty()) << "one group";
}

TEST_F(IdenticalBatchesTest, EqualLossesInFourRounds) {
  EXPECT_THAT(
      CommitAll({RoundOf({1, 3, 3}), RoundOf({1, 2, 2}), RoundOf({3, 2, 2}), RoundOf({4, 1, 1})}),
      ElementsAre(1, 2));
}

TEST_F(IdenticalBatchesTest, EqualLossesWithAnotherRoundBetweenThem) {
  EXPECT_THAT(CommitAll({RoundOf({1, 1}), RoundOf({2, 2}), RoundOf({3, 3}), RoundOf({4, 5}),
                         RoundOf({6, 6})}),
              IsEmpty());
}

TEST_F(IdenticalBatchesTest, FirstValuesOfARunAreEqual) {
  v1::CommitRecord commit = RoundOf({1, 2});
  commit.mutable_digests(0)->set_variance_between_groups(0);
  commit.set_samples(0);
  EXPECT_THAT(Commit(commit), IsEmpty());
  commit.set_samples(1);
  EXPECT_THAT(Commit(commit), ElementsAre(0, 1));
}

TEST_F(IdenticalBatchesTest, EqualContributionsOfSomeAreNotSeparable) {
  v1::CommitRecord commit = RoundOf({1, 2, 3});
  commit.mutable_digests(0)->set_variance_between_groups(0);
  commit.mutable_participants(2)->set_group(9);
  EXPECT_THAT(Commit(commit), IsEmpty()) << "group 9 is native";
}

// Rounds in which groups 1 and 9, which is native, or groups with different numbers of samples,
// have equal losses.
TEST_F(IdenticalBatchesTest, EqualLossesOfGroupsThatAreNotComparable) {
  const auto rounds_of = [](uint32_t native, uint64_t more_samples) {
    std::vector<v1::CommitRecord> rounds;
    for (int i = 1; i <= 5; ++i) {
      v1::CommitRecord& commit = rounds.emplace_back(RoundOf({1.0F * i, 10.0F * i, 10.0F * i}));
      commit.mutable_times(2)->set_group(9);
      commit.mutable_participants(2)->set_group(9);
      if (native == 1) commit.mutable_times()->SwapElements(1, 2);
      commit.mutable_times(2)->set_samples(commit.times(2).samples() + more_samples);
    }
    return rounds;
  };
  EXPECT_THAT(CommitAll(rounds_of(2, 0)), IsEmpty());
  EXPECT_THAT(CommitAll(rounds_of(1, 0)), IsEmpty());
  std::vector<v1::CommitRecord> rounds = rounds_of(2, 8);
  for (v1::CommitRecord& commit : rounds) {
    commit.mutable_times(2)->set_group(2);
    commit.mutable_participants(2)->set_group(2);
  }
  EXPECT_THAT(CommitAll(rounds), IsEmpty()) << "other numbers of samples";
}

TEST_F(IdenticalBatchesTest, NativeGroupOfALowerNumberIsNotComparedEither) {
  const auto is_program = [](uint32_t group) { return group != 0; };
  std::vector<uint32_t> found;
  for (int i = 1; i <= 4; ++i) {
    found = batches_.OnCommit(RoundOf({1.0F * i, 1.0F * i, 7}), kBatch, is_program);
  }
  EXPECT_THAT(found, IsEmpty());
}

TEST_F(IdenticalBatchesTest, LossThatHasChangedOnceIsTelling) {
  EXPECT_THAT(CommitAll({RoundOf({1, 1}), RoundOf({2, 2}), RoundOf({2, 2}), RoundOf({2, 2})}),
              ElementsAre(0, 1));
}

TEST_F(IdenticalBatchesTest, WarningIsRecognized) {
  EXPECT_TRUE(IsOfIdenticalBatches(IdenticalBatchesText({1, 2})));
  EXPECT_FALSE(IsOfIdenticalBatches("a disk is slow"));
}

TEST_F(IdenticalBatchesTest, LossesThatSayNothing) {
  const v1::CommitRecord constant = RoundOf({2.5, 2.5});
  EXPECT_THAT(CommitAll({constant, constant, constant, constant, constant}), IsEmpty());
  std::vector<v1::CommitRecord> zeros(5, RoundOf({0, 0}));
  zeros[0] = RoundOf({1, 1});
  EXPECT_THAT(CommitAll(zeros), IsEmpty()) << "everything is learned";
  std::vector<v1::CommitRecord> single;
  for (int i = 1; i <= 5; ++i) single.push_back(RoundOf({1.0F * i, 1.0F * i}, /*steps=*/1));
  EXPECT_THAT(CommitAll(single), IsEmpty()) << "losses of one step";
  std::vector<v1::CommitRecord> none(5, RoundOf({1, 1}));
  for (v1::CommitRecord& commit : none) {
    for (v1::ParticipantTimes& times : *commit.mutable_times()) times.clear_loss();
  }
  EXPECT_THAT(CommitAll(none), IsEmpty());
}

}  // namespace
}  // namespace cadre
