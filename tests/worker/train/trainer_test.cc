// One rank's generation against a fake coordinator. Groups of several ranks and real aggregators
// are tested in tests/equivalence and tests/cluster.
#include "worker/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/transport/thread_transport.h"
#include "model/data_position.h"
#include "model/formats/checkpoint_folder.h"
#include "model/formats/checkpoint_manifest.h"
#include "plan/cluster_profile.h"
#include "tests/base/expect.h"
#include "tests/base/temporary_folder.h"
#include "tests/member/recording_control.h"

namespace cadre {
namespace {

v1::RunSpec TrainedSpec() {
  return Parse<v1::RunSpec>(R"(
        name: "trainer"
        model {
          input { channels: 1 height: 4 width: 4 }
          layer { name: "fc" fully_connected { out_features: 3 } }
          layer { name: "loss" softmax_cross_entropy {} }
        }
        data { synthetic { train_samples: 64 test_samples: 20 classes: 3 } }
        batch_per_group: 8
        optimizer { sgd { momentum: 0.5 } }
        schedule { base_rate: 0.1 }
        averaging { every_steps: 4 max_solo_steps: 6 }
        seed: 5
      )");
}

TrainerOutcome Train(const v1::Assignment& assignment, RecordingControl& control,
                     Counters* counters = nullptr, TrainerOptions options = {}) {
  auto kernels = MakeCpuBackend(1);
  Cancellation cancellation;
  Counters unwatched;
  options.report_every = absl::ZeroDuration();
  options.connect = [](const v1::Assignment&) -> absl::StatusOr<std::unique_ptr<Transport>> {
    return std::move(MakeThreadTransports(1, absl::Seconds(5))[0]);
  };
  control.start.set_step(assignment.spec().checkpoint().from_step());
  return TrainAsMember(assignment, *kernels, control, cancellation,
                       counters != nullptr ? *counters : unwatched, options);
}

// Trains two ranks as threads of one process, each with its own fake coordinator.
void TrainPair(v1::Assignment assignment, RecordingControl (&controls)[2]) {
  assignment.add_peers("one");
  assignment.add_peers("two");
  auto transports = MakeThreadTransports(2, absl::Seconds(30));
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      v1::Assignment mine = assignment;
      mine.mutable_place()->set_rank(rank);
      auto kernels = MakeCpuBackend(1);
      Cancellation cancellation;
      Counters counters;
      LinkCache links;
      TrainerOptions options;
      options.links = &links;
      options.connect = [&](const v1::Assignment&) -> absl::StatusOr<std::unique_ptr<Transport>> {
        return std::move(transports[rank]);
      };
      const TrainerOutcome outcome =
          TrainAsMember(mine, *kernels, controls[rank], cancellation, counters, options);
      // The release of one rank aborts the transport of the other.
      if (absl::IsCancelled(outcome.status)) return;
      EXPECT_TRUE(absl::IsUnavailable(outcome.status)) << outcome.status;
      EXPECT_EQ(outcome.cause, v1::FAILURE_CAUSE_PEER);
      EXPECT_EQ(outcome.suspects, std::vector<int>({1 - static_cast<int>(rank)}));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::map<std::string, int> EventsByCategory(const v1::Traced& traced) {
  std::map<std::string, int> events;
  for (const v1::TraceEvent& event : traced.events()) ++events[event.category()];
  return events;
}

TEST(Trainer, ReportsPlanTraceAndExposedTime) {
  RecordingControl controls[2];
  for (RecordingControl& control : controls) {
    control.start = StartOf(4);
    control.trace_request = TraceOf(3);
  }
  controls[0].decisions = {DecisionTo(10), DecisionTo(0)};
  const v1::Assignment assignment = AssignmentOf(TrainedSpec(), 2);
  TrainPair(assignment, controls);

  const v1::Plan& plan = controls[0].prepared.plan();
  EXPECT_GT(plan.link().beta(), 0) << "measured";
  EXPECT_EQ(plan.link().kind(), v1::LinkProfile::THREADS);
  EXPECT_EQ(plan.layers_size(), assignment.plan().layers_size());
  EXPECT_FALSE(controls[1].prepared.has_plan()) << "only rank 0 sends the plan";
  for (const RecordingControl& control : controls) {
    ASSERT_EQ(control.traced.size(), 1U);
    EXPECT_EQ(control.traced[0].request(), 7U);
    std::map<std::string, int> events = EventsByCategory(control.traced[0]);
    EXPECT_EQ(events["step"], 3);
    EXPECT_GT(events["compute"], 0);
    EXPECT_GT(events["collective"], 0);
    EXPECT_GT(events["update"], 0);
    for (const v1::TraceEvent& event : control.traced[0].events()) {
      if (event.category() != "collective") continue;
      EXPECT_LT(event.step(), 3U) << event.name();
    }
  }
  for (const v1::Progress& progress : controls[0].progress) {
    EXPECT_GT(progress.step_seconds(), 0);
    EXPECT_GE(progress.exposed_seconds(), 0);
    EXPECT_LE(progress.exposed_seconds(), progress.step_seconds());
  }
}

TEST(Trainer, RankZeroReportsOneProfile) {
  RecordingControl controls[2];
  for (RecordingControl& control : controls) control.start = StartOf(14);
  controls[0].decisions = {DecisionTo(0)};
  const v1::Assignment assignment = AssignmentOf(TrainedSpec(), 2);
  TrainPair(assignment, controls);
  EXPECT_TRUE(controls[1].measured.empty());
  ASSERT_EQ(controls[0].measured.size(), 1U) << "once";
  const v1::Measured& measured = controls[0].measured[0];
  EXPECT_EQ(measured.place().generation(), 3U);
  EXPECT_EQ(measured.layers().model(), ModelKey(TrainedSpec().model()));
  EXPECT_GT(measured.layers().time_size(), 0);
  EXPECT_GT(measured.times().compute(), 0);
  EXPECT_GT(measured.times().collectives(), 0);
  EXPECT_GE(measured.times().step(), measured.times().compute());
  EXPECT_GT(measured.update_seconds(), 0);
}

TEST(Trainer, TracedStepsAreNotProfiled) {
  // Profiles six steps after two of warm-up; a trace of four steps interrupts that.
  const auto profiles_after = [](uint32_t steps) {
    RecordingControl control;
    control.start = StartOf(steps);
    control.decisions = {DecisionTo(0)};
    control.trace_request = TraceOf(4);
    control.steps_before_trace = 4;
    Train(AssignmentOf(TrainedSpec()), control);
    EXPECT_EQ(control.traced.size(), 1U);
    std::map<std::string, int> events = EventsByCategory(control.traced[0]);
    EXPECT_EQ(events["step"], 4);
    EXPECT_GT(events["compute"], 0);
    return control.measured.size();
  };
  EXPECT_EQ(profiles_after(8), 0U);
  EXPECT_EQ(profiles_after(20), 1U);
}

TEST(Trainer, TraceEndsWithTheRun) {
  RecordingControl control;
  control.start = StartOf(4);
  control.decisions = {DecisionTo(0)};
  control.trace_request = TraceOf(50);
  const TrainerOutcome outcome = Train(AssignmentOf(TrainedSpec()), control);
  EXPECT_TRUE(absl::IsCancelled(outcome.status)) << outcome.status;
  ASSERT_EQ(control.traced.size(), 1U);
  EXPECT_EQ(EventsByCategory(control.traced[0])["step"], 4);
}

TEST(Trainer, TrainsContributesAndEvaluates) {
  RecordingControl control;
  control.start = StartOf(4);
  control.decisions = {DecisionTo(10), EndOfRun(20)};
  Counters counters;
  const TrainerOutcome outcome = Train(AssignmentOf(TrainedSpec()), control, &counters);
  EXPECT_TRUE(absl::IsCancelled(outcome.status)) << outcome.status;
  EXPECT_EQ(outcome.cause, v1::FAILURE_CAUSE_UNSPECIFIED);

  EXPECT_EQ(control.prepared.train_samples(), 64U);
  EXPECT_EQ(control.prepared.test_samples(), 20U);
  ASSERT_EQ(control.prepared.held_size(), 2);
  EXPECT_EQ(control.prepared.held(0).parameter(), "fc/weight");
  EXPECT_EQ(control.prepared.held(0).elements(), 48U);
  EXPECT_EQ(control.prepared.held(0).owned(), 48U);

  ASSERT_EQ(control.contributed.size(), 2U);
  EXPECT_EQ(control.contributed[0].step(), 4U);
  EXPECT_EQ(control.contributed[0].samples(), 32U);
  EXPECT_EQ(control.contributed[1].step(), 10U);
  EXPECT_EQ(control.contributed[1].samples(), 48U);
  EXPECT_LT(control.contributed[1].loss(), control.contributed[0].loss()) << "the loss falls";
  ASSERT_EQ(control.evaluated.size(), 1U);
  EXPECT_EQ(control.evaluated[0].end(), 20U);
  EXPECT_EQ(control.evaluated[0].labels(), 20U);
  EXPECT_LE(control.evaluated[0].correct(), 20U);
  EXPECT_NE(control.evaluated[0].digest(), 0U);
  EXPECT_EQ(counters.Get("steps"), 10U);
  EXPECT_FALSE(control.progress.empty());
}

TEST(Trainer, TrainsSoloUpToTheLimit) {
  RecordingControl control;
  control.start = StartOf(4);
  control.connections = {false, false, false};
  Train(AssignmentOf(TrainedSpec()), control);
  ASSERT_EQ(control.contributed.size(), 1U);
  EXPECT_EQ(control.contributed[0].step(), 4U + 6U) << "six solo steps, then it waits";
  EXPECT_EQ(control.contributed[0].samples(), 80U) << "solo steps count";
  EXPECT_EQ(control.contributed[0].round(), 1U);
  EXPECT_EQ(control.progress.back().solo_steps(), 6U) << "solo steps are reported";
}

TEST(Trainer, SoloTrainingEndsWithTheRun) {
  RecordingControl control;
  control.start = StartOf(4);
  control.start.set_total_steps(7);
  control.connections = {false, false, false};
  Train(AssignmentOf(TrainedSpec()), control);
  ASSERT_EQ(control.contributed.size(), 1U);
  EXPECT_EQ(control.contributed[0].step(), 7U) << "the coordinator refuses later steps";
}

TEST(Trainer, SoloTrainingEndsAtTheBoundaryAfterReconnect) {
  RecordingControl control;
  control.start = StartOf(4);
  control.connections = {false, true};
  Train(AssignmentOf(TrainedSpec()), control);
  ASSERT_EQ(control.contributed.size(), 1U);
  EXPECT_EQ(control.contributed[0].step(), 8U);
}

TEST(Trainer, WaitsAtTheBoundaryWithoutSoloSteps) {
  v1::RunSpec spec = TrainedSpec();
  spec.mutable_averaging()->set_max_solo_steps(0);
  RecordingControl control;
  control.start = StartOf(4);
  control.connections = {false, false};
  Train(AssignmentOf(spec), control);
  ASSERT_EQ(control.contributed.size(), 1U);
  EXPECT_EQ(control.contributed[0].step(), 4U);
}

TEST(Trainer, NamesDataAndPlanAsCause) {
  RecordingControl control;
  v1::RunSpec missing = TrainedSpec();
  missing.mutable_data()->mutable_idx()->set_train_images("/no/such/file");
  TrainerOutcome outcome = Train(AssignmentOf(missing), control);
  EXPECT_EQ(outcome.cause, v1::FAILURE_CAUSE_DATA);
  EXPECT_NE(outcome.status.message().find("/no/such/file"), absl::string_view::npos);

  v1::Assignment other = AssignmentOf(TrainedSpec());
  other.mutable_plan()->mutable_layers(0)->set_layer("other");
  outcome = Train(other, control);
  EXPECT_EQ(outcome.cause, v1::FAILURE_CAUSE_PLAN) << outcome.status;
}

TEST(Trainer, NamesAggregatorAsCause) {
  RecordingControl control;  // knows no address
  control.start.set_version(1);
  v1::Assignment assignment = AssignmentOf(TrainedSpec());
  assignment.add_shards();
  TrainerOptions options;
  options.exchange_silence = absl::Milliseconds(100);
  const TrainerOutcome outcome = Train(assignment, control, nullptr, options);
  EXPECT_EQ(outcome.cause, v1::FAILURE_CAUSE_AGGREGATOR) << outcome.status;
  EXPECT_TRUE(outcome.suspects.empty());
}

// Trains from the assignment's step to `step`, where the run ends, and returns the digest of the
// final model.
uint64_t DigestAfter(v1::Assignment assignment, uint32_t step, Counters* counters = nullptr) {
  RecordingControl control;
  control.start = StartOf(step);
  control.start.set_total_steps(step);
  *control.start.mutable_division() = InitialDivision(assignment.spec());
  control.decisions = {EndOfRun(20)};
  const TrainerOutcome outcome = Train(assignment, control, counters);
  EXPECT_TRUE(absl::IsCancelled(outcome.status)) << outcome.status;
  return control.evaluated.empty() ? 0 : control.evaluated[0].digest();
}

TEST(Trainer, DigestIsAFunctionOfTheSeed) {
  v1::RunSpec spec = TrainedSpec();
  const uint64_t digest = DigestAfter(AssignmentOf(spec), 4);
  EXPECT_EQ(DigestAfter(AssignmentOf(spec), 4), digest);
  spec.set_seed(6);
  EXPECT_NE(DigestAfter(AssignmentOf(spec), 4), digest);
}

TEST(Trainer, SavesCheckpointsPeriodicallyAndAtTheEnd) {
  const TemporaryFolder folder;
  v1::RunSpec spec = WithCheckpoints(TrainedSpec(), folder.path());
  spec.mutable_checkpoint()->set_keep(3);
  Counters counters;
  EXPECT_NE(DigestAfter(AssignmentOf(spec), 20, &counters), 0U);
  EXPECT_EQ(counters.Get("checkpoints_saved"), 4U);
  const auto kept = ListCheckpoints(folder.path());
  ASSERT_TRUE(kept.ok()) << kept.status();
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : *kept) steps.push_back(entry.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{12, 18, 20}));
  const auto manifest = ReadManifest(folder.path() + "/step-18/manifest.textproto");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->cursor().position(), 18U * 8);
  EXPECT_EQ(manifest->cursor().epoch(), 2U);
  EXPECT_EQ(manifest->optimizer().updates(), 18U);
}

