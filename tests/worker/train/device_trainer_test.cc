// A rank's whole life on a device: averaging, checkpoints, evaluation, and what it says of itself.
// On emulated devices and a fake NCCL, against a coordinator that the test plays and an aggregator
// shard behind a real server; held against the same life on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "kernels/backend.h"
#include "plan/search/planner.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/emulator/fake_nccl.h"
#include "tests/server/rounds_server.h"
#include "tests/worker/transport/ranks.h"
#include "worker/train/trainer.h"
#include "worker/transport/nccl/nccl_transport.h"

namespace cadre {
namespace {

using testing::RoundsServer;
using testing::TemporaryFolder;

constexpr uint64_t kTestSamples = 20;

v1::RunSpec Spec() {
  v1::RunSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(
        name: "life"
        model {
          input { channels: 1 height: 4 width: 4 }
          layer {
            name: "fc1"
            fully_connected { out_features: 6 }
          }
          layer {
            name: "relu"
            relu {}
          }
          layer {
            name: "fc2"
            fully_connected { out_features: 4 }
          }
          layer {
            name: "loss"
            softmax_cross_entropy {}
          }
        }
        data { synthetic { train_samples: 64 test_samples: 20 classes: 4 } }
        batch_per_group: 8
        optimizer { sgd { momentum: 0.5 } }
        schedule { base_rate: 0.1 }
        seed: 5
        cluster { groups: 1 }
      )pb",
      &spec));
  return spec;
}

// Saves a checkpoint of every sixth step; averages nothing.
v1::RunSpec WithCheckpoints(const std::string& directory) {
  v1::RunSpec spec = Spec();
  spec.mutable_checkpoint()->set_directory(directory);
  spec.mutable_checkpoint()->set_every_steps(6);
  return spec;
}

v1::RunSpec GoingOnFrom(const std::string& checkpoint, uint32_t step) {
  v1::RunSpec spec = Spec();
  spec.mutable_checkpoint()->set_from(checkpoint);
  spec.mutable_checkpoint()->set_from_step(step);
  return spec;
}

v1::Assignment AssignmentOf(const v1::RunSpec& spec, int ranks) {
  v1::Assignment assignment;
  assignment.mutable_place()->set_run("run-1");
  assignment.mutable_place()->set_generation(3);
  assignment.set_lineage("run-1.a");
  *assignment.mutable_spec() = spec;
  const auto plan = MakePlan(spec, ranks);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (plan.ok()) *assignment.mutable_plan() = *plan;
  assignment.set_step(spec.checkpoint().from_step());
  // To measure it takes seconds on emulated devices: other tests here do.
  if (spec.has_checkpoint()) {
    v1::LinkProfile& link = *assignment.mutable_plan()->mutable_link();
    link.set_alpha(1e-5);
    link.set_beta(1e-9);
    link.set_kind(v1::LinkProfile::NCCL);
  }
  for (int rank = 0; rank < ranks; ++rank) assignment.add_peers(absl::StrCat("peer ", rank));
  return assignment;
}

// An aggregator with the run's one shard.
class Shard {
 public:
  explicit Shard(const v1::RunSpec& spec) : server_(folder_.path()) {
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
  }
  const std::string& address() const { return server_.address(); }
  // Of version 0.
  uint64_t digest() const { return digest_; }
  // What the group has staged becomes the next version; returns its digest.
  uint64_t Commit(const v1::Contributed& contributed, uint32_t ranks) {
    v1::Apply apply;
    apply.set_run("run-1");
    apply.set_round(contributed.round());
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
  const TemporaryFolder folder_;
  RoundsServer server_;
  uint64_t digest_ = 0;
};

// What the coordinator has in mind for a group.
struct Script {
  int ranks = 1;
  // Where groups contribute; the last one is the run's end, where the model is evaluated.
  std::vector<uint32_t> boundaries;
  // Evaluates what training starts from, too.
  bool evaluates_first = false;
  // Null: nothing is averaged.
  Shard* shard = nullptr;
  std::optional<v1::TraceSteps> trace;
};

// The coordinator as rank 0, or another rank, sees it; releases the group at the end.
class PlayedControl final : public GroupControl {
 public:
  explicit PlayedControl(const Script& script) : script_(script), trace_(script.trace) {}

