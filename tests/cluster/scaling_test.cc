// Changes the number of groups of a run with real processes.
#include <cmath>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/data_position.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

constexpr absl::Duration kLong = absl::Seconds(180);
constexpr uint32_t kEpochs = 60;
constexpr uint64_t kTrainSamples = 2048;

v1::RunSpec AdamSpec() {
  v1::RunSpec spec =
      SmallSpec({.groups = 2, .ranks = 1, .every_steps = 8, .epochs = kEpochs, .hidden = 256});
  spec.mutable_optimizer()->mutable_adamw();
  spec.mutable_schedule()->set_base_rate(0.001);
  return spec;
}

v1::RunStatus TrainFixed() {
  Cluster cluster;
  const auto run = cluster.StartRun(AdamSpec());
  EXPECT_TRUE(run.ok()) << run.status();
  const auto status = cluster.AwaitDone(*run, kLong);
  EXPECT_TRUE(status.ok()) << status.status();
  return status.ok() ? status->runs(0) : v1::RunStatus();
}

// Waits for the epoch, then changes the number of groups and waits until they train.
void ScaleAt(double epoch, uint32_t groups, const std::string& run, Cluster& cluster) {
  const auto reached = cluster.Await(
      [&](const v1::StatusReply& status) {
        const v1::RunStatus* const found = FindRun(status, run);
        return found != nullptr && found->epoch() >= epoch;
      },
      kLong, "the epoch is reached");
  ASSERT_TRUE(reached.ok()) << reached.status();
  RunCadre(
      {"scale", run, "--groups", std::to_string(groups), "--coordinator", cluster.coordinator()});
  const auto scaled = cluster.Await(
      [&](const v1::StatusReply& status) {
        const v1::RunStatus* const found = FindRun(status, run);
        return found != nullptr && found->groups() == groups && found->groups_alive() == groups;
      },
      kLong, "the groups train");
  ASSERT_TRUE(scaled.ok()) << scaled.status();
}

// The commits divide the sequence of samples among 2, 4 and 1 groups without gap or overlap.
void ExpectDivided(const std::map<uint32_t, v1::CommitRecord>& commits, const v1::RunSpec& spec,
                   uint64_t trained) {
  v1::SampleDivision division = InitialDivision(spec);
  uint32_t step = 0;
  uint32_t most = 0;
  uint64_t samples = 0;
  for (const auto& [round, commit] : commits) {
    if (round == 0) continue;
    most = std::max<uint32_t>(most, commit.participants_size());
    EXPECT_LE(commit.participants_size(), static_cast<int>(division.groups()));
    for (const v1::Participant& participant : commit.participants()) {
      EXPECT_LE(participant.samples(), uint64_t{commit.step() - step} * BatchOf(spec));
      samples += participant.samples();
    }
    if (commit.division().step() != division.step()) {
      EXPECT_EQ(commit.division().step(), commit.step());
      EXPECT_EQ(commit.division().position(), PositionAt(division, commit.step(), BatchOf(spec)));
      division = commit.division();
    }
    step = commit.step();
  }
  EXPECT_EQ(most, 4U) << "all four groups were averaged";
  EXPECT_EQ(division.groups(), 1U);
  EXPECT_EQ(samples, trained);
  EXPECT_LE(samples, kEpochs * kTrainSamples + 4 * BatchOf(spec));
  EXPECT_GE(PositionAt(division, step, BatchOf(spec)), int64_t{kEpochs * kTrainSamples});
  EXPECT_LT(PositionAt(division, step - 1, BatchOf(spec)), int64_t{kEpochs * kTrainSamples});
}

// Scales 2 -> 4 -> 1. The run ends after exactly its epochs.
TEST(ScalingTest, RunEndsAfterItsEpochs) {
  const v1::RunSpec spec = AdamSpec();
  Cluster cluster;
  ASSERT_EQ(cluster.StartAll(/*aggregators=*/2, /*workers=*/4), absl::OkStatus());
  const auto run = cluster.client().Submit(spec);
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_NO_FATAL_FAILURE(ScaleAt(3, 4, *run, cluster));
  ASSERT_NO_FATAL_FAILURE(ScaleAt(0.75 * kEpochs, 1, *run, cluster));
  const auto done = cluster.AwaitDone(*run, kLong);
  ASSERT_TRUE(done.ok()) << done.status();
  const v1::RunStatus status = done->runs(0);
  EXPECT_EQ(status.step(), status.total_steps());
  EXPECT_EQ(Counter(*done, "groups_failed"), 0U);
  // The workers have trained on every sample of the commits. The counters come with heartbeats.
  const auto counted = cluster.Await(
      [&](const v1::StatusReply& reply) {
        uint64_t trained = 0;
        for (const v1::MemberStatus& worker : reply.workers()) {
          const auto samples = worker.counters().find("samples");
          if (samples != worker.counters().end()) trained += samples->second;
        }
        return trained >= status.samples();
      },
      absl::Seconds(10), "the workers report their samples");
  EXPECT_TRUE(counted.ok()) << counted.status();

  cluster.Signal("coordinator", SIGTERM);
  ASSERT_TRUE(
      cluster.process("coordinator").WaitUntil(absl::Now() + absl::Seconds(20)).has_value());
  const auto commits = cluster.Commits(*run);
  ASSERT_TRUE(commits.ok()) << commits.status();
  ExpectDivided(*commits, spec, status.samples());
  EXPECT_GE(status.test().accuracy(), 0.9);
  EXPECT_NEAR(status.test().loss(), TrainFixed().test().loss(), 0.1);
}

}  // namespace
}  // namespace cadre::testing
