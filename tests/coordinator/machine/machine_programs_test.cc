// Groups of programs with training loops of their own in the coordinator's state machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "coordinator/store/keys.h"
#include "tests/base/expect.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class MachineProgramsTest : public MachineTest {
 protected:
  static v1::RunSpec OpaqueSpec(uint32_t groups) {
    v1::RunSpec spec = MakeSpec(groups, 1, 5, 20);
    v1::OpaqueParameter& parameter = *spec.mutable_model()->mutable_opaque()->add_parameter();
    parameter.set_name("weight");
    parameter.add_shape(3);
    return spec;
  }
  static const v1::RunEnded* EndOf(const FakeWorker& worker) {
    for (const v1::CoordinatorMessage& message : worker.received) {
      if (message.has_run_ended()) return &message.run_ended();
    }
    return nullptr;
  }
  // What the worker waits for, by the newest message that it has received.
  static std::string AwaitedBy(const FakeWorker& worker) {
    std::string awaited;
    for (const v1::CoordinatorMessage& message : worker.received) {
      if (message.has_waiting()) awaited = message.waiting().reason();
    }
    return awaited;
  }
  bool HasEvent(v1::EventKind kind, const std::string& text) {
    const v1::EventsReply events = cluster_.Events();
    for (const v1::ClusterEvent& event : events.events()) {
      if (event.kind() == kind && event.text().find(text) != std::string::npos) return true;
    }
    return false;
  }
};

