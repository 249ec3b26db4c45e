// Generations of a group on devices: averaging, checkpoints, evaluation and reports, compared with
// the CPU. Devices are emulated, NCCL and the coordinator are fakes, and the aggregator is real.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "kernels/backend.h"
#include "member/trainer_progress.h"
#include "model/coding.h"
#include "tests/base/expect.h"
#include "tests/comm/transport/ranks.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/emulator/fake_nccl.h"
#include "tests/member/group_ranks.h"
#include "tests/member/recording_control.h"
#include "tests/server/rounds_server.h"
#include "worker/train/trainer.h"

namespace cadre {
namespace {

using testing::RoundsServer;

constexpr uint64_t kTestSamples = 20;

v1::RunSpec Spec() {
  return Parse<v1::RunSpec>(R"(
        name: "life"
        model {
          input { channels: 1 height: 4 width: 4 }
          layer { name: "fc1" fully_connected { out_features: 6 } }
          layer { name: "relu" relu {} }
          layer { name: "fc2" fully_connected { out_features: 4 } }
          layer { name: "loss" softmax_cross_entropy {} }
        }
        data { synthetic { train_samples: 64 test_samples: 20 classes: 4 } }
        batch_per_group: 8
        optimizer { sgd { momentum: 0.5 } }
        schedule { base_rate: 0.1 }
        seed: 5
        cluster { groups: 1 }
      )");
}

// An aggregator with the only shard of the run.
class Shard {
 public:
  explicit Shard(const v1::RunSpec& spec) : averaging_(spec.averaging()), server_(folder_.path()) {
    v1::OpenRun open;
    open.set_run("run-1");
    open.set_lineage("run-1.a");
    open.set_shards(1);
    *open.mutable_spec() = spec;
    const auto opened = server_.host().OpenRun(open);
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (!opened.ok()) return;
    EXPECT_EQ(opened->error(), "");
    digest_ = opened->digest();
    server_.host().Fence(testing::FenceOf("run-1", 0, AssignmentOf(spec).place().generation()));
  }
  const std::string& address() const { return server_.address(); }
  // Digest of version 0.
  uint64_t digest() const { return digest_; }
  // Commits the staged contribution as the next version, and returns its digest.
  uint64_t Commit(const v1::Contributed& contributed, uint32_t ranks) {
    v1::Apply apply;
    apply.set_run("run-1");
    apply.set_round(contributed.round());
    if (const auto up = CodingOf(averaging_.up())) *apply.mutable_up() = *up;
    if (const auto down = CodingOf(averaging_.down())) *apply.mutable_down() = *down;
    v1::Participant& participant = *apply.add_participants();
    participant.set_generation(contributed.place().generation());
    participant.set_ranks(ranks);
    participant.set_samples(contributed.samples());
    const auto applied = server_.host().Apply(apply);
    EXPECT_TRUE(applied.ok()) << applied.status();
    if (!applied.ok()) return 0;
    EXPECT_EQ(applied->error(), "");
    return applied->digest();
  }

 private:
  const v1::Averaging averaging_;
  const TemporaryFolder folder_;
  RoundsServer server_;
  uint64_t digest_ = 0;
};

// The behavior of the fake coordinator.
struct Script {
  int ranks = 1;
  // Steps at which the group contributes. The run ends at the last one, and the model is then
  // evaluated.
  std::vector<uint32_t> boundaries;
  // Also evaluates the initial model.
  bool evaluates_first = false;
  // Null: nothing is averaged.
  Shard* shard = nullptr;
  std::optional<v1::TraceSteps> trace;
  // Called by each rank before its device is connected; may be empty.
  std::function<void(EmulatedCuda&)> before_connect;
};

// Answers each contribution with a decision, and releases the group at the end.
class ScriptedControl final : public RecordingControl {
 public:
  explicit ScriptedControl(const Script& script) : script_(script) {
    start = StartOf(script.boundaries.front());
    if (script.shard != nullptr) start.set_digest(script.shard->digest());
    if (script.evaluates_first) start.set_evaluate_end(kTestSamples);
    trace_request = script.trace;
  }

  std::vector<v1::Decision> decided;
  std::function<void()> on_report;

  void Send(const TrainingReport& report) override {
    RecordingControl::Send(report);
    if (on_report) on_report();
    if (const auto* message = std::get_if<v1::Contributed>(&report)) Answer(*message);
  }
  ShardLocation LocationOf(uint32_t) const override { return script_.shard->address(); }

