// Programs with training loops of their own that pause or leave, in the coordinator's state
// machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;

// Two programs of a run that averages every five steps; the first one pauses.
class MachinePausesTest : public MachineTest {
 protected:
  void Begin(const v1::RunSpec& spec) {
    cluster_.AddAggregator("agg-0");
    run_ = cluster_.Submit(spec);
    pausing_ = &cluster_.AddRank("pausing", "test", 1, 0);
    other_ = &cluster_.AddRank("other", "test", 1, 0);
    for (FakeWorker* worker : {pausing_, other_}) worker->activity = v1::ACTIVITY_TRAINING;
    ASSERT_TRUE(pausing_->start.has_value() && other_->start.has_value());
  }
  static v1::RunSpec Spec() {
    v1::RunSpec spec = OpaqueSpec(2);
    // So that the groups do not exchange first values.
    spec.mutable_checkpoint()->set_from("/model.safetensors");
    spec.mutable_stop()->set_steps(1000);
    return spec;
  }
  void SendProgress(const FakeWorker& worker, uint32_t step, float step_seconds) {
    v1::Progress progress;
    *progress.mutable_place() = worker.place();
    progress.set_step(step);
    progress.set_step_seconds(step_seconds);
    cluster_.Send(worker, progress);
  }
  uint32_t version() { return cluster_.RunStatus(run_).version(); }

  std::string run_;
  FakeWorker* pausing_ = nullptr;
  FakeWorker* other_ = nullptr;
};

TEST_F(MachinePausesTest, ProgramsMayPauseForTheLimit) {
  v1::RunSpec spec = Spec();
  spec.mutable_cluster()->set_max_pause_ms(600'000);
  Begin(spec);
  const uint32_t generation = pausing_->place().generation();
  pausing_->hung = true;
  cluster_.Run(absl::Hours(3));
  ASSERT_TRUE(pausing_->assignment.has_value()) << "there is no limit before the first step";
  EXPECT_EQ(pausing_->place().generation(), generation);
  SendProgress(*pausing_, 1, 1);
  pausing_->hung = false;
  cluster_.Run(absl::Seconds(5));
  pausing_->hung = true;
  cluster_.Run(absl::Minutes(9));
  EXPECT_TRUE(pausing_->assignment.has_value());
  cluster_.Run(absl::Minutes(2));
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_GROUP_ENDED, "no progress for 10m"));
}

TEST_F(MachinePausesTest, OthersWaitForAPausingProgramForTheGraceWindow) {
  Begin(Spec());
  SendProgress(*pausing_, 1, 0.5);
  cluster_.Run(absl::Seconds(5));
  pausing_->hung = true;
  cluster_.ContributeOnce(*other_);
  cluster_.Run(absl::Seconds(8));
  EXPECT_EQ(version(), 0U);
  cluster_.Run(absl::Seconds(6));
  EXPECT_EQ(version(), 1U);
  // It has been seen to pause.
  cluster_.ContributeOnce(*other_);
  cluster_.Run(absl::Seconds(3));
  EXPECT_EQ(version(), 2U);
  EXPECT_EQ(cluster_.RunStatus(run_).groups_alive(), 2U);
  // It returns, is late once, and goes on in the same generation.
  const uint32_t generation = pausing_->place().generation();
  pausing_->hung = false;
  cluster_.Run(absl::Seconds(3));
  cluster_.ContributeOnce(*pausing_);
  EXPECT_EQ(pausing_->version, 2U);
  cluster_.ContributeOnce(*other_);
  cluster_.Run(absl::Seconds(3));
  EXPECT_EQ(version(), 2U) << "it is awaited again";
  cluster_.ContributeOnce(*pausing_);
  EXPECT_EQ(version(), 3U);
  EXPECT_EQ(pausing_->place().generation(), generation);
  EXPECT_EQ(cluster_.Commit(run_, 3)->participants_size(), 2);
}

