// Which versions are kept, which groups load one, and to which ones a run can be rolled back.
#include "coordinator/run/run_versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/coordinator/run/fake_run.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr char kRunOfVersions[] = R"(
    run: "run-1" state: RUN_STATE_RUNNING version: 10 step: 100 kept: 10 kept: 9 kept: 4
    round_opened_ms: 7
    spec { batch_per_group: 8 stop { steps: 1000 } checkpoint { from_step: 5 }
           averaging { every_steps: 10 } cluster { groups: 2 } }
    shards: "agg-0")";

class RunVersionsTest : public testing::RunPartTest {
 protected:
  RunVersionsTest() : RunPartTest(kRunOfVersions) {
    for (const uint32_t version : {4U, 9U, 10U}) Load(version);
    for (uint32_t group = 0; group < 2; ++group) AddStarted(group);
    options_.keep_commits = 5;
  }
  void AddStarted(uint32_t group) {
    run_.slots.Add(Slot("run-1", group, kStart));
    Slot& slot = run_.slots[group];
    slot.Form(7 + group, {"w1"}, v1::Plan(), kStart);
    slot.Start(10, 100, 110, false, kStart);
    run_.slots.Update(slot);
  }
  static v1::CommitRecord CommitOf(uint32_t round) {
    v1::CommitRecord commit;
    commit.set_run("run-1");
    commit.set_round(round);
    commit.set_step(10 * round);
    commit.set_run_samples(1000 * round);
    v1::ShardDigest& digest = *commit.add_digests();
    digest.set_digest(100 + round);
    return commit;
  }
  void Load(uint32_t version) {
    run_.made.Load(CommitOf(version), record().version());
    store_[CommitKey("run-1", version)] = "commit";
  }
  bool HasCommit(uint32_t version) {
    TakeSent();
    return store_.contains(CommitKey("run-1", version));
  }
  std::vector<uint32_t> KeptRecord() { return {record().kept().begin(), record().kept().end()}; }

  RunVersions versions_{run_, run_.stored, cluster_, options_};
};

TEST_F(RunVersionsTest, KeptVersionsHaveACommit) {
  record().add_kept(2);
  EXPECT_THAT(versions_.Kept(), ElementsAre(10, 9, 4));
  EXPECT_THAT(versions_.CheckKept(4), IsOk());
  EXPECT_THAT(versions_.CheckKept(2),
              IsError(absl::StatusCode::kFailedPrecondition,
                      "version 2 of run run-1 is not kept; those that are kept: 10, 9, 4"));
  record().clear_kept();
  for (const uint32_t version : {4U, 10U, 9U}) record().add_kept(version);
  EXPECT_THAT(versions_.Kept(), ElementsAre(10, 9, 4)) << "the newest first";
  record().clear_kept();
  EXPECT_THAT(versions_.CheckKept(9),
              IsError(absl::StatusCode::kFailedPrecondition, "not kept; no version is"));
}

TEST_F(RunVersionsTest, ClosingCommitDiscardsVersions) {
  v1::CommitRecord next = CommitOf(11);
  run_.made.Begin(next, 1);
  EXPECT_THAT(versions_.Kept(), ElementsAre(10));
  next.add_keep(4);
  run_.made.Begin(next, 1);
  EXPECT_THAT(versions_.Kept(), ElementsAre(10, 4));
}

TEST_F(RunVersionsTest, ShardThatOpensShowsWhatIsKept) {
  const auto opened = [&](uint32_t version, uint64_t digest) {
    v1::RunOpened opened;
    opened.set_version(version);
    opened.set_digest(digest);
    for (const auto& [other, other_digest] : {std::pair{9U, 109U}, {4U, 104U}}) {
      v1::KeptVersion& kept = *opened.add_kept();
      kept.set_version(other);
      kept.set_digest(other_digest);
    }
    return opened;
  };
  versions_.OnOpened(opened(10, 110));
  EXPECT_THAT(KeptRecord(), ElementsAre(10, 9, 4));
  v1::RunOpened hollow = opened(10, 0);
  hollow.set_hollow(true);
  versions_.OnOpened(hollow);
  EXPECT_THAT(KeptRecord(), ElementsAre(10, 9, 4)) << "the newest version will be restored";
  v1::RunOpened wrong = opened(10, 110);
  wrong.mutable_kept(1)->set_digest(1);
  versions_.OnOpened(wrong);
  EXPECT_THAT(KeptRecord(), ElementsAre(10, 9)) << "the shard has other values of version 4";
  EXPECT_FALSE(HasCommit(4));
  EXPECT_TRUE(IsStored());
  v1::RunOpened lacking = opened(10, 110);
  lacking.clear_kept();
  versions_.OnOpened(lacking);
  EXPECT_THAT(KeptRecord(), ElementsAre(10));
  EXPECT_TRUE(HasCommit(9)) << "the newest five commits remain";
  record().add_kept(2);
  versions_.OnOpened(opened(10, 110));
  EXPECT_THAT(KeptRecord(), ElementsAre(10)) << "without a commit, its digest is not known";
}