 private:
  void Answer(const v1::Contributed& message) {
    const size_t next = contributed.size();
    const bool last = next >= script_.boundaries.size();
    v1::Decision decision = last ? EndOfRun(kTestSamples) : DecisionTo(script_.boundaries[next]);
    if (script_.shard != nullptr) {
      decision.set_adopt(true);
      decision.set_included(true);
      decision.set_round(message.round());
      decision.set_version(message.round());
      decision.set_step(message.step());
      decision.set_digest(script_.shard->Commit(message, script_.ranks));
    }
    decisions.push_back(decision);
    decided.push_back(decision);
  }

  const Script script_;
};

enum class Where { kCpu, kDevice };

// The results of a generation.
struct Result {
  // Rank 0's.
  std::unique_ptr<ScriptedControl> control;
  std::vector<TrainerOutcome> outcomes;
  // Number of phases that were replayed from recordings (StepRecorder), over all ranks.
  int64_t played = 0;
  // What the codes of each rank have left out.
  std::vector<StateVault> residuals;
  // What rank 0 has last shown to its heartbeats.
  std::vector<v1::Fallback> fallbacks;
};

v1::Assignment GroupAssignment(const v1::RunSpec& spec, const Script& script) {
  v1::Assignment assignment = AssignmentOf(spec, script.ranks);
  // Measuring the link takes seconds on emulated devices; other tests in this file measure it.
  if (spec.has_checkpoint()) {
    v1::LinkProfile& link = *assignment.mutable_plan()->mutable_link();
    link.set_alpha(1e-5);
    link.set_beta(1e-9);
    link.set_kind(v1::LinkProfile::NCCL);
  }
  for (int rank = 0; rank < script.ranks; ++rank) assignment.add_peers(absl::StrCat("peer ", rank));
  if (script.shard != nullptr) {
    assignment.add_shards()->set_address(script.shard->address());
  }
  return assignment;
}

// Every rank is a thread with its own device.
Result TrainGroup(Where where, const v1::RunSpec& spec, const Script& script,
                  FakeNccl* nccl = nullptr) {
  const v1::Assignment assignment = GroupAssignment(spec, script);
  FakeNccl own_nccl;
  if (nccl == nullptr) nccl = &own_nccl;
  auto transports = MakeThreadTransports(script.ranks, absl::Seconds(30));
  std::vector<std::unique_ptr<ScriptedControl>> controls;
  for (int rank = 0; rank < script.ranks; ++rank) {
    controls.push_back(std::make_unique<ScriptedControl>(script));
    controls.back()->start.set_step(spec.checkpoint().from_step());
  }
  Result result;
  result.outcomes.resize(script.ranks);
  result.residuals.resize(script.ranks);
  std::vector<int64_t> played(script.ranks);
  OnRanks(script.ranks, [&](int at) {
    v1::Assignment mine = assignment;
    mine.mutable_place()->set_rank(at);
    EmulatedRank rank;
    std::unique_ptr<Backend> cpu;
    StateVault states;
    TrainerOptions options;
    TrainerProgress progress;
    options.progress = &progress;
    if (at == 0) controls[0]->on_report = [&] { result.fallbacks = progress.fallbacks(); };
    options.states = &states;
    options.residuals = &result.residuals[at];
    options.report_every = absl::ZeroDuration();
    options.connect = [&](const v1::Assignment&) -> absl::StatusOr<std::unique_ptr<Transport>> {
      return std::move(transports[at]);
    };
    if (where == Where::kDevice) {
      rank = MakeEmulatedRank(EmulatedCuda::Mode::kInline);
      options.connect_data = [&](Transport& control) {
        if (script.before_connect) script.before_connect(*rank.machine);
        return MakeNcclTransport(nccl->api(), *rank.device, *rank.kernels, control, {});
      };
    } else {
      cpu = MakeReferenceBackend();
    }
    Cancellation cancellation;
    Counters counters;
    result.outcomes[at] = TrainAsMember(mine, cpu != nullptr ? *cpu : *rank.kernels, *controls[at],
                                        cancellation, counters, options);
    controls[at]->on_report = nullptr;
    EXPECT_TRUE(progress.fallbacks().empty()) << "after the end";
    if (where == Where::kDevice) played[at] = rank.machine->calls("graph_launch");
  });
  for (const int64_t of_rank : played) result.played += of_rank;
  result.control = std::move(controls[0]);
  return result;
}

// Trains to the end of the script: rank 0 is released, which aborts the transports of the others.
Result TrainToTheEnd(Where where, const v1::RunSpec& spec, const Script& script) {
  Result result = TrainGroup(where, spec, script);
  for (const TrainerOutcome& outcome : result.outcomes) {
    EXPECT_TRUE(absl::IsCancelled(outcome.status) || absl::IsUnavailable(outcome.status))
        << outcome.status;
    EXPECT_NE(outcome.cause, v1::FAILURE_CAUSE_MEMORY) << outcome.status;
  }
  EXPECT_TRUE(absl::IsCancelled(result.outcomes[0].status)) << result.outcomes[0].status;
  EXPECT_EQ(result.control->contributed.size(), script.boundaries.size());
  return result;
}

// The order of sums differs.
void ExpectNear(double found, double expected) {
  EXPECT_NEAR(found, expected, 1e-4 * std::abs(expected));
}

TEST(DeviceTrainerTest, AveragingEqualsTheCpu) {
  v1::RunSpec spec = Spec();
  spec.mutable_cluster()->set_ranks_per_group(2);
  spec.mutable_averaging()->set_every_steps(4);
  const auto train = [&](Where where) {
    Shard shard(spec);
    Result result =
        TrainToTheEnd(where, spec, {.ranks = 2, .boundaries = {4, 8, 12}, .shard = &shard});
    const ScriptedControl& control = *result.control;
    // Each rank staged and pulled its own slices; together they are the committed version.
    // The first one is version 0.
    EXPECT_EQ(control.adopted.size(), 4U);
    for (size_t i = 1; i < control.adopted.size(); ++i) {
      EXPECT_EQ(control.adopted[i].version(), i);
      EXPECT_EQ(control.adopted[i].digest(), control.decided[i - 1].digest());
      EXPECT_NE(control.adopted[i].digest(), control.adopted[i - 1].digest());
    }
    EXPECT_EQ(control.evaluated.size(), 1U);
    if (!control.evaluated.empty()) {
      EXPECT_EQ(control.evaluated[0].digest(), control.decided.back().digest());
    }
    return result;
  };
  const Result on_device = train(Where::kDevice);
  const Result on_cpu = train(Where::kCpu);
  ASSERT_EQ(on_device.control->contributed.size(), on_cpu.control->contributed.size());
  for (size_t i = 0; i < on_cpu.control->contributed.size(); ++i) {
    EXPECT_EQ(on_device.control->contributed[i].step(), on_cpu.control->contributed[i].step());
    EXPECT_EQ(on_device.control->contributed[i].payload_bytes(),
              on_cpu.control->contributed[i].payload_bytes());
    ExpectNear(on_device.control->contributed[i].loss(), on_cpu.control->contributed[i].loss());
  }
  ASSERT_EQ(on_device.control->evaluated.size(), 1U);
  ASSERT_EQ(on_cpu.control->evaluated.size(), 1U);
  ExpectNear(on_device.control->evaluated[0].loss_sum(), on_cpu.control->evaluated[0].loss_sum());
  EXPECT_EQ(on_device.played, 0) << "groups of two ranks do not record";
}

// The ranks together have kept what the codes of round `version` have left out of every value, and
// each another rank's part as well.
void ExpectKeptResidual(const Result& result, uint32_t version) {
  const int64_t size = ParameterIndex::FromModel(Spec().model())->size();
  double squares = 0;
  int64_t found = 0;
  for (StateVault vault : result.residuals) {
    std::vector<float> values(size);
    StateVault::States states;
    states.tensors.push_back({{{0, std::ssize(values)}, values}});
    vault.Settle(version, [](StateVault::Snapshot& each) {
      if (each.tensors.size() > 1) each.tensors = {each.tensors[1]};
      return true;
    });
    OnGroup(1, [&](Communicator& group) {
      const auto of_rank = vault.Restore(version, &states, group);
      ASSERT_TRUE(of_rank.ok()) << of_rank.status();
      found += *of_rank;
    });
    for (const float value : values) squares += double{value} * value;
  }
  const int64_t copies = std::min<int64_t>(2, std::ssize(result.residuals));
  EXPECT_EQ(found, copies * size);
  EXPECT_GT(squares, 0);
  EXPECT_LT(squares / static_cast<double>(copies), 1e-3);
}

// Contributions are coded on the devices, whose parts of the model are not those that they own. The
// committed digests are those of what the ranks have decoded.
TEST(DeviceTrainerTest, CodedAveragingIsCloseToTheCpu) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    v1::RunSpec spec = Spec();
    spec.mutable_cluster()->set_ranks_per_group(ranks);
    v1::Averaging& averaging = *spec.mutable_averaging();
    averaging.set_every_steps(4);
    averaging.mutable_up()->set_codec(v1::CODEC_INT8);
    averaging.mutable_down()->set_codec(v1::CODEC_BF16);
    const auto train = [&](Where where) {
      Shard shard(spec);
      Result result =
          TrainToTheEnd(where, spec, {.ranks = ranks, .boundaries = {4, 8, 12}, .shard = &shard});
      const ScriptedControl& control = *result.control;
      EXPECT_EQ(control.adopted.size(), 4U);
      for (size_t i = 1; i < control.adopted.size(); ++i) {
        EXPECT_EQ(control.adopted[i].digest(), control.decided[i - 1].digest());
        EXPECT_NE(control.adopted[i].digest(), control.adopted[i - 1].digest());
      }
      return result;
    };
    const Result on_device = train(Where::kDevice);
    const Result on_cpu = train(Where::kCpu);
    ASSERT_EQ(on_device.control->evaluated.size(), 1U);
    ASSERT_EQ(on_cpu.control->evaluated.size(), 1U);
    for (size_t i = 0; i < on_cpu.control->contributed.size(); ++i) {
      EXPECT_EQ(on_device.control->contributed[i].payload_bytes(),
                on_cpu.control->contributed[i].payload_bytes());
      ExpectNear(on_device.control->contributed[i].loss(), on_cpu.control->contributed[i].loss());
    }
    ExpectNear(on_device.control->evaluated[0].loss_sum(), on_cpu.control->evaluated[0].loss_sum());
    const v1::Prepared& prepared = on_device.control->prepared;
    EXPECT_GT(prepared.memory().buffers(), on_cpu.control->prepared.memory().buffers());
    EXPECT_LE(prepared.memory().buffers(), prepared.planned_memory().buffers());
    ExpectKeptResidual(on_device, 3);
    ExpectKeptResidual(on_cpu, 3);
  }
}