TEST(Trainer, ReportsEachCheckpoint) {
  const TemporaryFolder folder;
  for (const bool fails : {false, true}) {
    RecordingControl control;
    control.start = StartOf(20);
    control.decisions = {EndOfRun(20)};
    Train(AssignmentOf(
              WithCheckpoints(TrainedSpec(), fails ? "/dev/null/checkpoints" : folder.path())),
          control);
    std::vector<uint32_t> steps;
    for (const v1::Checkpointed& report : control.checkpointed) {
      steps.push_back(report.step());
      EXPECT_EQ(report.place().generation(), 3U);
      EXPECT_EQ(report.error().empty(), !fails) << report.error();
      if (!fails) continue;
      EXPECT_THAT(report.error(), ::testing::HasSubstr("/dev/null/checkpoints"));
    }
    EXPECT_EQ(steps, (std::vector<uint32_t>{6, 12, 18, 20}));
  }
}

// The group that trained the last version was lost before it had written the checkpoint.
TEST(Trainer, GroupThatIsFormedAtTheEndWritesTheLastCheckpoint) {
  const TemporaryFolder folder;
  DigestAfter(AssignmentOf(WithCheckpoints(TrainedSpec(), folder.path() + "/first")), 12);
  const v1::Assignment assignment =
      AssignmentOf(ResumingFrom(WithCheckpoints(TrainedSpec(), folder.path() + "/second"),
                                folder.path() + "/first/step-12", 12));
  for (const bool saved : {false, true}) {
    RecordingControl control;
    control.start = StartOf(0);
    control.start.set_step(12);
    control.start.set_evaluate_end(20);
    Counters counters;
    Train(assignment, control, &counters);
    ASSERT_EQ(control.checkpointed.size(), 1U);
    EXPECT_EQ(control.checkpointed[0].step(), 12U);
    EXPECT_EQ(control.checkpointed[0].error(), "");
    EXPECT_EQ(counters.Get("checkpoints_saved"), saved ? 0U : 1U);
    const auto kept = ListCheckpoints(folder.path() + "/second");
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_EQ(kept->size(), 1U);
  }
}