TEST_F(RunVersionsTest, ShardThatIsAheadKeepsTheNewestVersion) {
  v1::RunOpened ahead;
  ahead.set_version(11);
  ahead.set_digest(111);
  v1::KeptVersion& kept = *ahead.add_kept();
  kept.set_version(10);
  kept.set_digest(110);
  versions_.OnOpened(ahead);
  EXPECT_THAT(KeptRecord(), ElementsAre(10));
  kept.set_digest(109);
  versions_.OnOpened(ahead);
  EXPECT_THAT(KeptRecord(), IsEmpty());
}

TEST_F(RunVersionsTest, CommitKeepsTheNewestTwoAndThoseItNames) {
  record().set_version(11);
  Load(11);
  v1::CommitRecord commit = CommitOf(11);
  versions_.OnCommit(commit);
  EXPECT_THAT(KeptRecord(), ElementsAre(11, 10));
  EXPECT_FALSE(HasCommit(4));
  EXPECT_TRUE(HasCommit(9)) << "one of the newest five";
  store_[CommitKey("run-1", 6)] = "commit";
  versions_.OnCommit(commit);
  EXPECT_FALSE(HasCommit(6)) << "that of the sixth newest version is not needed any more";
}

TEST_F(RunVersionsTest, CommitOfAKeptVersionIsNotErased) {
  record().set_version(9);
  record().clear_kept();
  record().add_kept(8);
  record().add_kept(4);
  v1::CommitRecord commit = CommitOf(9);
  commit.add_keep(4);
  versions_.OnCommit(commit);
  EXPECT_THAT(KeptRecord(), ElementsAre(9, 8, 4));
  EXPECT_TRUE(HasCommit(4)) << "it is kept";
}

// A shard was restored from a copy of the newest version.
TEST_F(RunVersionsTest, RestoredShardHasOneVersion) {
  record().set_version(9);
  record().clear_kept();
  for (const uint32_t version : {9, 8, 4}) record().add_kept(version);
  versions_.LoseOthers(9);
  EXPECT_THAT(KeptRecord(), ElementsAre(9));
  EXPECT_FALSE(HasCommit(4));
}

TEST_F(RunVersionsTest, TwoCommitsRemainAtLeast) {
  options_.keep_commits = 0;
  record().set_version(10);
  versions_.OnCommit(CommitOf(10));
  versions_.Lose(9);
  EXPECT_TRUE(HasCommit(9));
  versions_.Lose(4);
  EXPECT_FALSE(HasCommit(4));
  store_[CommitKey("run-1", 8)] = "commit";
  versions_.OnCommit(CommitOf(10));
  EXPECT_FALSE(HasCommit(8));
}

TEST_F(RunVersionsTest, RebuiltRecordKeepsItsVersionOnly) {
  versions_.Reset();
  EXPECT_THAT(KeptRecord(), ElementsAre(10));
}

TEST_F(RunVersionsTest, GroupLoadsUntilItHasTheVersion) {
  versions_.SetLoading(1, 9);
  EXPECT_TRUE(versions_.IsLoading(1));
  EXPECT_FALSE(versions_.IsLoading(0));
  versions_.OnLoaded(1, 8);
  EXPECT_TRUE(versions_.IsLoading(1));
  versions_.OnLoaded(1, 9);
  EXPECT_FALSE(versions_.IsLoading(1));
  versions_.SetLoading(1, 9);
  versions_.OnLoaded(1, 10);
  EXPECT_FALSE(versions_.IsLoading(1));
}