class DeviceCheckpointTest : public ::testing::TestWithParam<std::pair<Where, Where>> {};

TEST_P(DeviceCheckpointTest, ResumesOnAnotherDevice) {
  const auto [first, second] = GetParam();
  constexpr int kRanks = 2;
  const TemporaryFolder folder;
  const Result saved = TrainToTheEnd(first, WithCheckpoints(Spec(), folder.path() + "/saved"),
                                     {.ranks = kRanks, .boundaries = {12}});
  ASSERT_EQ(saved.control->evaluated.size(), 1U);
  const Result whole = TrainToTheEnd(first, WithCheckpoints(Spec(), folder.path() + "/whole"),
                                     {.ranks = kRanks, .boundaries = {18}});
  ASSERT_EQ(whole.control->evaluated.size(), 1U);

  const Result resumed =
      TrainToTheEnd(second, ResumingFrom(Spec(), folder.path() + "/saved/step-12", 12),
                    {.ranks = kRanks, .boundaries = {18}, .evaluates_first = true});
  ASSERT_EQ(resumed.control->evaluated.size(), 2U);
  EXPECT_EQ(resumed.control->evaluated[0].digest(), saved.control->evaluated[0].digest())
      << "the saved model";
  ExpectNear(resumed.control->evaluated[0].loss_sum(), saved.control->evaluated[0].loss_sum());
  EXPECT_NE(resumed.control->evaluated[1].digest(), resumed.control->evaluated[0].digest());
  // Momentum is restored; without it the last steps would differ.
  ExpectNear(resumed.control->evaluated[1].loss_sum(), whole.control->evaluated[0].loss_sum());
  if (first == second) {
    EXPECT_EQ(resumed.control->evaluated[1].digest(), whole.control->evaluated[0].digest())
        << "bit for bit";
  }
}