// Two programs of a run that averages every five steps; the first one pauses.
class MachinePausesTest : public MachineProgramsTest {
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
  EXPECT_TRUE(HasEvent(
      v1::EVENT_KIND_RUN_WARNING,
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
  contributed.set_train_seconds(2.5);  // for 5 steps
  cluster_.Send(first, contributed);
  cluster_.ContributeOnce(cluster_.workers().back());
  ASSERT_TRUE(first.received.back().has_decision());
  EXPECT_EQ(first.received.back().decision().agree_steps(), 10U);
}

TEST_F(MachineProgramsTest, AllRanksOfAProgramFormOneGroup) {
  cluster_.AddAggregator("agg-0");
  const std::string run = cluster_.Submit(OpaqueSpec(1));
  FakeWorker& second = cluster_.AddRank("program", "test", 2, 1);
  cluster_.Run(absl::Minutes(1));
  EXPECT_FALSE(second.assignment.has_value()) << "rank 0 is missing";
  FakeWorker& first = cluster_.AddRank("program", "test", 2, 0);
  ASSERT_TRUE(first.assignment.has_value());
  EXPECT_EQ(first.place().rank(), 0u);
  EXPECT_EQ(second.place().rank(), 1u);
  EXPECT_TRUE(first.assignment->plan().own_loop());
  EXPECT_EQ(first.assignment->peers_size(), 2);
}

TEST_F(MachineProgramsTest, RankThatLeavesEndsItsProgramOnly) {
  cluster_.AddAggregator("agg-0");
  const std::string run = cluster_.Submit(OpaqueSpec(2));
  FakeWorker& first = cluster_.AddRank("program", "test", 2, 0);
  FakeWorker& second = cluster_.AddRank("program", "test", 2, 1);
  FakeWorker& other = cluster_.AddRank("other", "test", 1, 0);
  ASSERT_TRUE(first.assignment.has_value());
  v1::Goodbye goodbye;
  goodbye.set_reason("the loop has ended");
  cluster_.Send(second, goodbye);
  ASSERT_NE(EndOf(first), nullptr);
  EXPECT_FALSE(EndOf(first)->done());
  EXPECT_EQ(EndOf(first)->reason(), "rank 1 of this program has left: the loop has ended");
  EXPECT_EQ(EndOf(other), nullptr);
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_RUNNING);
}

TEST_F(MachineProgramsTest, DisconnectedRankLearnsThatAnotherHasLeft) {
  for (const bool restarts : {false, true}) {
    FakeCluster cluster;
    cluster.behaviour.train = false;
    cluster.AddAggregator("agg-0");
    cluster.Submit(OpaqueSpec(1));
    FakeWorker& first = cluster.AddRank("program", "test", 2, 0);
    FakeWorker& second = cluster.AddRank("program", "test", 2, 1);
    ASSERT_TRUE(first.assignment.has_value());
    cluster.Cut(first);
    v1::Goodbye goodbye;
    goodbye.set_reason("the loop has ended");
    cluster.Send(second, goodbye);
    cluster.Kill(second);
    EXPECT_EQ(EndOf(first), nullptr);
    if (restarts) cluster.RestartCoordinator();
    cluster.Run(absl::Seconds(30));
    ASSERT_NE(EndOf(first), nullptr);
    EXPECT_THAT(EndOf(first)->reason(), HasSubstr("rank 1 of this program has left"));
    // A rank that joins only now waits in vain, too.
    const FakeWorker& third = cluster.AddRank("program", "test", 2, 1);
    ASSERT_NE(EndOf(third), nullptr);
  }
}

TEST_F(MachineProgramsTest, StatusHasNothingOfNativeGroups) {
  cluster_.AddAggregator("agg-0");
  cluster_.behaviour.on_prepared = [](v1::Prepared& prepared) {
    prepared.mutable_memory()->set_buffers(24);
  };
  const std::string run = cluster_.Submit(OpaqueSpec(1));
  cluster_.AddRank("program", "test", 1, 0);
  const v1::StatusReply reply = cluster_.machine().Status(cluster_.now(), run);
  const v1::GroupStatus& group = reply.groups(0);
  EXPECT_TRUE(group.plan().own_loop());
  EXPECT_TRUE(group.mesh().empty());
  EXPECT_EQ(group.collectives(), v1::Cluster::COLLECTIVE_POLICY_UNSPECIFIED);
  EXPECT_EQ(group.overlap(), v1::Cluster::OVERLAP_UNSPECIFIED);
  EXPECT_EQ(group.members(0).memory().buffers(), 24U);
  EXPECT_FALSE(group.members(0).has_planned_memory());
}

TEST_F(MachineProgramsTest, MissingRankIsNamed) {
  cluster_.AddAggregator("agg-0");
  const std::string run = cluster_.Submit(OpaqueSpec(1));
  EXPECT_EQ(cluster_.RunStatus(run).reason(), "waiting for a program to join");
  FakeWorker& first = cluster_.AddRank("program", "test", 3, 0);
  EXPECT_EQ(AwaitedBy(first), "waiting for ranks 1 (has not joined), 2 (has not joined) of 3");
  FakeWorker& third = cluster_.AddRank("program", "test", 3, 2);
  EXPECT_EQ(AwaitedBy(first), "waiting for rank 1 (has not joined) of 3");
  EXPECT_EQ(AwaitedBy(third), AwaitedBy(first));
  const std::string waits = "the program of 'program-1' waits for rank 1 (has not joined) of 3";
  EXPECT_EQ(cluster_.RunStatus(run).reason(), waits);
  EXPECT_EQ(cluster_.Group(run, 0).reason(), waits);
  cluster_.Cut(third);
  cluster_.Kill(third);
  EXPECT_THAT(AwaitedBy(first),
              MatchesRegex(R"(waiting for ranks 1 \(has not joined\), 2 \('program-2' on host, )"
                           R"(no message since [-0-9]* [:0-9]* UTC\) of 3)"));
  // No rank was lost, so there is no limit.
  cluster_.Run(absl::Seconds(5));
  EXPECT_EQ(EndOf(first), nullptr);
}

// Its stream is cut when the limit of the lost rank passes.
TEST_F(MachineProgramsTest, LimitOfALostRankHoldsAfterADisconnection) {
  cluster_.AddAggregator("agg-0");
  cluster_.Submit(OpaqueSpec(2));
  FakeWorker& first = cluster_.AddRank("program", "test", 2, 0);
  FakeWorker& second = cluster_.AddRank("program", "test", 2, 1);
  cluster_.AddRank("other", "test", 1, 0);
  cluster_.Kill(second);
  cluster_.Run(absl::Seconds(69));
  EXPECT_EQ(EndOf(first), nullptr);
  cluster_.Cut(first);
  cluster_.Run(absl::Minutes(3));
  EXPECT_NE(EndOf(first), nullptr);
}

TEST_F(MachineProgramsTest, ProgramLearnsWhatItsRunWaitsFor) {
  FakeWorker& rank = cluster_.AddRank("program", "test", 1, 0);
  EXPECT_EQ(AwaitedBy(rank), "waiting for the run: the coordinator has none of this id or name");
  cluster_.Submit(OpaqueSpec(1));
  cluster_.Run(absl::Seconds(2));
  EXPECT_EQ(AwaitedBy(rank), "waiting for aggregators: 0 of 1 connected");
  cluster_.AddAggregator("agg-0");
  EXPECT_TRUE(rank.assignment.has_value());
}

TEST_F(MachineProgramsTest, KilledRankEndsItsProgramAfterALimit) {
  cluster_.AddAggregator("agg-0");
  const std::string run = cluster_.Submit(OpaqueSpec(2));
  FakeWorker& first = cluster_.AddRank("program", "test", 2, 0);
  FakeWorker& second = cluster_.AddRank("program", "test", 2, 1);
  FakeWorker& other = cluster_.AddRank("other", "test", 1, 0);
  ASSERT_TRUE(first.assignment.has_value());
  cluster_.Kill(second);
  EXPECT_THAT(cluster_.Group(run, 0).reason(),
              HasSubstr("waiting for rank 1 ('program-2' on host, "));
  // Its lease expires.
  cluster_.Run(absl::Seconds(15));
  EXPECT_FALSE(first.assignment.has_value());
  EXPECT_THAT(AwaitedBy(first),
              MatchesRegex(R"(waiting for rank 1 \('program-2' on host, no message since .* UTC\) )"
                           R"(of 2; the program ends at .* UTC without it)"));
  EXPECT_THAT(cluster_.Group(run, 0).reason(), HasSubstr("waits for rank 1 ('program-2' on host"));
  EXPECT_EQ(EndOf(first), nullptr) << "it may return";
  cluster_.Run(absl::Minutes(1));
  ASSERT_NE(EndOf(first), nullptr);
  EXPECT_FALSE(EndOf(first)->done());
  EXPECT_THAT(EndOf(first)->reason(),
              MatchesRegex(R"(rank 1 \('program-2' on host, no message since .* UTC\) )"
                           R"(of this program has not returned)"));
  EXPECT_TRUE(HasEvent(v1::EVENT_KIND_RUN_WARNING, "a program of 2 ranks was ended: rank 1"));
  ASSERT_EQ(cluster_.RunStatus(run).warnings_size(), 1);
  EXPECT_THAT(cluster_.RunStatus(run).warnings(0), HasSubstr("rank 1 ('program-2' on host"));
  EXPECT_EQ(EndOf(other), nullptr);
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_RUNNING);
  // A new start of the program takes its slot.
  cluster_.AddRank("again", "test", 2, 0);
  const FakeWorker& again = cluster_.AddRank("again", "test", 2, 1);
  EXPECT_TRUE(again.assignment.has_value());
}