// The record is stored with a new order only.
TEST_F(RunVersionsTest, RepeatedOrderToLoadIsNotNew) {
  EXPECT_TRUE(versions_.SetLoading(1, 9));
  EXPECT_FALSE(versions_.SetLoading(1, 9));
  EXPECT_TRUE(versions_.SetLoading(1, 10));
  EXPECT_THAT(versions_.loading(), ElementsAre(Pair(1, 10)));
  EXPECT_TRUE(versions_.SetLoading(0, 10));
}

// Version 4 is neither one of the newest two after the next round nor one of the policy.
TEST_F(RunVersionsTest, VersionThatAGroupLoadsIsKept) {
  EXPECT_THAT(versions_.LoadsThatEnd({}), IsEmpty());
  EXPECT_EQ(versions_.AwaitsLoadsUntil({}), absl::InfinitePast());
  versions_.SetLoading(1, 4);
  v1::CommitRecord next = CommitOf(11);
  versions_.SetKeep({}, next);
  EXPECT_THAT(next.keep(), ElementsAre(4));
  EXPECT_THAT(versions_.LoadsThatEnd({}), IsEmpty());
  // A group that is away longer than its wait, or has stopped, keeps nothing.
  versions_.SetKeep({{1, kStart + absl::Seconds(1)}}, next);
  EXPECT_THAT(next.keep(), ElementsAre(4));
  versions_.SetKeep({{1, kStart}}, next);
  EXPECT_THAT(next.keep(), IsEmpty());
  versions_.SetKeep({{0, kStart}}, next);
  EXPECT_THAT(next.keep(), ElementsAre(4)) << "another group is away";
  // Nor does one that is not started: the order to load is one of its last generation.
  run_.slots[1].Clear("ended", kStart);
  run_.slots.Update(run_.slots[1]);
  versions_.SetKeep({}, next);
  EXPECT_THAT(next.keep(), IsEmpty());
}

TEST_F(RunVersionsTest, RoundWaitsForGroupsWhoseVersionItWouldDiscard) {
  // Two versions are kept for such groups; this one is the third.
  for (const uint32_t version : {2U, 3U}) Load(version);
  AddStarted(2);
  versions_.SetLoading(0, 2);
  versions_.SetLoading(1, 3);
  versions_.SetLoading(2, 4);
  EXPECT_THAT(versions_.LoadsThatEnd({}), ElementsAre(Pair(2, 4)));
  EXPECT_EQ(versions_.AwaitsLoadsUntil({}), run_.current.ClosesAt(0, {}) + run_.current.Grace());
  versions_.EndLoading(1);
  EXPECT_THAT(versions_.LoadsThatEnd({}), IsEmpty());
}

TEST_F(RunVersionsTest, RollbackThatWaitsKeepsItsVersion) {
  record().set_rollback(4);
  v1::CommitRecord next = CommitOf(11);
  versions_.SetKeep({}, next);
  EXPECT_THAT(next.keep(), ElementsAre(4));
  versions_.SetLoading(1, 4);
  versions_.SetKeep({}, next);
  EXPECT_THAT(next.keep(), ElementsAre(4)) << "once";
  versions_.EndLoading();
  record().set_rollback(10);
  versions_.SetKeep({}, next);
  EXPECT_THAT(next.keep(), IsEmpty()) << "the version before the next is kept in any case";
  record().set_rollback(3);
  versions_.SetKeep({}, next);
  EXPECT_THAT(next.keep(), IsEmpty()) << "the version has been lost";
}

TEST_F(RunVersionsTest, RollbacksThatAreRefused) {
  EXPECT_THAT(versions_.CheckRollback(4, {}), IsOk());
  EXPECT_THAT(versions_.CheckRollback(3, {}),
              IsError(absl::StatusCode::kFailedPrecondition, "not kept"));
  record().set_state(v1::RUN_STATE_STOPPED);
  EXPECT_THAT(versions_.CheckRollback(4, {}),
              IsError(absl::StatusCode::kFailedPrecondition, "has ended (stopped)"));
  record().set_state(v1::RUN_STATE_RUNNING);
  spec().mutable_averaging()->set_every_steps(0);
  EXPECT_THAT(versions_.CheckRollback(4, {}),
              IsError(absl::StatusCode::kFailedPrecondition, "never averages"));
}