  v1::Prepared prepared;
  std::vector<v1::Contributed> contributed;
  std::vector<v1::Decision> decided;
  std::vector<v1::Adopted> adopted;
  std::vector<v1::Evaluated> evaluated;
  std::vector<v1::Progress> progress;
  std::vector<v1::Measured> measured;
  std::vector<v1::Traced> traced;

  absl::StatusOr<v1::Start> PreparedAndStart(const v1::Prepared& message) override {
    prepared = message;
    v1::Start start;
    start.set_next_step(script_.boundaries.front());
    start.set_total_steps(20);
    start.set_groups(1);
    if (script_.evaluates_first) start.set_evaluate_end(kTestSamples);
    return start;
  }
  void Report(const v1::Progress& message) override { progress.push_back(message); }
  void Measured(const v1::Measured& message) override { measured.push_back(message); }
  void Contribute(const v1::Contributed& message) override {
    contributed.push_back(message);
    v1::Decision decision;
    const size_t next = contributed.size();
    const bool last = next >= script_.boundaries.size();
    if (script_.shard != nullptr) {
      decision.set_adopt(true);
      decision.set_included(true);
      decision.set_round(message.round());
      decision.set_version(message.round());
      decision.set_step(message.step());
      decision.set_digest(script_.shard->Commit(message, static_cast<uint32_t>(script_.ranks)));
    }
    if (last) {
      decision.set_evaluate_end(kTestSamples);
    } else {
      decision.set_next_step(script_.boundaries[next]);
    }
    pending_ = decision;
    decided.push_back(decision);
  }
  absl::StatusOr<std::optional<v1::Decision>> AwaitDecision(absl::Duration) override {
    if (!pending_) return absl::CancelledError("released");
    return std::exchange(pending_, std::nullopt);
  }
  void Adopted(const v1::Adopted& message) override { adopted.push_back(message); }
  void Evaluated(const v1::Evaluated& message) override { evaluated.push_back(message); }
  std::optional<v1::TraceSteps> TakeTraceRequest() override {
    return std::exchange(trace_, std::nullopt);
  }
  void Traced(const v1::Traced& message) override { traced.push_back(message); }
  bool connected() const override { return true; }
  std::string ShardAddress(uint32_t) const override { return script_.shard->address(); }

