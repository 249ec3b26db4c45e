// What the screen decides about a round, what it records of groups, and which groups it distrusts.
#include "coordinator/run/round_screening.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/coordinator/run/fake_run.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RoundScreeningTest : public testing::RunPartTest {
 protected:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  RoundScreeningTest()
      : RunPartTest(R"(run: "run-1" state: RUN_STATE_RUNNING version: 3 step: 30 train_samples: 1000
                       spec { batch_per_group: 10 averaging { every_steps: 10 }
                              cluster { groups: 3 } stop { steps: 100 } }
                       shards: "agg-0")") {
    for (uint32_t group = 0; group < 3; ++group) {
      Slot slot("run-1", group, kStart);
      slot.Form(7 + group, {"w"}, v1::Plan(), kStart);
      slot.Start(3, 30, 40, false, kStart);
      run_.slots.Add(slot);
    }
    v1::CommitRecord newest;
    newest.set_round(3);
    run_.made.Load(newest, 3);
  }
  // Groups 0, 1, ... have contributed to round 4, and the shard has applied it. Their changes have
  // these squared lengths.
  void Close(const std::vector<double>& squared, uint32_t attempt = 1) {
    v1::CommitRecord commit;
    commit.set_run("run-1");
    commit.set_round(4);
    commit.set_attempt(attempt);
    for (uint32_t group = 0; group < squared.size(); ++group) {
      v1::Participant& participant = *commit.add_participants();
      participant.set_group(group);
      participant.set_generation(7 + group);
      participant.set_samples(100);
      v1::Contributed& claim = *commit.add_claims();
      claim.set_step(40);
      claim.set_samples(100);
    }
    run_.made.Begin(commit, 1);
    v1::Applied applied;
    applied.set_digest(1);
    for (const double value : squared) {
      applied.mutable_changes()->add_squared(value);
      applied.mutable_changes()->add_sampled_squared(1);
      applied.mutable_changes()->add_product(1);
    }
    applied.mutable_changes()->add_mean_squared(1);
    run_.made.Apply(applied);
  }
  const v1::CommitRecord& Closing() { return *run_.made.closing(); }
  const v1::GroupScreening& RecordOf(uint32_t group) { return record().screening().at(group); }
  // Round 4 is closed and screened.
  bool Screened(const std::vector<double>& squared) {
    Close(squared);
    return screening_.Screen();
  }

  RoundScreening screening_{run_, run_.stored, run_.slots, run_.made, cluster_};
};

TEST_F(RoundScreeningTest, UsualRoundStaysAsItIs) {
  EXPECT_FALSE(Screened({1, 1, 1}));
  EXPECT_EQ(Closing().attempt(), 1U);
  EXPECT_EQ(Counter("rounds_screened"), 0U);
}

TEST_F(RoundScreeningTest, RoundIsMadeAgainWithoutWhatIsLeftOut) {
  EXPECT_TRUE(Screened({1, kInfinity, 1}));
  EXPECT_EQ(Closing().attempt(), 2U);
  ASSERT_EQ(Closing().participants_size(), 2);
  EXPECT_EQ(Closing().samples(), 200U) << "what follows from the participants";
  EXPECT_EQ(Closing().step(), 40U);
  EXPECT_FALSE(run_.made.applied());
  EXPECT_EQ(Counter("rounds_screened"), 1U);
  EXPECT_EQ(Counter("refused_screened"), 1U);
  TakeSent();
  v1::CommitRecord stored;
  ASSERT_TRUE(stored.ParseFromString(store_.at(CommitKey("run-1", 4))));
  EXPECT_EQ(stored.attempt(), 2U);
  EXPECT_THAT(NewEvents(),
              ElementsAre(HasSubstr("the contribution of group 1 to round 4 was left out: ")));
  const v1::EventsReply events = cluster_.event_log().Read({});
  EXPECT_EQ(events.events().rbegin()->run(), "run-1");
  EXPECT_EQ(events.events().rbegin()->group(), 1U);
  EXPECT_EQ(RecordOf(1).screened(), 1U);
  EXPECT_EQ(RecordOf(1).left_out(), 1U);
  EXPECT_EQ(RecordOf(1).newest().round(), 4U);
  EXPECT_EQ(RecordOf(1).newest().generation(), 8U);
  EXPECT_TRUE(IsStored());
  EXPECT_EQ(run_.slots[1].refused_round, 4U);
  EXPECT_EQ(run_.slots[1].refusal, v1::REFUSAL_SCREENED);
  EXPECT_EQ(run_.slots[0].refused_round, 0U);
}