TEST_F(MachineProgramsTest, LostRankMayReturn) {
  for (const bool restarts : {false, true}) {
    FakeCluster cluster;
    cluster.behaviour.train = false;
    cluster.AddAggregator("agg-0");
    cluster.Submit(OpaqueSpec(1));
    FakeWorker& first = cluster.AddRank("program", "test", 2, 0);
    FakeWorker& second = cluster.AddRank("program", "test", 2, 1);
    cluster.Kill(second);
    cluster.Run(absl::Seconds(40));
    EXPECT_THAT(AwaitedBy(first), HasSubstr("rank 1 ('program-2' on host"));
    if (restarts) {
      // The limit begins again.
      cluster.RestartCoordinator();
      cluster.Run(absl::Seconds(45));
      EXPECT_THAT(AwaitedBy(first), HasSubstr("rank 1 ('program-2' on host"));
      EXPECT_EQ(EndOf(first), nullptr);
    }
    cluster.Restart(second);
    EXPECT_TRUE(first.assignment.has_value() && second.assignment.has_value());
    cluster.Run(absl::Minutes(3));
    EXPECT_EQ(EndOf(first), nullptr);
    for (const auto& [key, value] : cluster.store()) {
      EXPECT_FALSE(absl::StartsWith(key, kLostRankPrefix)) << key;
    }
  }
}