// The coordinator chooses the group.
TEST(Trainer, GroupWithADirectorySavesCheckpoints) {
  for (const bool writes : {false, true}) {
    const TemporaryFolder folder;
    v1::Assignment assignment = AssignmentOf(WithCheckpoints(TrainedSpec(), folder.path()));
    assignment.mutable_place()->set_group(1);
    if (!writes) assignment.mutable_spec()->clear_checkpoint();
    Counters counters;
    DigestAfter(assignment, 20, &counters);
    EXPECT_EQ(counters.Get("checkpoints_saved") > 0, writes);
  }
}

TEST(Trainer, ResumesFromCheckpointBitForBit) {
  const TemporaryFolder folder;
  const v1::RunSpec spec = WithCheckpoints(TrainedSpec(), folder.path() + "/first");
  const uint64_t whole = DigestAfter(AssignmentOf(spec), 20);
  DigestAfter(AssignmentOf(spec), 12);

  const v1::RunSpec rest = ResumingFrom(WithCheckpoints(TrainedSpec(), folder.path() + "/second"),
                                        folder.path() + "/first/step-12", 12);
  Counters counters;
  EXPECT_EQ(DigestAfter(AssignmentOf(rest), 20, &counters), whole);
  EXPECT_EQ(counters.Get("steps"), 8U);
}

