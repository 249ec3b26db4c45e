// When another group takes the place of the one that writes the checkpoints.
#include "coordinator/run/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/run/group_planner.h"
#include "tests/coordinator/run/fake_run.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kSavedRun[] = R"(
    run: "run-1" state: RUN_STATE_RUNNING version: 3 step: 30 started_ms: 1000000
    train_samples: 100
    spec { batch_per_group: 10 averaging { every_steps: 10 } checkpoint { directory: "/saved" }
           cluster { groups: 3 ranks_per_group: 1 } stop { steps: 100 } }
    shards: "agg-0")";

// Three slots; group 0 writes the checkpoints. The worker of group 1 is w1.
class CheckpointWriterTest : public testing::RunPartTest {
 protected:
  CheckpointWriterTest() : RunPartTest(kSavedRun) {
    for (uint32_t group = 0; group < 3; ++group) run_.slots.Add(Slot("run-1", group, kStart));
  }
  void Start(uint32_t group, bool own_loop = false) {
    const std::string worker = absl::StrCat("w", group);
    if (cluster_.members().Find(worker) == nullptr) {
      cluster_.members().Place(AddMember(v1::ROLE_WORKER, worker), v1::RankSlot());
    }
    v1::Plan plan;
    plan.set_own_loop(own_loop);
    slot(group).Form(7 + group, {worker}, plan, kStart);
    slot(group).Start(3, 30, 40, false, kStart);
    slot(group).version = 3;
    run_.slots.Update(slot(group));
  }
  void End(uint32_t group, absl::Time now) {
    slot(group).Clear("lost", now);
    run_.slots.Update(slot(group));
  }
  Slot& slot(uint32_t group) { return run_.slots[group]; }
  // Whether group 1 would take the place at this time, which does not go back. Nothing changes.
  bool MayTake(absl::Time now) {
    const uint32_t writer = record().checkpoint_writer();
    cluster_.Begin(now);
    const bool taken = writer_.Take(slot(1));
    record().set_checkpoint_writer(writer);
    return taken;
  }
  // The run has no step left, and lacks its last checkpoint.
  void Finish() {
    record().set_state(v1::RUN_STATE_FINISHING);
    record().set_step(100);
  }

  GroupPlanner planner_{options_, cluster_};
  RunEvaluation evaluation_{run_, run_.stored, run_.history, cluster_, planner_};
  CheckpointWriter writer_{run_, run_.stored, evaluation_, cluster_};
};

TEST_F(CheckpointWriterTest, GroupThatIsFormedTakesThePlaceOfAMissingOne) {
  EXPECT_TRUE(writer_.Is(slot(0)));
  Start(0);
  End(0, kStart);
  writer_.OnFormed(slot(1));
  EXPECT_EQ(record().checkpoint_writer(), 0U) << "it may return";
  NewEvents();
  cluster_.Begin(kStart + absl::Minutes(1));
  writer_.OnFormed(slot(1));
  EXPECT_TRUE(writer_.Is(slot(1)));
  EXPECT_TRUE(IsStored());
  EXPECT_THAT(NewEvents(), ElementsAre("group 1 writes the checkpoints in place of group 0, which "
                                       "cannot"));
  writer_.OnFormed(slot(2));
  EXPECT_TRUE(writer_.Is(slot(2))) << "group 1 is missing as well";
}

TEST_F(CheckpointWriterTest, WriterThatIsFormedAgainRemains) {
  cluster_.Begin(kStart + absl::Hours(1));
  writer_.OnFormed(slot(0));
  EXPECT_THAT(NewEvents(), IsEmpty());
}