// No rank waits while all are cut off, so the limit begins when the first of them is back.
TEST_F(MachineProgramsTest, LimitBeginsWithTheRankThatWaits) {
  cluster_.AddAggregator("agg-0");
  cluster_.Submit(OpaqueSpec(1));
  FakeWorker& first = cluster_.AddRank("program", "test", 2, 0);
  FakeWorker& second = cluster_.AddRank("program", "test", 2, 1);
  cluster_.Kill(first);
  cluster_.Kill(second);
  cluster_.Run(absl::Minutes(5));
  cluster_.Restart(first);
  EXPECT_THAT(AwaitedBy(first), HasSubstr("rank 1 ('program-2' on host"));
  cluster_.Run(absl::Seconds(50));
  EXPECT_EQ(EndOf(first), nullptr);
  cluster_.Run(absl::Seconds(20));
  EXPECT_NE(EndOf(first), nullptr);
}

TEST_F(MachineProgramsTest, RefusedMessageEndsTheProgram) {
  cluster_.AddAggregator("agg-0");
  v1::RunSpec spec = OpaqueSpec(1);
  spec.mutable_model()->mutable_opaque()->set_test_samples(kTestSamples);
  const std::string run = cluster_.Submit(spec);
  FakeWorker& first = cluster_.AddRank("program", "test", 2, 0);
  FakeWorker& second = cluster_.AddRank("program", "test", 2, 1);
  ASSERT_TRUE(first.assignment.has_value());
  cluster_.Do(MessageRefused{first.connection, v1::REFUSAL_OVERSIZED, "it has 5 MiB"});
  // The sender, whose stream has ended, learns it when it is back, and sends nothing again. No other
  // host is left that could send another message, so the run has failed.
  cluster_.Run(absl::Seconds(30));
  EXPECT_THAT(cluster_.RunStatus(run).reason(), HasSubstr("it has 5 MiB"));
  for (const FakeWorker* rank : {&first, &second}) {
    ASSERT_NE(EndOf(*rank), nullptr);
    EXPECT_FALSE(EndOf(*rank)->done());
    EXPECT_THAT(EndOf(*rank)->reason(), HasSubstr("a message was refused: it has 5 MiB"));
  }
  EXPECT_EQ(cluster_.Counter("refused_oversized"), 1U);
}

TEST_F(MachineProgramsTest, RanksOfTwoProgramsFormNoGroup) {
  cluster_.AddAggregator("agg-0");
  cluster_.Submit(OpaqueSpec(1));
  const FakeWorker& a = cluster_.AddRank("a", "test", 2, 0);
  const FakeWorker& b = cluster_.AddRank("b", "test", 2, 1);
  cluster_.Run(absl::Minutes(1));
  EXPECT_FALSE(a.assignment.has_value() || b.assignment.has_value());
}

TEST_F(MachineProgramsTest, WorkersAndProgramsAreNotExchanged) {
  cluster_.AddAggregator("agg-0");
  const FakeWorker& program = cluster_.AddRank("program", "other", 1, 0);
  cluster_.Submit(MakeSpec(1, 1, 5, 20));
  cluster_.Run(absl::Minutes(1));
  EXPECT_FALSE(program.assignment.has_value()) << "the program serves another run";
  v1::RunSpec opaque = OpaqueSpec(1);
  opaque.set_name("opaque");
  cluster_.Submit(opaque);
  const FakeWorker& worker = cluster_.AddWorker("native");
  cluster_.Run(absl::Minutes(1));
  ASSERT_TRUE(worker.assignment.has_value());
  EXPECT_EQ(worker.assignment->spec().name(), "test");
  EXPECT_EQ(cluster_.Group("run-2-opaque", 0).state(), v1::GROUP_STATE_WAITING);
}