INSTANTIATE_TEST_SUITE_P(, DeviceCheckpointTest,
                         ::testing::Values(std::pair(Where::kDevice, Where::kCpu),
                                           std::pair(Where::kCpu, Where::kDevice),
                                           std::pair(Where::kDevice, Where::kDevice)),
                         [](const auto& info) {
                           const auto name = [](Where where) {
                             return std::string(where == Where::kCpu ? "Cpu" : "Device");
                           };
                           return name(info.param.first) + "To" + name(info.param.second);
                         });

// An idle tracer and a measurer that has reported do not prevent recordings.
TEST(DeviceTrainerTest, SingleRankPlaysRecordings) {
  const Result result = TrainToTheEnd(Where::kDevice, Spec(), {.ranks = 1, .boundaries = {20}});
  ASSERT_EQ(result.control->measured.size(), 1U);
  // Among 20 steps, 2 are warm-up and 6 are profiled. Both phases of each other step are replayed,
  // except for those that run first and those that are captured.
  EXPECT_GE(result.played, 2 * (20 - 8 - 3));
}

// Heartbeats show why steps are slower than they could be.
TEST(DeviceTrainerTest, RefusedRecordingsAreShown) {
  const Script script{.ranks = 1, .boundaries = {20}, .before_connect = [](EmulatedCuda& machine) {
                        machine.FailNext("graph_instantiate", cudaErrorNotSupported);
                      }};
  const Result refused = TrainToTheEnd(Where::kDevice, Spec(), script);
  EXPECT_EQ(refused.played, 0);
  ASSERT_EQ(refused.fallbacks.size(), 1U);
  EXPECT_EQ(refused.fallbacks[0].kind(), v1::Fallback::RECORDING);
  EXPECT_EQ(refused.fallbacks[0].count(), 1U);
  EXPECT_THAT(refused.fallbacks[0].reason(), ::testing::HasSubstr("instantiation"));
  EXPECT_TRUE(
      TrainToTheEnd(Where::kDevice, Spec(), {.ranks = 1, .boundaries = {20}}).fallbacks.empty());
}