TEST_F(RunVersionsTest, GroupsThatARollbackMayLeaveOut) {
  EXPECT_THAT(versions_.CheckRollback(4, {1}), IsOk());
  EXPECT_THAT(versions_.CheckRollback(4, {0}), IsOk());
  EXPECT_THAT(versions_.CheckRollback(4, {2}),
              IsError(kInvalidArgument, "run run-1 has no group 2, but groups 0 to 1"));
  EXPECT_THAT(versions_.CheckRollback(4, {0, 1, 1}),
              IsError(kInvalidArgument,
                      "0 groups would remain, less than averaging.min_groups of "
                      "run run-1 (1): no round would close"));
  record().set_scaling_to(3);
  EXPECT_THAT(versions_.CheckRollback(4, {2, 2}), IsOk()) << "the run will have three groups";
  spec().mutable_averaging()->set_quorum(2);
  EXPECT_THAT(versions_.CheckRollback(4, {2}), IsOk());
  EXPECT_THAT(versions_.CheckRollback(4, {1, 2}),
              IsError(kInvalidArgument, "1 groups would remain, less than averaging.quorum"));
  spec().mutable_averaging()->set_quorum(0);
  spec().mutable_averaging()->set_min_groups(3);
  EXPECT_THAT(versions_.CheckRollback(4, {}), IsOk());
  EXPECT_THAT(versions_.CheckRollback(4, {1}),
              IsError(kInvalidArgument, "2 groups would remain, less than averaging.min_groups"));
  spec().mutable_averaging()->set_min_groups(0);
  spec().mutable_checkpoint()->set_directory("/checkpoints");
  EXPECT_THAT(versions_.CheckRollback(4, {0}), IsOk()) << "another group writes the checkpoints";
}

TEST_F(RunVersionsTest, RollbackIsARoundThatCopiesAVersion) {
  versions_.OrderRollback(4, {1, 0, 1});
  EXPECT_EQ(record().rollback(), 4U);
  EXPECT_THAT(record().left_out(), ElementsAre(0, 1));
  const v1::CommitRecord commit = versions_.TakeRollback();
  EXPECT_EQ(commit.run(), "run-1");
  EXPECT_EQ(commit.round(), 11U);
  EXPECT_EQ(commit.restores(), 4U);
  EXPECT_EQ(commit.step(), 40U);
  EXPECT_EQ(commit.run_samples(), 4000U);
  EXPECT_FALSE(commit.has_loss());
  EXPECT_EQ(commit.opened_ms(), 7);
  EXPECT_EQ(commit.closed_ms(), absl::ToUnixMillis(kStart));
  EXPECT_EQ(commit.division().groups(), 2U);
  EXPECT_EQ(commit.division().step(), 5U) << "the division is that of the beginning";
  EXPECT_FALSE(record().has_rollback());
  EXPECT_EQ(record().branch(), 11U);
  EXPECT_TRUE(IsStored());
}

TEST_F(RunVersionsTest, CopyOfTheInitialModelBeginsAtTheFirstStep) {
  v1::CommitRecord initial = CommitOf(0);
  initial.set_step(77);
  run_.made.Load(initial, 10);
  record().set_rollback(0);
  EXPECT_EQ(versions_.TakeRollback().step(), 5U);
}

TEST_F(RunVersionsTest, CopyHasTheDivisionOfItsVersion) {
  v1::CommitRecord to = CommitOf(4);
  to.set_loss(0.5F);
  to.mutable_division()->set_groups(3);
  to.mutable_division()->set_step(20);
  to.mutable_division()->set_position(480);
  run_.made.Load(to, 10);
  record().mutable_division()->set_groups(3);
  record().set_rollback(4);
  v1::CommitRecord commit = versions_.TakeRollback();
  EXPECT_EQ(commit.loss(), 0.5F);
  EXPECT_EQ(commit.division().DebugString(), to.division().DebugString());
  record().set_rollback(4);
  record().set_scaling_to(2);
  commit = versions_.TakeRollback();
  EXPECT_EQ(commit.division().groups(), 2U);
  EXPECT_EQ(commit.division().step(), 40U) << "divided anew from the step of the version on";
}

}  // namespace
}  // namespace cadre