TEST_F(RoundScreeningTest, NothingOfARoundIsLeft) {
  run_.slots.RemoveLast();
  EXPECT_TRUE(Screened({kInfinity, kInfinity}));
  EXPECT_EQ(Closing().participants_size(), 0);
  EXPECT_EQ(Closing().restores(), 3U) << "the version is a copy of the one before";
  EXPECT_EQ(screening_.WhyEmpty(), "") << "it is not made yet";
  v1::Applied applied;
  run_.made.Apply(applied);
  run_.made.Finish();
  EXPECT_THAT(screening_.WhyEmpty(),
              AllOf(HasSubstr("nothing remains of round 4: group 0: "), HasSubstr("; group 1: ")));
}

TEST_F(RoundScreeningTest, CopyOfARollbackIsNoEmptyRound) {
  v1::CommitRecord copy;
  copy.set_round(4);
  copy.set_restores(2);
  v1::ScreenedChange& earlier = *copy.add_screened();
  earlier.set_round(3);
  run_.made.Load(copy, 4);
  EXPECT_EQ(screening_.WhyEmpty(), "");
  copy.set_attempt(2);
  run_.made.Load(copy, 4);
  EXPECT_EQ(screening_.WhyEmpty(), "nothing remains of round 4: ")
      << "what was screened in round 3 is not its reason";
}

TEST_F(RoundScreeningTest, RoundsThatAreNotScreened) {
  Close({1, kInfinity, 1}, /*attempt=*/0);
  EXPECT_FALSE(screening_.Screen()) << "a coordinator of an earlier build has begun it";
  Close({1, kInfinity, 1});
  v1::CommitRecord copy = Closing();
  copy.set_restores(2);
  run_.made.Load(copy, 3);
  EXPECT_FALSE(screening_.Screen()) << "a copy has no changes";
  copy.clear_restores();
  copy.mutable_claims()->RemoveLast();
  run_.made.Load(copy, 3);
  EXPECT_FALSE(screening_.Screen()) << "what the groups have claimed is lost";
  spec().mutable_averaging()->mutable_screen()->mutable_off();
  Close({1, kInfinity, 1});
  EXPECT_FALSE(screening_.Screen());
}

TEST_F(RoundScreeningTest, ClippedContributionCounts) {
  spec().mutable_averaging()->mutable_screen()->mutable_clip()->set_ratio(2);
  EXPECT_TRUE(Screened({1, 1, 16}));
  EXPECT_EQ(Closing().participants_size(), 3);
  EXPECT_EQ(Closing().participants(2).scale(), 0.5F);
  EXPECT_THAT(NewEvents(),
              ElementsAre(HasSubstr("of group 2 to round 4 was clipped to 0.5 of it: ")));
  EXPECT_EQ(RecordOf(2).screened(), 1U);
  EXPECT_EQ(RecordOf(2).left_out(), 0U);
  EXPECT_EQ(run_.slots[2].refused_round, 0U);
}

// The group is still listed; its generation that contributed is not.
TEST_F(RoundScreeningTest, AnotherGenerationIsNotRefused) {
  Slot& slot = run_.slots[1];
  slot.Clear("lost", kStart);
  slot.Form(20, {"w"}, v1::Plan(), kStart);
  EXPECT_TRUE(Screened({1, kInfinity, 1}));
  EXPECT_EQ(slot.refused_round, 0U);
  EXPECT_EQ(RecordOf(1).left_out(), 1U);
}

TEST_F(RoundScreeningTest, GroupThatWasScaledAwayHasNoSlot) {
  run_.slots[2].Clear("scaled", kStart);
  run_.slots.Update(run_.slots[2]);
  run_.slots.RemoveLast();
  EXPECT_TRUE(Screened({1, 1, kInfinity}));
  EXPECT_EQ(RecordOf(2).left_out(), 1U);
}