TEST(Trainer, ResumesDataPositionWithAnotherBatch) {
  const TemporaryFolder folder;
  DigestAfter(AssignmentOf(WithCheckpoints(TrainedSpec(), folder.path() + "/first")), 12);
  v1::RunSpec rest = ResumingFrom(WithCheckpoints(TrainedSpec(), folder.path() + "/second"),
                                  folder.path() + "/first/step-12", 12);
  rest.set_batch_per_group(16);
  rest.mutable_checkpoint()->set_from_position(12 * 8);
  DigestAfter(AssignmentOf(rest), 20);
  const auto manifest = ReadManifest(folder.path() + "/second/step-20/manifest.textproto");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->cursor().position(), 12U * 8 + 8 * 16);
  EXPECT_EQ(manifest->run(), "run-1.a");
}

TEST(Trainer, KeepsUpToTheLargestNumberOfCheckpoints) {
  const TemporaryFolder folder;
  v1::RunSpec spec = WithCheckpoints(TrainedSpec(), folder.path());
  spec.mutable_checkpoint()->set_keep(4294967295);
  DigestAfter(AssignmentOf(spec), 20);
  EXPECT_EQ(ListCheckpoints(folder.path())->size(), 4U);
}

TEST(Trainer, RejectsFolderOfAnotherRunUnlessResumed) {
  const TemporaryFolder folder;
  const v1::RunSpec spec = WithCheckpoints(TrainedSpec(), folder.path());
  DigestAfter(AssignmentOf(spec), 12);
  const auto outcome_of = [](const v1::RunSpec& run) {
    v1::Assignment assignment = AssignmentOf(run);
    assignment.set_lineage("run-1.b");
    RecordingControl control;
    control.start = StartOf(20);
    return Train(assignment, control);
  };
  TrainerOutcome outcome = outcome_of(spec);
  EXPECT_EQ(outcome.cause, v1::FAILURE_CAUSE_CHECKPOINT);
  EXPECT_TRUE(absl::IsFailedPrecondition(outcome.status)) << outcome.status;
  EXPECT_NE(outcome.status.message().find(folder.path() + "/step-12"), absl::string_view::npos)
      << outcome.status;

  // Starting from a checkpoint that is not the newest is an error.
  EXPECT_EQ(outcome_of(ResumingFrom(spec, folder.path() + "/step-6", 6)).cause,
            v1::FAILURE_CAUSE_CHECKPOINT);

  v1::RunSpec rest = ResumingFrom(spec, folder.path() + "/step-12", 12);
  rest.mutable_checkpoint()->set_keep(1);
  outcome = outcome_of(rest);
  EXPECT_TRUE(absl::IsCancelled(outcome.status)) << outcome.status;
  std::vector<int64_t> steps;
  const auto kept = ListCheckpoints(folder.path());
  for (const CheckpointEntry& entry : *kept) steps.push_back(entry.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{6, 12, 18}))
      << "checkpoints of the other run are not removed";
}