TEST_F(MachineProgramsTest, AProgramTakesASlotBesideNativeGroups) {
  cluster_.AddAggregator("agg-0");
  const std::string run = cluster_.Submit(MakeSpec(2, 1, 5, 20));
  cluster_.behaviour.on_prepared = [](v1::Prepared& prepared) {
    if (prepared.place().group() == 0) prepared.clear_train_samples();
  };
  FakeWorker& program = cluster_.AddRank("program", run, 1, 0);
  ASSERT_TRUE(program.assignment.has_value());
  EXPECT_EQ(program.place().group(), 0u);
  cluster_.AddWorker("native");
  ASSERT_TRUE(program.start.has_value());
  EXPECT_EQ(program.start->train_samples(), kTrainSamples);
  // A group of a program is never asked to evaluate, also at the end of the run.
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(cluster_.RunStatus(run).test().samples(), kTestSamples);
  for (const v1::CoordinatorMessage& message : program.received) {
    EXPECT_EQ(message.decision().evaluate_end(), 0u);
  }
}

TEST_F(MachineProgramsTest, ProgramsThatDoNotKnowTheDataWaitForAWorker) {
  cluster_.AddAggregator("agg-0");
  v1::RunSpec spec = MakeSpec(2, 1, 5, 20);
  spec.mutable_stop()->clear_steps();
  spec.mutable_stop()->set_epochs(1);
  const std::string run = cluster_.Submit(spec);
  cluster_.behaviour.on_prepared = [](v1::Prepared& prepared) {
    if (prepared.place().group() == 0) prepared.clear_train_samples();
  };
  const FakeWorker& program = cluster_.AddRank("program", run, 1, 0);
  cluster_.Run(absl::Minutes(1));
  EXPECT_FALSE(program.start.has_value());
  EXPECT_THAT(cluster_.RunStatus(run).reason(), HasSubstr("programs alone need stop.steps"));
  cluster_.AddWorker("native");
  EXPECT_TRUE(program.start.has_value());
  EXPECT_EQ(cluster_.RunStatus(run).reason(), "");
}

TEST_F(MachineProgramsTest, ProgramsStopAtATargetAccuracy) {
  cluster_.AddAggregator("agg-0");
  v1::RunSpec spec = OpaqueSpec(1);
  spec.mutable_model()->mutable_opaque()->set_test_samples(kTestSamples);
  spec.mutable_model()->mutable_opaque()->set_epoch_samples(kTrainSamples);
  spec.mutable_checkpoint()->set_from("/model.safetensors");
  spec.mutable_stop()->set_test_accuracy(0.01F);
  spec.mutable_stop()->set_steps(1'000'000);
  spec.mutable_evaluation()->set_every_steps(10);
  const std::string run = cluster_.Submit(spec);
  cluster_.AddRank("a", run, 1, 0);
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_DONE);
  EXPECT_LT(cluster_.RunStatus(run).step(), 1000U);
}

TEST_F(MachineProgramsTest, ProgramsEvaluateIfTheirModelHasTestSamples) {
  cluster_.AddAggregator("agg-0");
  v1::RunSpec spec = OpaqueSpec(2);
  spec.mutable_model()->mutable_opaque()->set_test_samples(kTestSamples);
  spec.mutable_checkpoint()->set_from("/model.safetensors");
  const std::string run = cluster_.Submit(spec);
  cluster_.AddRank("a", run, 1, 0);
  cluster_.AddRank("b", run, 1, 0);
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  EXPECT_EQ(cluster_.RunStatus(run).test().samples(), kTestSamples);
  EXPECT_EQ(cluster_.RunStatus(run).test().version(), cluster_.RunStatus(run).version());
}