TEST_F(CheckpointWriterTest, LostGroupIsAwaitedForAMinute) {
  Start(0);
  Start(1);
  EXPECT_FALSE(MayTake(kStart)) << "it trains";
  End(0, kStart);
  EXPECT_FALSE(MayTake(kStart + absl::Seconds(59)));
  EXPECT_TRUE(MayTake(kStart + absl::Seconds(60)));
  spec().mutable_cluster()->set_rejoin_wait_ms(90'000);
  EXPECT_FALSE(MayTake(kStart + absl::Seconds(89)));
  EXPECT_TRUE(MayTake(kStart + absl::Seconds(90)));
}

TEST_F(CheckpointWriterTest, GroupThatNeverWasIsAwaitedAsLongAsItsWorkers) {
  Start(1);
  EXPECT_FALSE(MayTake(kStart + absl::Milliseconds(4999)));
  EXPECT_TRUE(MayTake(kStart + absl::Seconds(5)));
}

TEST_F(CheckpointWriterTest, GroupThatCannotReturnIsNotAwaited) {
  Start(0);
  Start(1);
  record().add_left_out(0);
  EXPECT_TRUE(MayTake(kStart)) << "it is left out of the run";
  record().clear_left_out();
  EXPECT_FALSE(MayTake(kStart));
  record().set_checkpoint_writer(3);
  EXPECT_TRUE(MayTake(kStart)) << "it was removed";
  record().set_checkpoint_writer(0);
  End(0, kStart);
  Start(0, /*own_loop=*/true);
  EXPECT_TRUE(MayTake(kStart)) << "a program writes none";
  spec().mutable_checkpoint()->clear_directory();
  EXPECT_FALSE(MayTake(kStart)) << "no group does";
}

TEST_F(CheckpointWriterTest, GroupThatMustNotEndDoesNotTakeThePlace) {
  Start(1);
  const absl::Time later = kStart + absl::Hours(1);
  EXPECT_TRUE(MayTake(later));
  record().set_state(v1::RUN_STATE_FINISHING);
  EXPECT_FALSE(MayTake(later)) << "there is no further commit";
  record().set_state(v1::RUN_STATE_RUNNING);
  // A run that is served earlier waits for one worker.
  cluster_.queue().Set(2, {.id = "run-2", .priority = 1, .ranks = 1, .slots = 1});
  cluster_.queue().Set(1, {.id = "run-1"});
  EXPECT_FALSE(MayTake(later));
  cluster_.queue().Erase(2);
  EXPECT_TRUE(MayTake(later));
  End(1, kStart);
  Start(1, /*own_loop=*/true);
  EXPECT_FALSE(MayTake(later)) << "a program";
  End(1, kStart);
  Start(1);
  EXPECT_TRUE(writer_.Take(slot(1)));
  EXPECT_TRUE(writer_.Is(slot(1)));
  EXPECT_TRUE(IsStored());
  record().set_checkpoint_writer(0);
  cluster_.members().Detach(cluster_.members().Find("w1")->connection);
  EXPECT_FALSE(MayTake(later)) << "its worker is away";
}

TEST_F(CheckpointWriterTest, LastCheckpointIsWrittenWithoutAWait) {
  Start(0);
  Start(1);
  Start(2);
  Finish();
  EXPECT_EQ(writer_.TakeLast(), std::nullopt) << "group 0 writes it";
  End(0, kStart);
  EXPECT_EQ(writer_.TakeLast(), 1U);
  EXPECT_TRUE(writer_.Is(slot(1)));
  EXPECT_EQ(writer_.TakeLast(), std::nullopt) << "there is one";
}

TEST_F(CheckpointWriterTest, OtherCheckpointsAreNotWrittenWithoutAWait) {
  Start(1);
  EXPECT_EQ(writer_.TakeLast(), std::nullopt) << "the run goes on";
  Finish();
  record().mutable_checkpoint()->set_saved_step(100);
  EXPECT_EQ(writer_.TakeLast(), std::nullopt) << "it is written";
  record().clear_checkpoint();
  spec().mutable_averaging()->set_every_steps(0);
  EXPECT_EQ(writer_.TakeLast(), std::nullopt) << "another group has other values";
}

TEST_F(CheckpointWriterTest, GroupMustHaveTheLastVersionAndNothingElseToDo) {
  Start(1);
  Start(2);
  Finish();
  slot(1).version = 2;
  EXPECT_EQ(writer_.TakeLast(), 2U) << "group 1 loads the last version";
  record().set_checkpoint_writer(0);
  slot(1).version = 3;
  record().set_test_samples(10);
  evaluation_.Begin({1});
  EXPECT_EQ(writer_.TakeLast(), 2U) << "group 1 evaluates";
  record().set_checkpoint_writer(0);
  record().clear_evaluating();
  cluster_.members().Detach(cluster_.members().Find("w1")->connection);
  EXPECT_EQ(writer_.TakeLast(), 2U) << "the worker of group 1 is away";
  record().set_checkpoint_writer(0);
  End(2, kStart);
  Start(2, /*own_loop=*/true);
  EXPECT_EQ(writer_.TakeLast(), std::nullopt) << "group 2 is a program";
}

}  // namespace
}  // namespace cadre