TEST(Trainer, NamesCheckpointAsCause) {
  const TemporaryFolder folder;
  DigestAfter(AssignmentOf(WithCheckpoints(TrainedSpec(), folder.path())), 6);
  v1::RunSpec spec = TrainedSpec();
  spec.mutable_checkpoint()->set_from(folder.path() + "/step-6");
  const auto outcome_at = [](v1::RunSpec run, uint32_t step) {
    run.mutable_checkpoint()->set_from_step(step);
    const v1::Assignment assignment = AssignmentOf(run);
    RecordingControl control;
    control.start = StartOf(step + 4);
    return Train(assignment, control);
  };
  TrainerOutcome outcome = outcome_at(spec, 5);
  EXPECT_EQ(outcome.cause, v1::FAILURE_CAUSE_CHECKPOINT);
  EXPECT_NE(outcome.status.message().find("was saved at step 6"), absl::string_view::npos)
      << outcome.status;
  outcome = outcome_at(spec, 6);
  EXPECT_TRUE(absl::IsCancelled(outcome.status)) << outcome.status;

  v1::RunSpec other = spec;
  other.mutable_model()->mutable_layer(0)->mutable_fully_connected()->set_out_features(5);
  outcome = outcome_at(other, 6);
  EXPECT_EQ(outcome.cause, v1::FAILURE_CAUSE_CHECKPOINT);
  EXPECT_NE(outcome.status.message().find("fc/weight"), absl::string_view::npos) << outcome.status;

  spec.mutable_checkpoint()->set_from(folder.path() + "/nowhere");
  outcome = outcome_at(spec, 6);
  EXPECT_EQ(outcome.cause, v1::FAILURE_CAUSE_CHECKPOINT);
  EXPECT_NE(outcome.status.message().find("nowhere"), absl::string_view::npos) << outcome.status;
}