TEST_F(MachinePausesTest, SlowProgramsAreAwaited) {
  Begin(Spec());
  SendProgress(*pausing_, 1, 20);
  cluster_.Run(absl::Seconds(2));
  pausing_->hung = true;  // in a step
  cluster_.ContributeOnce(*other_);
  cluster_.Run(absl::Seconds(60));
  EXPECT_EQ(version(), 0U) << "three times its steps is slow";
  cluster_.Run(absl::Seconds(30));
  EXPECT_EQ(version(), 1U);
}

TEST_F(MachinePausesTest, EarlierPausesDoNotMakeStepsLonger) {
  Begin(Spec());
  // It has compiled in its first steps.
  cluster_.Run(absl::Seconds(90));
  v1::Contributed contributed = cluster_.ContributionOf(*pausing_);
  contributed.set_train_seconds(90);
  cluster_.Send(*pausing_, contributed);
  cluster_.ContributeOnce(*other_);
  ASSERT_EQ(version(), 1U);
  SendProgress(*pausing_, 6, 0.05F);
  cluster_.Run(absl::Seconds(2));
  pausing_->hung = true;
  cluster_.ContributeOnce(*other_);
  cluster_.Run(absl::Seconds(15));
  EXPECT_EQ(version(), 2U) << "four of its usual steps, and the grace window";
}

TEST_F(MachinePausesTest, RoundsKeepMinGroups) {
  v1::RunSpec spec = Spec();
  spec.mutable_averaging()->set_min_groups(2);
  Begin(spec);
  pausing_->hung = true;
  cluster_.ContributeOnce(*other_);
  cluster_.Run(absl::Minutes(5));
  EXPECT_EQ(version(), 0U);
}

// Two programs of a run, of which the first one leaves.
using MachineLeavingTest = MachinePausesTest;

TEST_F(MachineLeavingTest, ContributionRemainsAfterTheGroup) {
  for (const bool restarts : {false, true}) {
    FakeCluster cluster;
    cluster.behaviour.train = false;
    cluster.AddAggregator("agg-0");
    const std::string run = cluster.Submit(Spec());
    FakeWorker& leaving = cluster.AddRank("leaving", "test", 1, 0);
    FakeWorker& other = cluster.AddRank("other", "test", 1, 0);
    v1::Contributed contributed = cluster.ContributionOf(leaving);
    contributed.set_step(3);
    contributed.set_samples(3 * 32);
    contributed.set_leaves(true);
    cluster.Send(leaving, contributed);
    if (restarts) {
      // It is gone when the coordinator is back.
      leaving.alive = false;
      cluster.RestartCoordinator();
      cluster.Run(absl::Seconds(30));
    } else {
      v1::Goodbye goodbye;
      goodbye.set_reason("terminated");
      cluster.Send(leaving, goodbye);
      cluster.Kill(leaving);
    }
    EXPECT_EQ(cluster.RunStatus(run).groups_alive(), 1U);
    EXPECT_EQ(cluster.RunStatus(run).version(), 0U) << "the other group has not contributed";
    // A new group of the same slot begins with the next version.
    FakeWorker& next = cluster.AddRank("next", "test", 1, 0);
    ASSERT_TRUE(next.assignment.has_value());
    EXPECT_EQ(next.place().group(), 0U);
    cluster.Run(absl::Seconds(30));
    EXPECT_FALSE(next.start.has_value());
    EXPECT_THAT(cluster.Group(run, 0).reason(), HasSubstr("begins after round 1"));
    cluster.ContributeOnce(other);
    EXPECT_EQ(cluster.RunStatus(run).version(), 1U);
    EXPECT_EQ(cluster.RunStatus(run).samples(), (3 + 5) * 32U);
    ASSERT_EQ(cluster.Commit(run, 1)->participants_size(), 2);
    EXPECT_EQ(cluster.Commit(run, 1)->participants(0).ranks(), 1U);
    ASSERT_TRUE(next.start.has_value());
    EXPECT_EQ(next.start->version(), 1U);
    // Its contributions belong to the next rounds.
    cluster.Run(absl::Seconds(5));
    cluster.ContributeOnce(next);
    EXPECT_EQ(cluster.RunStatus(run).version(), 1U);
    cluster.ContributeOnce(other);
    EXPECT_EQ(cluster.RunStatus(run).version(), 2U);
  }
}