TEST_F(MachineProgramsTest, ASecondProcessOfARankIsRefused) {
  cluster_.AddRank("program", "test", 2, 0);
  const FakeWorker& second = cluster_.AddRank("program", "test", 2, 0);
  ASSERT_FALSE(second.received.empty());
  EXPECT_THAT(second.received.back().refused().reason(),
              HasSubstr("rank 0 of 2 of program program is the process 'program-2'"));
  const FakeWorker& third = cluster_.AddRank("program", "test", 3, 1);
  EXPECT_THAT(third.received.back().refused().reason(), HasSubstr("of 2 ranks"));
}

TEST_F(MachineProgramsTest, ProgramsLearnOfTheEndOfTheirRun) {
  cluster_.AddAggregator("agg-0");
  const std::string run = cluster_.Submit(OpaqueSpec(2));
  const FakeWorker& waits = cluster_.AddRank("a", run, 1, 0);
  cluster_.StopRun(run);
  ASSERT_NE(EndOf(waits), nullptr);
  EXPECT_EQ(EndOf(waits)->run(), run);
  EXPECT_FALSE(EndOf(waits)->done());
  const FakeWorker& late = cluster_.AddRank("b", "test", 1, 0);
  EXPECT_NE(EndOf(late), nullptr);
  const FakeWorker& other = cluster_.AddRank("c", "unknown", 1, 0);
  EXPECT_EQ(EndOf(other), nullptr) << "the run may still be submitted";
}

TEST_F(MachineProgramsTest, ARunOfTheSameNameIsJoined) {
  const std::string run = cluster_.Submit(OpaqueSpec(2), /*join_existing=*/true);
  EXPECT_EQ(cluster_.Submit(OpaqueSpec(2), /*join_existing=*/true), run);
  EXPECT_NE(cluster_.Submit(OpaqueSpec(2)), run);
  v1::RunSpec other = OpaqueSpec(2);
  other.mutable_model()->mutable_opaque()->mutable_parameter(0)->set_shape(0, 4);
  cluster_.Submit(other, /*join_existing=*/true);
  EXPECT_THAT(std::string(cluster_.last_status.message()),
              HasSubstr("parameter 0 is 'weight' [3] in the run, but 'weight' [4]"));
  other = OpaqueSpec(3);
  cluster_.Submit(other, /*join_existing=*/true);
  EXPECT_THAT(std::string(cluster_.last_status.message()), HasSubstr("cluster.groups: 2 -> 3"));
}

TEST_F(MachineProgramsTest, ARunOfTheSameNameThatHasReachedItsEndIsJoinedOnRequest) {
  cluster_.AddAggregator("agg-0");
  v1::RunSpec spec = OpaqueSpec(1);
  spec.mutable_model()->mutable_opaque()->set_test_samples(kTestSamples);
  spec.mutable_checkpoint()->set_from("/model.safetensors");
  const std::string run = cluster_.Submit(spec, /*join_existing=*/true, /*join_ended=*/true);
  EXPECT_FALSE(cluster_.last_run_ended) << "it is a new one";
  cluster_.AddRank("a", run, 1, 0);
  cluster_.behaviour.train = true;
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  ASSERT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
  EXPECT_EQ(cluster_.Submit(spec, true, /*join_ended=*/true), run);
  EXPECT_TRUE(cluster_.last_run_ended);
  v1::RunSpec other = spec;
  other.mutable_cluster()->set_groups(2);
  EXPECT_EQ(cluster_.Submit(other, true, /*join_ended=*/true), "");
  EXPECT_THAT(std::string(cluster_.last_status.message()), HasSubstr("cluster.groups: 1 -> 2"));
  const std::string second = cluster_.Submit(spec, /*join_existing=*/true);
  EXPECT_NE(second, run) << "ended runs are not joined unless it is requested";
  EXPECT_EQ(cluster_.Submit(spec, true, true), second) << "the run that has not ended";
  EXPECT_FALSE(cluster_.last_run_ended);
}