TEST(Trainer, TrainingContinuesIfCheckpointsCannotBeSaved) {
  Counters counters;
  EXPECT_NE(DigestAfter(AssignmentOf(WithCheckpoints(TrainedSpec(), "/dev/null/checkpoints")), 20,
                        &counters),
            0U);
  EXPECT_EQ(counters.Get("checkpoints_saved"), 0U);
  EXPECT_GE(counters.Get("checkpoints_failed"), 1U);
  EXPECT_EQ(counters.Get("steps"), 20U);
}

TEST(Trainer, NonFiniteLossNamesStepLayerAndRank) {
  v1::RunSpec spec = TrainedSpec();
  spec.mutable_schedule()->set_base_rate(1e38F);
  RecordingControl control;
  control.start = StartOf(10);
  const TrainerOutcome outcome = Train(AssignmentOf(spec), control);
  EXPECT_EQ(outcome.cause, v1::FAILURE_CAUSE_DIVERGED) << outcome.status;
  EXPECT_THAT(std::string(outcome.status.message()),
              ::testing::ContainsRegex("step [1-9]: the loss is .*on rank 0.*version 0 is kept"));
  EXPECT_TRUE(control.contributed.empty());
}

// Training normalizes the large inputs, but evaluation uses running statistics that hardly move.
TEST(Trainer, NonFiniteTestLossNamesStepLayerAndRank) {
  v1::RunSpec spec = TrainedSpec();
  *spec.mutable_model() = Parse<v1::Model>(R"(
    input { channels: 1 height: 4 width: 4 }
    layer { name: "norm" batch_norm { momentum: 1e-30 } }
    layer { name: "square" input: "norm" input: "norm" multiply {} }
    layer { name: "power" input: "square" input: "square" multiply {} }
    layer { name: "fc" fully_connected { out_features: 3 } }
    layer { name: "loss" softmax_cross_entropy {} })");
  spec.mutable_data()->mutable_synthetic()->set_noise(1e12F);
  spec.mutable_schedule()->set_base_rate(1e-6F);
  RecordingControl control;
  control.start = StartOf(4);
  control.decisions = {EndOfRun(20)};
  const TrainerOutcome outcome = Train(AssignmentOf(spec), control);
  EXPECT_EQ(outcome.cause, v1::FAILURE_CAUSE_DIVERGED) << outcome.status;
  EXPECT_THAT(std::string(outcome.status.message()),
              ::testing::ContainsRegex("step 4: test samples 0 to 20: the loss is .*layer 'power' "
                                       "on rank 0.*version 0 is kept"));
  EXPECT_EQ(control.contributed.size(), 1U) << "training is finite";
  EXPECT_TRUE(control.evaluated.empty());
}

