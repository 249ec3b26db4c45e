// Groups of programs with training loops of their own in the coordinator's state machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

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
  static const v1::RunEnded* EndOf(const FakeWorker& worker) {
    for (const v1::CoordinatorMessage& message : worker.received) {
      if (message.has_run_ended()) return &message.run_ended();
    }
    return nullptr;
  }
  static int CountWaiting(const FakeWorker& worker) {
    return std::count_if(worker.received.begin(), worker.received.end(),
                         [](const v1::CoordinatorMessage& one) { return one.has_waiting(); });
  }
  // Whether the store has ranks whose return is awaited.
  bool StoresLostRanks() {
    return std::any_of(cluster_.store().begin(), cluster_.store().end(), [](const auto& record) {
      return absl::StartsWith(record.first, kLostRankPrefix);
    });
  }
  // What the worker waits for, by the newest message that it has received.
  static std::string AwaitedBy(const FakeWorker& worker) {
    std::string awaited;
    for (const v1::CoordinatorMessage& message : worker.received) {
      if (message.has_waiting()) awaited = message.waiting().reason();
    }
    return awaited;
  }
};

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
  first.received.clear();
  v1::Goodbye goodbye;
  goodbye.set_reason("the loop has ended");
  cluster_.Send(second, goodbye);
  ASSERT_NE(EndOf(first), nullptr);
  EXPECT_EQ(AwaitedBy(first), "") << "its program has ended";
  EXPECT_FALSE(EndOf(first)->done());
  EXPECT_EQ(EndOf(first)->reason(), "rank 1 of this program has left: the loop has ended");
  EXPECT_EQ(EndOf(other), nullptr);
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_RUNNING);
  cluster_.Kill(first);
  cluster_.Run(absl::Seconds(30));
  EXPECT_FALSE(StoresLostRanks()) << "no rank of the program is awaited";
}

TEST_F(MachineProgramsTest, ProgramOfOneRankAwaitsNoOther) {
  cluster_.AddAggregator("agg-0");
  cluster_.Submit(OpaqueSpec(2));
  FakeWorker& only = cluster_.AddRank("program", "test", 1, 0);
  cluster_.AddRank("other", "test", 1, 0);
  cluster_.Kill(only);
  cluster_.Run(absl::Seconds(30));
  EXPECT_FALSE(StoresLostRanks());
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

TEST_F(MachineProgramsTest, OtherRunsAndEndedOnesAreNotAwaited) {
  const std::string none = "waiting for the run: the coordinator has none of this id or name";
  v1::RunSpec other = OpaqueSpec(1);
  other.set_name("other");
  cluster_.Submit(other);
  FakeWorker& rank = cluster_.AddRank("program", "test", 1, 0);
  EXPECT_EQ(AwaitedBy(rank), none);
  const std::string ended = cluster_.Submit(OpaqueSpec(1));
  cluster_.StopRun(ended);
  FakeWorker& late = cluster_.AddRank("late", "test", 1, 0);
  ASSERT_NE(EndOf(late), nullptr);
  cluster_.Submit(OpaqueSpec(1));
  const FakeWorker& next = cluster_.AddRank("next", "test", 1, 0);
  EXPECT_EQ(EndOf(next), nullptr) << "a younger run of the name is live";
  EXPECT_EQ(AwaitedBy(next), "waiting for aggregators: 0 of 1 connected");
}

TEST_F(MachineProgramsTest, EndOfAYoungerRunOfTheNameEndsNoProgram) {
  cluster_.Submit(OpaqueSpec(1));
  const std::string younger = cluster_.Submit(OpaqueSpec(1));
  cluster_.StopRun(younger);
  const FakeWorker& rank = cluster_.AddRank("program", "test", 1, 0);
  EXPECT_EQ(EndOf(rank), nullptr);
}

TEST_F(MachineProgramsTest, OnlyRanksThatWaitAreToldWhy) {
  cluster_.AddAggregator("agg-0");
  FakeWorker& worker = cluster_.AddWorker("w0");
  cluster_.Run(absl::Seconds(5));
  EXPECT_EQ(AwaitedBy(worker), "") << "it is no rank of a program";
  const std::string run = cluster_.Submit(OpaqueSpec(1));
  FakeWorker& first = cluster_.AddRank("program", "test", 2, 0);
  const std::string missing = "waiting for rank 1 (has not joined) of 2";
  ASSERT_EQ(AwaitedBy(first), missing);
  first.received.clear();
  cluster_.Reconnect(first);
  EXPECT_EQ(AwaitedBy(first), missing) << "it has forgotten the message with its stream";
  cluster_.Run(absl::Seconds(5));
  EXPECT_EQ(CountWaiting(first), 1) << "nothing else is missing";
  FakeWorker& second = cluster_.AddRank("program", "test", 2, 1);
  ASSERT_TRUE(first.assignment.has_value() && second.assignment.has_value());
  first.received.clear();
  cluster_.Cut(second);
  cluster_.Reconnect(first);
  EXPECT_EQ(CountWaiting(first), 0) << "it has a rank";
}

// The limit of a lost rank passes while no run of the name is there.
TEST_F(MachineProgramsTest, ProgramWithoutARunIsNotEnded) {
  cluster_.AddAggregator("agg-0");
  FakeWorker& first = cluster_.AddRank("program", "test", 2, 0);
  FakeWorker& second = cluster_.AddRank("program", "test", 2, 1);
  cluster_.Kill(second);
  cluster_.Run(absl::Minutes(3));
  EXPECT_THAT(AwaitedBy(first), HasSubstr("rank 1 ('program-2' on host"));
  EXPECT_EQ(EndOf(first), nullptr) << "the run may still be submitted";
  cluster_.Submit(OpaqueSpec(1));
  cluster_.Restart(second);
  EXPECT_TRUE(first.assignment.has_value());
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
  EXPECT_FALSE(StoresLostRanks());
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
  // The sender, whose stream has ended, learns it when it is back, and sends nothing again. No
  // other host is left that could send another message, so the run has failed.
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
  EXPECT_EQ(cluster_.Status().workers_size(), 1) << "the others have not joined";
  FakeWorker& first = cluster_.workers()[0];
  first.received.clear();
  cluster_.Connect(first);
  ASSERT_FALSE(first.received.empty());
  EXPECT_TRUE(first.received.front().has_welcome()) << "the same process, by a second stream";
  cluster_.Cut(first);
  const FakeWorker& successor = cluster_.AddRank("program", "test", 2, 0);
  ASSERT_FALSE(successor.received.empty());
  EXPECT_TRUE(successor.received.front().has_welcome()) << "the process is away";
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

}  // namespace
}  // namespace cadre::testing
