// What the coordinator knows of the checkpoints of a run, and how a run ends without the last one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class MachineCheckpointsTest : public MachineTest {
 protected:
  static v1::RunSpec SpecOf(uint32_t groups) {
    v1::RunSpec spec = MakeSpec(groups, 1, 5, 20);
    spec.mutable_checkpoint()->set_directory("/checkpoints");
    return spec;
  }

  void Report(const std::string& run, uint32_t step, const std::string& error = "",
              const std::string& warning = "", uint32_t group = 0) {
    FakeWorker& lead = cluster_.Lead(run, group);
    v1::Checkpointed report;
    *report.mutable_place() = lead.place();
    report.set_step(step);
    report.set_error(error);
    report.set_warning(warning);
    cluster_.Send(lead, report);
  }

  // Whether the assignment of the group has the directory.
  bool Writes(const std::string& run, uint32_t group) {
    return !cluster_.Lead(run, group).assignment->spec().checkpoint().directory().empty();
  }

  // Trains to the last step; nothing but the last checkpoint is missing then.
  std::string TrainToTheEnd(uint32_t groups, int workers) {
    const std::string run = SubmitTo(1, workers, SpecOf(groups));
    cluster_.behaviour.train = true;
    EXPECT_TRUE(cluster_.RunUntil(
        [&] { return cluster_.RunStatus(run).state() == v1::RUN_STATE_FINISHING; }));
    return run;
  }

  std::string EventTexts(v1::EventKind kind) {
    std::string texts;
    const v1::EventsReply events = cluster_.Events();
    for (const v1::ClusterEvent& event : events.events()) {
      if (event.kind() == kind) texts += event.text() + "\n";
    }
    return texts;
  }
};

TEST_F(MachineCheckpointsTest, EndWaitsForTheLastCheckpoint) {
  const std::string run = TrainToTheEnd(2, 2);
  cluster_.Run(absl::Minutes(1));
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_FINISHING);
  EXPECT_THAT(cluster_.RunStatus(run).reason(), HasSubstr("last checkpoint"));
  Report(run, 20);
  const v1::RunStatus status = cluster_.RunStatus(run);
  EXPECT_EQ(status.state(), v1::RUN_STATE_DONE);
  EXPECT_EQ(status.reason(), "");
  EXPECT_EQ(status.checkpoint().saved_step(), 20U);
  EXPECT_FALSE(status.checkpoint().last_missing());
  EXPECT_EQ(status.checkpoint().failures(), 0U);
}

TEST_F(MachineCheckpointsTest, LastCheckpointThatFailsIsTheReason) {
  const std::string run = TrainToTheEnd(1, 1);
  Report(run, 20, "cannot write model.safetensors: No space left on device");
  const v1::RunStatus status = cluster_.RunStatus(run);
  EXPECT_EQ(status.state(), v1::RUN_STATE_DONE);
  EXPECT_TRUE(status.checkpoint().last_missing());
  EXPECT_THAT(status.reason(), AllOf(HasSubstr("step 20"), HasSubstr("No space left")));
  EXPECT_THAT(EventTexts(v1::EVENT_KIND_CHECKPOINT),
              AllOf(HasSubstr("no checkpoint of step 20"), HasSubstr("No space left")));
  EXPECT_THAT(EventTexts(v1::EVENT_KIND_RUN_STATE), HasSubstr("is missing"));
}

TEST_F(MachineCheckpointsTest, FailureIsReportedWhileTheRunGoesOn) {
  cluster_.behaviour.train = false;
  const std::string run = SubmitTo(1, 1, SpecOf(1));
  Report(run, 5, "No space left on device");
  Report(run, 5, "No space left on device");  // sent again after a reconnect
  cluster_.RestartCoordinator();
  EXPECT_EQ(cluster_.RunStatus(run).checkpoint().failures(), 1U);
  EXPECT_EQ(cluster_.RunStatus(run).checkpoint().failed_step(), 5U);
  EXPECT_FALSE(cluster_.RunStatus(run).checkpoint().has_saved_step());
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_RUNNING);
}

TEST_F(MachineCheckpointsTest, OneGroupOfARunWithADirectoryWritesThem) {
  const std::string run = SubmitTo(1, 3, SpecOf(2));
  const auto report_from = [this](const std::string& id, uint32_t group) {
    const FakeWorker& lead = cluster_.Lead(id, group);
    v1::Checkpointed report;
    *report.mutable_place() = lead.place();
    report.set_step(5);
    cluster_.Send(lead, report);
  };
  EXPECT_TRUE(Writes(run, 0));
  EXPECT_FALSE(Writes(run, 1));
  EXPECT_EQ(cluster_.Lead(run, 1).assignment->spec().checkpoint().every_steps(), 0U);
  report_from(run, 1);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 1U);
  EXPECT_FALSE(cluster_.RunStatus(run).checkpoint().has_saved_step());
  v1::RunSpec none = SpecOf(1);
  none.clear_checkpoint();
  report_from(cluster_.Submit(none), 0);
  EXPECT_EQ(cluster_.Counter("refused_malformed"), 2U);
}