TEST_F(MachineProgramsTest, AStoppedRunOfTheSameNameIsNotJoined) {
  cluster_.AddAggregator("agg-0");
  const std::string run = cluster_.Submit(OpaqueSpec(1));
  cluster_.StopRun(run);
  EXPECT_EQ(cluster_.Submit(OpaqueSpec(1), true, /*join_ended=*/true), "");
  EXPECT_THAT(cluster_.last_status,
              IsError(absl::StatusCode::kFailedPrecondition,
                      "run run-1-test of the same name was stopped before its end: enough"));
  EXPECT_EQ(cluster_.Submit(OpaqueSpec(1), true), "run-2-test");
}

TEST_F(MachineProgramsTest, ANameStandsForTheNewestRunThatHasNotEnded) {
  cluster_.AddAggregator("agg-0");
  const std::string first = cluster_.Submit(OpaqueSpec(1));
  const std::string second = cluster_.Submit(OpaqueSpec(2));
  v1::StatusRequest request;
  request.set_run("test");
  const auto run_of_status = [&] {
    return cluster_.machine().Status(cluster_.now(), request)->runs(0).run();
  };
  EXPECT_EQ(run_of_status(), second);
  request.set_page_token("group 1 0");
  EXPECT_EQ(cluster_.machine().Status(cluster_.now(), request)->groups(0).run(), first)
      << "a later page is of the run of the first one";
  request.clear_page_token();
  cluster_.StopRun(second);
  EXPECT_EQ(run_of_status(), first);
  cluster_.StopRun("test");
  EXPECT_EQ(RunStateOf(first), v1::RUN_STATE_STOPPED);
  EXPECT_EQ(run_of_status(), second);
  EXPECT_EQ(cluster_.machine().IdOf("test"), second);
  EXPECT_EQ(cluster_.machine().IdOf("another"), "");
  EXPECT_EQ(cluster_.machine().IdOf(""), "");
  EXPECT_EQ(cluster_.machine().IdOf("run-1"), "") << "has the form of an id";
  EXPECT_THAT(cluster_.machine().Locate("test"),
              IsError(absl::StatusCode::kFailedPrecondition, "run run-2-test has ended without"));
  v1::EventsRequest events;
  events.set_run("test");
  const v1::EventsReply of_name = cluster_.machine().Events(events);
  for (const v1::ClusterEvent& event : of_name.events()) EXPECT_EQ(event.run(), second);
  EXPECT_GT(of_name.events_size(), 0);
}

TEST_F(MachineProgramsTest, ANameOfSeveralRunsIsNotEnoughToStopOrDelete) {
  cluster_.AddAggregator("agg-0");
  const std::string first = cluster_.Submit(OpaqueSpec(1));
  const std::string second = cluster_.Submit(OpaqueSpec(2));
  const auto ambiguous =
      IsError(absl::StatusCode::kFailedPrecondition,
              "2 runs are named 'test': run-1-test, run-2-test; give the id of one");
  cluster_.StopRun("test");
  EXPECT_THAT(cluster_.last_status, ambiguous);
  EXPECT_EQ(RunStateOf(first), v1::RUN_STATE_QUEUED);
  EXPECT_EQ(RunStateOf(second), v1::RUN_STATE_QUEUED);
  cluster_.StopRun(first);
  cluster_.DeleteRun("test");
  EXPECT_THAT(cluster_.last_status, ambiguous);
  cluster_.Scale("test", 3);
  EXPECT_THAT(cluster_.last_status, IsOk()) << "can be undone";
  cluster_.StopRun("test");
  EXPECT_EQ(RunStateOf(second), v1::RUN_STATE_STOPPED) << "the only one that has not ended";
  cluster_.DeleteRun(first);
  cluster_.DeleteRun("test");
  EXPECT_THAT(cluster_.last_status, IsOk());
  EXPECT_EQ(cluster_.Status().runs_size(), 0);
  cluster_.DeleteRun("test");
  EXPECT_THAT(cluster_.last_status, IsError(absl::StatusCode::kNotFound, "no such run: test"));
}

}  // namespace
}  // namespace cadre::testing