TEST_F(RoundScreeningTest, GroupIsDistrustedAfterThreeRoundsOfOneGeneration) {
  for (uint32_t round = 1; round <= 3; ++round) {
    EXPECT_THAT(screening_.MarkDistrusted(), IsEmpty());
    EXPECT_TRUE(Screened({1, kInfinity, 1}));
    EXPECT_EQ(RecordOf(1).left_out(), round);
  }
  const std::map<uint32_t, std::string> distrusted = screening_.MarkDistrusted();
  ASSERT_EQ(distrusted.size(), 1U);
  EXPECT_THAT(distrusted.at(1), HasSubstr("rounds have left out its contributions: "));
  EXPECT_EQ(RecordOf(1).left_out(), 0U);
  EXPECT_EQ(RecordOf(1).branch(), 3U) << "what its ranks have kept since is not used";
  EXPECT_THAT(screening_.MarkDistrusted(), IsEmpty());
}

TEST_F(RoundScreeningTest, NextGenerationIsNotDistrustedForTheOneBefore) {
  for (int round = 0; round < 3; ++round) Screened({1, kInfinity, 1});
  Slot& slot = run_.slots[1];
  slot.Clear("lost", kStart);
  run_.slots.Update(slot);
  EXPECT_THAT(screening_.MarkDistrusted(), IsEmpty()) << "it has ended";
  slot.Form(20, {"w"}, v1::Plan(), kStart);
  slot.Start(3, 30, 40, false, kStart);
  run_.slots.Update(slot);
  EXPECT_THAT(screening_.MarkDistrusted(), IsEmpty());
  Close({1, kInfinity, 1});
  v1::CommitRecord commit = Closing();
  commit.mutable_participants(1)->set_generation(20);
  run_.made.Load(commit, 3);
  EXPECT_TRUE(screening_.Screen());
  EXPECT_EQ(RecordOf(1).left_out(), 1U) << "counted by generation";
  EXPECT_EQ(RecordOf(1).screened(), 4U);
}

TEST_F(RoundScreeningTest, ContributionThatIsIncludedRestoresTrust) {
  for (int round = 0; round < 2; ++round) Screened({1, kInfinity, 1});
  v1::CommitRecord commit;
  commit.add_participants()->set_group(0);
  screening_.OnCommit(commit);
  EXPECT_EQ(RecordOf(1).left_out(), 2U);
  commit.add_participants()->set_group(1);
  screening_.OnCommit(commit);
  EXPECT_EQ(RecordOf(1).left_out(), 0U);
  EXPECT_FALSE(record().screening().contains(0));
}

TEST_F(RoundScreeningTest, RefusalTellsWhatWasLeftOut) {
  Screened({1, kInfinity, 1});
  EXPECT_EQ(screening_.WhyNotIncluded(run_.slots[1], 4), v1::REFUSAL_SCREENED);
  EXPECT_EQ(screening_.WhyNotIncluded(run_.slots[1], 3), v1::REFUSAL_CLOSED_ROUND);
  EXPECT_EQ(screening_.WhyNotIncluded(run_.slots[0], 4), v1::REFUSAL_CLOSED_ROUND);
}

// Only its own earlier changes tell which one of two groups is wrong.
TEST_F(RoundScreeningTest, StoredCommitsOfEightRoundsAreRemembered) {
  record().set_version(20);
  std::map<std::string, std::string> records;
  const auto store = [&](uint32_t round, double squared) {
    v1::CommitRecord commit;
    commit.set_round(round);
    commit.add_participants()->set_samples(100);
    commit.mutable_changes()->add_squared(squared);
    commit.mutable_changes()->add_sampled_squared(1);
    records[CommitKey("run-1", round)] = commit.SerializeAsString();
  };
  store(11, 1e20);
  store(21, 1e20);
  EXPECT_THAT(screening_.Load(records), IsOk());
  EXPECT_TRUE(Screened({1e8, 1, 1})) << "the changes of older rounds, and of the open one";
  RoundScreening restored(run_, run_.stored, run_.slots, run_.made, cluster_);
  store(12, 1e8);
  store(20, 1e8);
  EXPECT_THAT(restored.Load(records), IsOk());
  Close({1e8, 1, 1});
  EXPECT_FALSE(restored.Screen()) << "its changes have always been so long";
  records[CommitKey("run-1", 15)] = "\xff";
  EXPECT_THAT(restored.Load(records), IsError(kDataLoss, CommitKey("run-1", 15)));
}

}  // namespace
}  // namespace cadre