TEST_F(MachineLeavingTest, ContributionIsLostWithAShard) {
  Begin(Spec());
  for (FakeWorker* worker : {pausing_, other_}) cluster_.ContributeOnce(*worker);
  ASSERT_EQ(version(), 1U);
  v1::Contributed contributed = cluster_.ContributionOf(*pausing_);
  contributed.set_leaves(true);
  cluster_.Send(*pausing_, contributed);
  cluster_.Kill(*pausing_);
  cluster_.Run(absl::Seconds(30));
  cluster_.Wipe(cluster_.aggregators()[0]);
  cluster_.Run(absl::Seconds(5));
  EXPECT_TRUE(
      HasEvent(v1::EVENT_KIND_RUN_WARNING,
               "round 2 has lost the contributions of 1 group that had left, with shard 0"));
  cluster_.ContributeOnce(*other_);
  cluster_.Run(absl::Seconds(5));
  ASSERT_EQ(version(), 2U);
  EXPECT_EQ(cluster_.Commit(run_, 2)->participants_size(), 1);
}

TEST_F(MachineLeavingTest, RunWhoseProgramsHaveEndedTheirLoopsIsParked) {
  Begin(Spec());
  for (FakeWorker* worker : {pausing_, other_}) {
    v1::Contributed contributed = cluster_.ContributionOf(*worker);
    contributed.set_leaves(true);
    cluster_.Send(*worker, contributed);
  }
  ASSERT_EQ(version(), 1U);
  v1::Goodbye goodbye;
  goodbye.set_finished(true);
  cluster_.Send(*pausing_, goodbye);
  cluster_.Kill(*pausing_);
  EXPECT_EQ(cluster_.RunStatus(run_).reason(), "");
  EXPECT_EQ(cluster_.StoredRun(run_).reason(), "") << "one trains on";
  cluster_.Send(*other_, goodbye);
  cluster_.Kill(*other_);
  for (int restarts = 0; restarts < 2; ++restarts) {
    EXPECT_EQ(cluster_.RunStatus(run_).state(), v1::RUN_STATE_RUNNING);
    EXPECT_EQ(cluster_.RunStatus(run_).reason(),
              "its programs have ended their loops at step 5 of 1000; it continues when a program "
              "joins, and `cadre stop run-1-test` ends it");
    cluster_.RestartCoordinator();
    cluster_.Run(absl::Seconds(30));
  }
  cluster_.AddRank("next", "test", 1, 0);
  EXPECT_EQ(cluster_.RunStatus(run_).reason(), "");
}

TEST_F(MachineLeavingTest, RanksAgreeEveryFewSeconds) {
  cluster_.AddAggregator("agg-0");
  cluster_.Submit(Spec());
  const FakeWorker& first = cluster_.AddRank("program", "test", 2, 0);
  cluster_.AddRank("program", "test", 2, 1);
  const FakeWorker& alone = cluster_.AddRank("other", "test", 1, 0);
  EXPECT_EQ(first.start->agree_steps(), 8U) << "the time of a step is not known yet";
  EXPECT_EQ(alone.start->agree_steps(), 0U);
  v1::Contributed contributed = cluster_.ContributionOf(first);
  cluster_.Run(absl::Seconds(2.5));
  contributed.set_train_seconds(2.5);  // for 5 steps
  cluster_.Send(first, contributed);
  cluster_.ContributeOnce(cluster_.workers().back());
  ASSERT_TRUE(first.received.back().has_decision());
  EXPECT_EQ(first.received.back().decision().agree_steps(), 10U);
}

}  // namespace
}  // namespace cadre::testing