// Afterwards a rank may wait for its peers on the device, where a first use would wait for it.
TEST(DeviceTrainerTest, RanksUseTheirDevicesBeforeTheyAreConnected) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    std::atomic<int> connected = 0;
    const Script script{.ranks = ranks, .boundaries = {4}, .before_connect = [&](EmulatedCuda& m) {
                          ++connected;
                          // Forward and backward of the network's layers with weights.
                          EXPECT_EQ(m.calls("library") > 4, ranks > 1) << m.calls("library");
                          EXPECT_EQ(m.calls("graph_launch"), 0);
                        }};
    TrainToTheEnd(Where::kDevice, Spec(), script);
    EXPECT_EQ(connected, ranks);
  }
}

TEST(DeviceTrainerTest, TracedStepsAreNotPlayedFromRecordings) {
  v1::TraceSteps trace = TraceOf(15);
  const auto played = [](Script script) {
    const Result result = TrainToTheEnd(Where::kDevice, Spec(), script);
    EXPECT_EQ(result.control->traced.size(), script.trace ? 1U : 0U);
    return result.played;
  };
  const int64_t untraced = played({.ranks = 1, .boundaries = {20}});
  EXPECT_EQ(played({.ranks = 1, .boundaries = {15}, .trace = trace}), 0);
  trace.set_steps(2);
  // The measurer profiles steps after the trace.
  const int64_t traced = played({.ranks = 1, .boundaries = {20}, .trace = trace});
  EXPECT_GT(traced, 0);
  EXPECT_LE(traced, untraced);
}

// What the host cannot observe must not be reported as zero or otherwise.
TEST(DeviceTrainerTest, OmitsWhatIsNotMeasured) {
  const Result result = TrainToTheEnd(Where::kDevice, Spec(), {.ranks = 2, .boundaries = {20}});
  ASSERT_FALSE(result.control->progress.empty());
  for (const v1::Progress& progress : result.control->progress) {
    EXPECT_GT(progress.step_seconds(), 0);
    EXPECT_EQ(progress.exposed_seconds(), 0);
  }
  ASSERT_EQ(result.control->measured.size(), 1U);
  const v1::Measured& measured = result.control->measured[0];
  EXPECT_GT(measured.times().compute(), 0);
  EXPECT_GT(measured.times().collectives(), 0);
  EXPECT_EQ(measured.times().exposed(), 0);
  EXPECT_EQ(measured.copy_seconds(), 0);
  EXPECT_EQ(result.control->prepared.memory().weights(),
            result.control->prepared.planned_memory().weights());
}

// Four ranks form two halves. Each half has its own NCCL communicator, which is split off while
// replicas are created.
TEST(DeviceTrainerTest, NetworkFailureDuringPreparationIsTemporary) {
  v1::RunSpec spec = Spec();
  spec.mutable_cluster()->set_model_ranks(2);
  spec.mutable_cluster()->set_collectives(v1::Cluster::NATIVE);
  spec.mutable_cluster()->set_device(v1::Cluster::CUDA);
  FakeNccl nccl;
  nccl.FailNext("split", ncclRemoteError);
  const Result result = TrainGroup(Where::kDevice, spec, {.ranks = 4, .boundaries = {4}}, &nccl);
  EXPECT_GT(nccl.calls("split"), 0);
  for (const TrainerOutcome& outcome : result.outcomes) {
    EXPECT_TRUE(absl::IsUnavailable(outcome.status)) << outcome.status;
    EXPECT_NE(outcome.cause, v1::FAILURE_CAUSE_MEMORY) << outcome.status;
  }
}

}  // namespace
}  // namespace cadre