TEST_F(MachineCheckpointsTest, WarningIsAnEvent) {
  const std::string run = SubmitTo(1, 1, SpecOf(1));
  Report(run, 5, "", "old checkpoints stay");
  EXPECT_THAT(EventTexts(v1::EVENT_KIND_CHECKPOINT), HasSubstr("old checkpoints stay"));
  EXPECT_EQ(cluster_.RunStatus(run).checkpoint().saved_step(), 5U);
}

TEST_F(MachineCheckpointsTest, WarningsOfMembersStayInTheStatus) {
  cluster_.behaviour.train = false;
  const std::string run = SubmitTo(1, 1, SpecOf(1));
  const auto warn = [&](const auto& member, const std::string& text) {
    v1::Heartbeat heartbeat;
    v1::RunWarning& warning = *heartbeat.add_warnings();
    warning.set_run(run);
    warning.set_text(text);
    cluster_.Send(member, heartbeat);
  };
  // Every heartbeat repeats them.
  for (int i = 0; i < 2; ++i) {
    warn(cluster_.aggregators()[0], "the run can only be replayed to version 4");
    warn(cluster_.Lead(run, 0), "/from: has no slowmo_momentum; the run begins with zeros");
  }
  cluster_.RestartCoordinator();
  warn(cluster_.aggregators()[0], "the run can only be replayed to version 4");
  const v1::RunStatus status = cluster_.RunStatus(run);
  EXPECT_THAT(status.warnings(),
              ElementsAre(AllOf(StartsWith("aggregator agg-0 on "),
                                EndsWith(": the run can only be replayed to version 4")),
                          "worker w0 on host: /from: has no slowmo_momentum; the run begins with "
                          "zeros"));
  EXPECT_EQ(EventTexts(v1::EVENT_KIND_RUN_WARNING),
            absl::StrCat(status.warnings(0), "\n", status.warnings(1), "\n"));
  EXPECT_EQ(cluster_.Counter("warnings"), 2U);
  for (int i = 0; i < 100; ++i) warn(cluster_.aggregators()[0], absl::StrCat("warning ", i));
  EXPECT_EQ(cluster_.RunStatus(run).warnings_size(), 33);
  EXPECT_THAT(cluster_.RunStatus(run).warnings(32), HasSubstr("further warnings"));
  // A run that does not exist has none.
  v1::Heartbeat other;
  other.add_warnings()->set_run("run-9-other");
  cluster_.Send(cluster_.aggregators()[0], other);
}

TEST_F(MachineCheckpointsTest, AnotherWorkerWritesTheLastCheckpoint) {
  const std::string run = TrainToTheEnd(1, 1);
  const FakeWorker& second = cluster_.AddWorker("second");
  cluster_.Kill(cluster_.Lead(run, 0));
  ASSERT_TRUE(cluster_.RunUntil([&] { return second.start.has_value(); }));
  EXPECT_EQ(second.start->next_step(), 0U);
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_FINISHING);
  Report(run, 20);
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_DONE);
  EXPECT_FALSE(cluster_.RunStatus(run).checkpoint().last_missing());
}

// The other group has evaluated, so the run ends without group 0 if no worker can replace it.
TEST_F(MachineCheckpointsTest, AnotherWorkerWritesTheLastCheckpointBesideGroups) {
  const std::string run = TrainToTheEnd(2, 1);
  const FakeWorker& third = cluster_.AddWorker("third");
  cluster_.Kill(cluster_.Lead(run, 0));
  ASSERT_TRUE(cluster_.RunUntil([&] { return third.start.has_value(); }));
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_FINISHING);
  Report(run, 20);
  EXPECT_EQ(cluster_.RunStatus(run).state(), v1::RUN_STATE_DONE);
  EXPECT_FALSE(cluster_.RunStatus(run).checkpoint().last_missing());
}

// No worker can replace that of group 0.
TEST_F(MachineCheckpointsTest, AnotherGroupWritesTheLastCheckpoint) {
  const std::string run = TrainToTheEnd(2, 2);
  const uint32_t generation = cluster_.Group(run, 1).generation();
  cluster_.Kill(cluster_.Lead(run, 0));
  ASSERT_TRUE(cluster_.RunUntil([&] {
    return cluster_.Group(run, 1).generation() > generation &&
           StateOf(run, 1) == v1::GROUP_STATE_IDLE;
  }));
  EXPECT_TRUE(Writes(run, 1));
  EXPECT_EQ(cluster_.Lead(run, 1).start->next_step(), 0U);
  EXPECT_THAT(ReasonOf(run), HasSubstr("waiting for group 1 to write the last checkpoint"));
  EXPECT_THAT(EventTexts(v1::EVENT_KIND_CHECKPOINT),
              HasSubstr("group 1 writes the checkpoints in place of group 0"));
  Report(run, 20, "", "", 1);
  EXPECT_EQ(RunStateOf(run), v1::RUN_STATE_DONE);
  EXPECT_FALSE(cluster_.RunStatus(run).checkpoint().last_missing());
}