// The loss of the first step is finite, but its update is not, and must not be averaged.
TEST(Trainer, OverflowingUpdateIsNeitherContributedNorSaved) {
  const TemporaryFolder folder;
  v1::RunSpec spec = WithCheckpoints(TrainedSpec(), folder.path());
  spec.mutable_checkpoint()->set_every_steps(1);
  spec.mutable_schedule()->set_base_rate(1e38F);
  spec.mutable_optimizer()->mutable_sgd()->set_weight_decay(1e30F);
  for (const uint32_t boundary : {1, 10}) {
    RecordingControl control;
    control.start = StartOf(boundary);
    const TrainerOutcome outcome = Train(AssignmentOf(spec), control);
    EXPECT_EQ(outcome.cause, v1::FAILURE_CAUSE_DIVERGED) << outcome.status;
    EXPECT_THAT(std::string(outcome.status.message()),
                ::testing::ContainsRegex("step 0: .*'fc/weight'.*on rank 0.*version 0 is kept"));
    EXPECT_TRUE(control.contributed.empty());
    EXPECT_EQ(folder.Entries(), 0) << "no checkpoint";
  }
}

TEST(Trainer, ReportsMemory) {
  RecordingControl control;
  control.start = StartOf(4);
  Train(AssignmentOf(TrainedSpec()), control);
  EXPECT_EQ(control.prepared.memory().weights(), 51U * sizeof(float));
  EXPECT_EQ(control.prepared.memory().gradients(), 51U * sizeof(float));
  EXPECT_EQ(control.prepared.memory().optimizer(), 51U * sizeof(float));
  EXPECT_GT(control.prepared.memory().activations(), 0U);
  EXPECT_EQ(control.prepared.memory().exchange(), 0U) << "there are no aggregators";
  control.prepared.mutable_planned_memory()->clear_exchange();
  EXPECT_EQ(control.prepared.memory().ShortDebugString(),
            control.prepared.planned_memory().ShortDebugString());
}

}  // namespace
}  // namespace cadre