 private:
  const Script script_;
  std::optional<v1::Decision> pending_;
  std::optional<v1::TraceSteps> trace_;
};

enum class Where { kCpu, kDevice };

struct Life {
  // Rank 0's.
  std::unique_ptr<PlayedControl> control;
  std::vector<TrainerOutcome> outcomes;
  // Recordings that were played, over all ranks.
  int64_t played = 0;
};

// Every rank is a thread, with a device of its own.
Life Live(Where where, const v1::RunSpec& spec, const Script& script, FakeNccl* nccl = nullptr) {
  v1::Assignment assignment = AssignmentOf(spec, script.ranks);
  if (script.shard != nullptr) {
    assignment.set_digest(script.shard->digest());
    assignment.add_shards()->set_address(script.shard->address());
  }
  FakeNccl own_nccl;
  if (nccl == nullptr) nccl = &own_nccl;
  auto transports = MakeThreadTransports(script.ranks, absl::Seconds(30));
  std::vector<std::unique_ptr<PlayedControl>> controls;
  for (int rank = 0; rank < script.ranks; ++rank) {
    controls.push_back(std::make_unique<PlayedControl>(script));
  }
  Life life;
  life.outcomes.resize(static_cast<size_t>(script.ranks));
  std::vector<int64_t> played(static_cast<size_t>(script.ranks), 0);
  OnRanks(script.ranks, [&](int r) {
    const auto at = static_cast<size_t>(r);
    v1::Assignment mine = assignment;
    mine.mutable_place()->set_rank(static_cast<uint32_t>(r));
    EmulatedRank rank;
    std::unique_ptr<Backend> cpu;
    TrainerOptions options;
    options.report_every = absl::ZeroDuration();
    options.connect = [&](const v1::Assignment&) -> absl::StatusOr<std::unique_ptr<Transport>> {
      return std::move(transports[at]);
    };
    if (where == Where::kDevice) {
      rank = MakeEmulatedRank(EmulatedCuda::Mode::kInline);
      options.connect_data = [&](Transport& control) {
        return MakeNcclTransport(nccl->api(), *rank.device, *rank.kernels, control, {});
      };
    } else {
      cpu = MakeReferenceBackend();
    }
    Cancellation cancellation;
    Counters counters;
    life.outcomes[at] = TrainAsMember(mine, cpu != nullptr ? *cpu : *rank.kernels, *controls[at],
                                      cancellation, counters, options);
    if (where == Where::kDevice) played[at] = rank.machine->calls("graph_launch");
  });
  for (const int64_t of_rank : played) life.played += of_rank;
  life.control = std::move(controls[0]);
  return life;
}

// A whole life: rank 0 is released, and takes the others with it.
Life LiveToTheEnd(Where where, const v1::RunSpec& spec, const Script& script) {
  Life life = Live(where, spec, script);
  for (const TrainerOutcome& outcome : life.outcomes) {
    EXPECT_TRUE(absl::IsCancelled(outcome.status) || absl::IsUnavailable(outcome.status))
        << outcome.status;
    EXPECT_FALSE(outcome.permanent) << outcome.status;
  }
  EXPECT_TRUE(absl::IsCancelled(life.outcomes[0].status)) << life.outcomes[0].status;
  EXPECT_EQ(life.control->contributed.size(), script.boundaries.size());
  return life;
}

// Sums come in other orders.
void ExpectNear(double got, double wanted) { EXPECT_NEAR(got, wanted, 1e-4 * std::abs(wanted)); }

TEST(DeviceTrainerTest, AveragesAsTheCpuDoes) {
  v1::RunSpec spec = Spec();
  spec.mutable_cluster()->set_ranks_per_group(2);
  spec.mutable_averaging()->set_every_steps(4);
  const auto live = [&](Where where) {
    Shard shard(spec);
    Life life = LiveToTheEnd(where, spec, {.ranks = 2, .boundaries = {4, 8, 12}, .shard = &shard});
    const PlayedControl& control = *life.control;
    // Each rank pulled and staged its own slices; together they hold what was committed.
    EXPECT_EQ(control.adopted.size(), 3U);
    for (size_t i = 0; i < control.adopted.size(); ++i) {
      EXPECT_EQ(control.adopted[i].version(), i + 1);
      EXPECT_EQ(control.adopted[i].digest(), control.decided[i].digest());
      EXPECT_NE(control.adopted[i].digest(),
                i == 0 ? shard.digest() : control.adopted[i - 1].digest());
    }
    EXPECT_EQ(control.evaluated.size(), 1U);
    if (!control.evaluated.empty()) {
      EXPECT_EQ(control.evaluated[0].digest(), control.decided.back().digest());
    }
    return life;
  };
  const Life got = live(Where::kDevice);
  const Life wanted = live(Where::kCpu);
  ASSERT_EQ(got.control->contributed.size(), wanted.control->contributed.size());
  for (size_t i = 0; i < wanted.control->contributed.size(); ++i) {
    EXPECT_EQ(got.control->contributed[i].step(), wanted.control->contributed[i].step());
    EXPECT_EQ(got.control->contributed[i].payload_bytes(),
              wanted.control->contributed[i].payload_bytes());
    ExpectNear(got.control->contributed[i].loss(), wanted.control->contributed[i].loss());
  }
  ASSERT_EQ(got.control->evaluated.size(), 1U);
  ASSERT_EQ(wanted.control->evaluated.size(), 1U);
  ExpectNear(got.control->evaluated[0].loss_sum(), wanted.control->evaluated[0].loss_sum());
  EXPECT_EQ(got.played, 0) << "two ranks record nothing";
}

class DeviceCheckpointTest : public ::testing::TestWithParam<std::pair<Where, Where>> {};

TEST_P(DeviceCheckpointTest, GoesOnElsewhere) {
  const auto [first, second] = GetParam();
  constexpr int kRanks = 2;
  const TemporaryFolder folder;
  const Life saved = LiveToTheEnd(first, WithCheckpoints(folder.path() + "/saved"),
                                  {.ranks = kRanks, .boundaries = {12}});
  ASSERT_EQ(saved.control->evaluated.size(), 1U);
  const Life whole = LiveToTheEnd(first, WithCheckpoints(folder.path() + "/whole"),
                                  {.ranks = kRanks, .boundaries = {18}});
  ASSERT_EQ(whole.control->evaluated.size(), 1U);

  const Life on = LiveToTheEnd(second, GoingOnFrom(folder.path() + "/saved/step-12", 12),
                               {.ranks = kRanks, .boundaries = {18}, .evaluates_first = true});
  ASSERT_EQ(on.control->evaluated.size(), 2U);
  EXPECT_EQ(on.control->evaluated[0].digest(), saved.control->evaluated[0].digest())
      << "what was saved";
  ExpectNear(on.control->evaluated[0].loss_sum(), saved.control->evaluated[0].loss_sum());
  EXPECT_NE(on.control->evaluated[1].digest(), on.control->evaluated[0].digest());
  // Momentum came along: without it the last steps would go elsewhere.
  ExpectNear(on.control->evaluated[1].loss_sum(), whole.control->evaluated[0].loss_sum());
  if (first == second) {
    EXPECT_EQ(on.control->evaluated[1].digest(), whole.control->evaluated[0].digest())
        << "to the same bits";
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

// The worker has a tracer that nobody asks for anything, and a measurer that has seen enough.
TEST(DeviceTrainerTest, ARankThatIsAlonePlaysRecordings) {
  const Life life = LiveToTheEnd(Where::kDevice, Spec(), {.ranks = 1, .boundaries = {20}});
  ASSERT_EQ(life.control->measured.size(), 1U);
  // Two steps before and six that are looked at; of the rest, two halves each but for the first
  // times, in which they are done, and then recorded.
  EXPECT_GE(life.played, 2 * (20 - 8 - 3));
}

TEST(DeviceTrainerTest, WhatIsTracedIsNotPlayedAndThenItIsAgain) {
  v1::TraceSteps trace;
  trace.set_request(7);
  trace.set_steps(15);
  trace.set_max_events(20000);
  const auto played = [](Script script) {
    const Life life = LiveToTheEnd(Where::kDevice, Spec(), script);
    EXPECT_EQ(life.control->traced.size(), script.trace ? 1U : 0U);
    return life.played;
  };
  const int64_t untraced = played({.ranks = 1, .boundaries = {20}});
  EXPECT_EQ(played({.ranks = 1, .boundaries = {15}, .trace = trace}), 0);
  trace.set_steps(2);
  // The measurer takes its turn after the trace.
  const int64_t traced = played({.ranks = 1, .boundaries = {20}, .trace = trace});
  EXPECT_GT(traced, 0);
  EXPECT_LE(traced, untraced);
}

// What the host cannot see is not told as if it were nothing, or something else.
TEST(DeviceTrainerTest, SaysNothingOfWhatIsNotMeasured) {
  const Life life = LiveToTheEnd(Where::kDevice, Spec(), {.ranks = 2, .boundaries = {20}});
  ASSERT_FALSE(life.control->progress.empty());
  for (const v1::Progress& progress : life.control->progress) {
    EXPECT_GT(progress.step_seconds(), 0);
    EXPECT_EQ(progress.exposed_seconds(), 0);
  }
  ASSERT_EQ(life.control->measured.size(), 1U);
  const v1::Measured& measured = life.control->measured[0];
  EXPECT_GT(measured.times().compute(), 0);
  EXPECT_GT(measured.times().collectives(), 0);
  EXPECT_EQ(measured.times().exposed(), 0);
  EXPECT_EQ(measured.copy_seconds(), 0);
  EXPECT_EQ(life.control->prepared.memory().weights(),
            life.control->prepared.planned_memory().weights());
}

// Of four ranks in two halves, each half has a communicator of its own, which is split off while
// replicas are made.
TEST(DeviceTrainerTest, ANetworkThatFailsWhileReplicasAreMadeMayDoBetterLater) {
  v1::RunSpec spec = Spec();
  spec.mutable_cluster()->set_model_ranks(2);
  spec.mutable_cluster()->set_collectives(v1::Cluster::NATIVE);
  spec.mutable_cluster()->set_device(v1::Cluster::CUDA);
  FakeNccl nccl;
  nccl.FailNext("split", ncclRemoteError);
  const Life life = Live(Where::kDevice, spec, {.ranks = 4, .boundaries = {4}}, &nccl);
  EXPECT_GT(nccl.calls("split"), 0);
  for (const TrainerOutcome& outcome : life.outcomes) {
    EXPECT_TRUE(absl::IsUnavailable(outcome.status)) << outcome.status;
    EXPECT_FALSE(outcome.permanent) << outcome.status;
  }
}

}  // namespace
}  // namespace cadre