TEST_F(MachineCheckpointsTest, RunEndsWithoutAGroupThatCanWrite) {
  const std::string run = TrainToTheEnd(1, 1);
  cluster_.Kill(cluster_.Lead(run, 0));
  ASSERT_TRUE(cluster_.RunUntilEnded(run));
  const v1::RunStatus status = cluster_.RunStatus(run);
  EXPECT_EQ(status.state(), v1::RUN_STATE_DONE);
  EXPECT_TRUE(status.checkpoint().last_missing());
  EXPECT_THAT(status.reason(), HasSubstr("group 0 has not written it"));
}

class CheckpointWriterTest : public MachineCheckpointsTest {
 protected:
  // A run whose group 0 has lost its worker.
  std::string BeginWithoutGroupZero(int workers) {
    v1::RunSpec spec = MakeSpec(3, 1, 5, 1000);
    spec.mutable_averaging()->set_quorum(1);
    spec.mutable_averaging()->set_min_grace_ms(1000);
    spec.mutable_checkpoint()->set_directory("/checkpoints");
    const std::string run = SubmitTo(1, workers, spec);
    EXPECT_EQ(StateOf(run, 2), v1::GROUP_STATE_TRAINING);
    cluster_.Kill(cluster_.Lead(run, 0));
    cluster_.Run(absl::Seconds(15));
    EXPECT_EQ(StateOf(run, 0), v1::GROUP_STATE_WAITING);
    return run;
  }
  void Commit(const std::string& run) {
    const uint32_t version = cluster_.RunStatus(run).version();
    for (const uint32_t group : {1, 2}) Train(run, group);
    cluster_.Run(absl::Seconds(2));
    EXPECT_EQ(cluster_.RunStatus(run).version(), version + 1);
  }
};

TEST_F(CheckpointWriterTest, AnotherGroupTakesThePlaceOfGroupZero) {
  const std::string run = BeginWithoutGroupZero(3);
  const std::string worker = cluster_.Lead(run, 1).name;
  const uint32_t generation = cluster_.Group(run, 1).generation();
  Commit(run);
  EXPECT_EQ(cluster_.Group(run, 1).generation(), generation) << "its worker may return";
  cluster_.Run(absl::Minutes(1));
  Commit(run);
  EXPECT_GT(cluster_.Group(run, 1).generation(), generation);
  EXPECT_EQ(cluster_.Lead(run, 1).name, worker) << "it has the states of the group";
  EXPECT_EQ(StateOf(run, 0), v1::GROUP_STATE_WAITING);
  EXPECT_TRUE(Writes(run, 1));
  EXPECT_FALSE(Writes(run, 2)) << "there is one writer";
  Report(run, 10, "", "", 1);
  EXPECT_EQ(cluster_.RunStatus(run).checkpoint().saved_step(), 10U);
  // A worker returns. The writer remains, also after a restart of the coordinator.
  cluster_.AddWorker("late");
  ASSERT_TRUE(cluster_.RunUntil([&] { return StateOf(run, 0) == v1::GROUP_STATE_TRAINING; }));
  EXPECT_FALSE(Writes(run, 0));
  cluster_.RestartCoordinator();
  cluster_.Run(absl::Seconds(5));
  Report(run, 15, "", "", 1);
  EXPECT_EQ(cluster_.RunStatus(run).checkpoint().saved_step(), 15U);
}

TEST_F(CheckpointWriterTest, GroupThatIsFormedTakesThePlace) {
  const std::string run = BeginWithoutGroupZero(3);
  cluster_.Run(absl::Minutes(1));
  const uint32_t others = cluster_.Group(run, 1).generation();
  // Group 2 is formed again, before a commit.
  cluster_.Kill(cluster_.Lead(run, 2));
  cluster_.Run(absl::Seconds(15));
  FakeWorker& late = cluster_.AddWorker("late");
  ASSERT_TRUE(cluster_.RunUntil([&] { return late.start.has_value(); }));
  const uint32_t group = late.place().group();
  EXPECT_TRUE(Writes(run, group));
  EXPECT_EQ(cluster_.Group(run, 1).generation(), others);
}

TEST_F(CheckpointWriterTest, GroupZeroThatReturnsInTimeWritesThem) {
  const std::string run = BeginWithoutGroupZero(3);
  Commit(run);
  FakeWorker& late = cluster_.AddWorker("late");
  ASSERT_TRUE(cluster_.RunUntil([&] { return late.start.has_value(); }));
  EXPECT_EQ(late.place().group(), 0U);
  EXPECT_TRUE(Writes(run, 0));
  cluster_.Run(absl::Minutes(2));
  Commit(run);
  EXPECT_FALSE(Writes(run, 1));
}

}  // namespace
}  // namespace cadre::testing
