// The training step on devices: its results equal the CPU's under the same plan, the host waits
// only for the loss, and replayed steps equal enqueued steps. Devices are emulated, and ranks are
// threads over a fake NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/trace.h"
#include "comm/mesh_communicators.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "kernels/backend.h"
#include "plan/search/planner.h"
#include "tests/base/expect.h"
#include "tests/comm/transport/ranks.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/emulator/fake_nccl.h"
#include "tests/worker/train/small_spec.h"
#include "worker/train/batches.h"
#include "worker/train/replica.h"

namespace cadre {
namespace {

constexpr int64_t kSamples = 8;
constexpr int kSteps = 6;
constexpr float kRate = 0.05F;

// The gradient of a bias before a norm is only rounding, which a small epsilon would amplify.
const char kClippedAdamW[] =
    "optimizer { adamw { weight_decay: 0.01 epsilon: 0.01 } clip_norm: 0.5 }";
const char kLars[] = "optimizer { lars { momentum: 0.9 weight_decay: 1e-3 } }";

// An action before training.
using Body = std::function<void(Replica& replica, Device& device)>;

struct Outcome {
  // Loss of every step, on rank 0.
  std::vector<double> losses;
  // In parameter order.
  std::vector<float> weights;
  int64_t played = 0;
};

// One rank's device, or the CPU.
class RankBackend {
 public:
  RankBackend(bool emulated, EmulatedCuda::Mode mode) {
    if (emulated) {
      emulated_ = MakeEmulatedRank(mode);
    } else {
      kernels_ = MakeReferenceBackend();
    }
  }
  Backend& kernels() { return kernels_ != nullptr ? *kernels_ : *emulated_.kernels; }
  CudaDevice& device() { return *emulated_.device; }

 private:
  EmulatedRank emulated_;
  std::unique_ptr<Backend> kernels_;
};

struct TrainingOptions {
  bool emulated = true;
  EmulatedCuda::Mode mode = EmulatedCuda::Mode::kInline;
  // Whether passes are captured and replayed.
  bool records = true;
  Body before;
};

// A boundary follows every third step, so that step does not gather the weights.
void Train(Replica& replica, int steps, Outcome* outcome) {
  const RandomBatch batch(replica, kSamples);
  const int64_t parts = std::max(1U, replica.spec().micro_batches());
  for (int64_t step = 0; step < steps; ++step) {
    const bool boundary = step % 3 == 2;
    std::vector<BatchView> views;
    for (int64_t i = 0; i < parts; ++i) {
      views.push_back(batch.View(kSamples / parts, step * parts + i));
      const Interval inputs = replica.network().batches().InputRows(kSamples / parts);
      const Interval labels = replica.network().batches().LabelRows(kSamples / parts);
      views.back().inputs =
          views.back().inputs.first(inputs.size() * replica.graph().input().elements());
      views.back().labels = views.back().labels.first(labels.size());
    }
    const auto loss = replica.Step(views, kRate, /*gather=*/!boundary);
    ASSERT_TRUE(loss.ok()) << loss.status();
    ASSERT_EQ(loss->samples, kSamples);
    if (outcome != nullptr) outcome->losses.push_back(loss->loss);
    if (!boundary) continue;
    ASSERT_TRUE(replica.CheckWeights().ok());
    ASSERT_TRUE(replica.flow().Gather().ok());
  }
}

Outcome TrainGroup(const v1::RunSpec& spec, int ranks, const TrainingOptions& options) {
  const Transports controls = MakeTransports(Wire::kThreads, ranks);
  FakeNccl nccl;
  const auto plan = MakePlan(spec, ranks);
  EXPECT_TRUE(plan.ok()) << plan.status();
  Outcome outcome;
  std::vector<std::map<int64_t, float>> owned(ranks);
  OnRanks(ranks, [&](int at) {
    RankBackend rank(options.emulated, options.mode);
    std::unique_ptr<Transport> data;
    if (options.emulated) {
      auto made = MakeNcclTransport(nccl.api(), rank.device(), rank.kernels(), *controls[at], {});
      ASSERT_TRUE(made.ok()) << made.status();
      data = *std::move(made);
    }
    auto replica = Replica::Make(spec, *plan, rank.kernels(), *controls[at],
                                 data != nullptr ? *data : *controls[at]);
    ASSERT_TRUE(replica.ok()) << replica.status();
    (*replica)->set_recordings(options.records);
    if (options.before != nullptr) options.before(**replica, rank.kernels().device());
    Train(**replica, kSteps, at == 0 ? &outcome : nullptr);
    ASSERT_TRUE((*replica)->AwaitOperations().ok());
    ASSERT_TRUE((*replica)->FetchOwned().ok());
    for (const Owned& each : (*replica)->owned()) {
      for (int64_t i = 0; i < each.positions.size(); ++i) {
        owned[at][each.positions.begin + i] = each.values[i];
      }
    }
    if (at == 0 && (*replica)->recorder() != nullptr) {
      outcome.played = (*replica)->recorder()->played();
    }
    // A rank must not leave while others still communicate.
    ASSERT_TRUE((*replica)->comms().All().Barrier().ok());
  });
  std::map<int64_t, float> all;
  for (const auto& of_rank : owned) all.insert(of_rank.begin(), of_rank.end());
  for (const auto& [position, value] : all) {
    EXPECT_EQ(position, std::ssize(outcome.weights));
    outcome.weights.push_back(value);
  }
  return outcome;
}

// Both sides compute in fp32, but the order of sums differs, and six steps accumulate the
// difference.
void ExpectNear(const Outcome& found, const Outcome& expected) {
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-4 * std::abs(expected.losses[i]))
        << "step " << i;
  }
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (size_t i = 0; i < expected.weights.size(); ++i) {
    ASSERT_NEAR(found.weights[i], expected.weights[i], 2e-4 * (1 + std::abs(expected.weights[i])))
        << "position " << i;
  }
}

struct Case {
  std::string name;
  std::string spec;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class StreamStepTest : public testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(StreamStepTest, EqualsTheCpu) {
  const auto& [c, ranks] = GetParam();
  const v1::RunSpec spec = SpecWith(c.spec);
  v1::RunSpec on_cpu = spec;
  if (on_cpu.cluster().collectives() == v1::Cluster::NATIVE) {
    on_cpu.mutable_cluster()->set_collectives(v1::Cluster::RING);
  }
  const Outcome expected = TrainGroup(on_cpu, ranks, {.emulated = false});
  const Outcome found = TrainGroup(spec, ranks, {});
  ExpectNear(found, expected);
  const bool records = ranks == 1 && !spec.optimizer().has_lars();
  EXPECT_EQ(found.played > 0, records) << found.played;
}

INSTANTIATE_TEST_SUITE_P(
    Plans, StreamStepTest,
    testing::Combine(
        testing::Values(Case{"Sgd", kSgd}, Case{"ClippedAdamW", kClippedAdamW}, Case{"Lars", kLars},
                        Case{"MicroBatches", std::string(kSgd) + " micro_batches: 2"},
                        // Some passes of a step are recorded and others are not.
                        Case{"ManyMicroBatches", std::string(kSgd) + " micro_batches: 4"},
                        Case{"NoOverlap", std::string(kClippedAdamW) + " cluster { overlap: OFF }"},
                        Case{"Native",
                             std::string(kSgd) + " cluster { collectives: NATIVE device: CUDA }"}),
        testing::Values(1, 2, 4)),
    [](const auto& info) {
      return std::get<0>(info.param).name + std::to_string(std::get<1>(info.param));
    });

TEST(StreamStepTest, ModelParallelEqualsTheCpu) {
  const v1::RunSpec spec =
      SpecWith(std::string(kSgd) + " cluster { ranks_per_group: 2 model_ranks: 2 }");
  ExpectNear(TrainGroup(spec, 2, {}), TrainGroup(spec, 2, {.emulated = false}));
}

TEST(StreamStepTest, RecordedStepsEqualEnqueuedSteps) {
  for (const char* optimizer : {kSgd, kClippedAdamW}) {
    const v1::RunSpec spec = SpecWith(std::string(optimizer) + " micro_batches: 2");
    const Outcome recorded = TrainGroup(spec, 1, {});
    const Outcome direct = TrainGroup(spec, 1, {.records = false});
    EXPECT_GT(recorded.played, 0);
    EXPECT_EQ(direct.played, 0);
    EXPECT_EQ(recorded.losses, direct.losses);
    EXPECT_EQ(recorded.weights, direct.weights);
  }
}

// NCCL requires that all ranks capture the same calls.
TEST(StreamStepTest, OnlySingleRanksRecord) {
  for (const int ranks : {1, 2}) {
    TrainGroup(SpecWith(kSgd), ranks, {.before = [ranks](Replica& replica, Device& device) {
                 ASSERT_TRUE(device.can_capture());
                 EXPECT_EQ(replica.recorder() != nullptr, ranks == 1);
               }});
  }
}

// If streams are threads, work is as asynchronous as on a device, so a missing event changes the
// result.
TEST(StreamStepTest, EqualsInlineExecutionWithStreamsAsThreads) {
  for (const auto& [ranks, records] :
       {std::pair(1, true), std::pair(1, false), std::pair(2, true)}) {
    const v1::RunSpec spec = SpecWith(std::string(kClippedAdamW) + " micro_batches: 2");
    const Outcome inline_ = TrainGroup(spec, ranks, {});
    const Outcome threads =
        TrainGroup(spec, ranks, {.mode = EmulatedCuda::Mode::kThreads, .records = records});
    EXPECT_EQ(inline_.losses, threads.losses);
    EXPECT_EQ(inline_.weights, threads.weights);
  }
}

// Both buffers of a bucket are registered with both NCCL communicators that a rank has for the
// whole group.
TEST(StreamStepTest, BuffersOfNativeCollectivesAreRegistered) {
  for (const auto& [policy, ranks] :
       {std::pair("NATIVE", 2), std::pair("RING", 2), std::pair("NATIVE", 1)}) {
    const v1::RunSpec spec =
        SpecWith(absl::StrCat(kSgd, " cluster { collectives: ", policy, " device: CUDA }"));
    const Transports controls = MakeTransports(Wire::kThreads, ranks);
    const auto plan = MakePlan(spec, ranks);
    ASSERT_TRUE(plan.ok()) << plan.status();
    FakeNccl nccl;
    const bool native = ranks > 1 && std::string(policy) == "NATIVE";
    const int64_t registrations = native ? ranks * 2 * 2 * plan->buckets_size() : 0;
    OnRanks(ranks, [&](int r) {
      Transport& control = *controls[r];
      const EmulatedRank rank = MakeEmulatedRank(EmulatedCuda::Mode::kInline);
      auto data = MakeNcclTransport(nccl.api(), *rank.device, *rank.kernels, control, {});
      ASSERT_TRUE(data.ok()) << data.status();
      auto replica = Replica::Make(spec, *plan, *rank.kernels, control, **data);
      ASSERT_TRUE(replica.ok()) << replica.status();
      ASSERT_TRUE((*replica)->comms().All().Barrier().ok());
      EXPECT_EQ(nccl.live_registrations(), registrations);
      ASSERT_TRUE((*replica)->comms().All().Barrier().ok());
      MeshCommunicators comms(control, (*replica)->plan().mesh);
      replica->reset();
      ASSERT_TRUE(comms.All().Barrier().ok());
      EXPECT_EQ(nccl.live_registrations(), 0);
      ASSERT_TRUE(comms.All().Barrier().ok());
    });
  }
}

// A single rank.
class OneDevice : public testing::Test {
 protected:
  void Make(const std::string& more) {
    // Destroys in the order of dependencies.
    replica_.reset();
    rank_.kernels.reset();
    rank_.device.reset();
    rank_.machine.reset();
    rank_ = MakeEmulatedRank(EmulatedCuda::Mode::kInline);
    spec_ = SpecWith(more);
    auto replica = Replica::Make(spec_, *MakePlan(spec_, 1), *rank_.kernels, *transports_[0]);
    ASSERT_TRUE(replica.ok()) << replica.status();
    replica_ = *std::move(replica);
    batch_ = std::make_unique<RandomBatch>(*replica_, kSamples);
  }
  void Step(bool gather = true) {
    const BatchView view = batch_->View(kSamples, step_++);
    const auto loss = replica_->Step({&view, 1}, kRate, gather);
    ASSERT_TRUE(loss.ok()) << loss.status();
    losses_.push_back(loss->loss);
  }
  std::vector<float> Weights() {
    EXPECT_TRUE(replica_->FetchOwned().ok());
    std::vector<float> weights;
    for (const Owned& owned : replica_->owned()) {
      weights.insert(weights.end(), owned.values.begin(), owned.values.end());
    }
    return weights;
  }

  const Transports transports_ = MakeTransports(Wire::kThreads, 1);
  EmulatedRank rank_;
  v1::RunSpec spec_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<RandomBatch> batch_;
  int64_t step_ = 0;
  std::vector<double> losses_;
};

TEST_F(OneDevice, HostWaitsOnlyForTheLoss) {
  ASSERT_NO_FATAL_FAILURE(Make(kClippedAdamW));
  for (int i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(Step());
  const int64_t waits = rank_.device->host_syncs();
  const int64_t hidden = rank_.machine->calls("hidden_wait");
  const int64_t allocations = rank_.machine->calls("malloc") + rank_.machine->calls("host_alloc");
  const int64_t bytes = rank_.device->bytes_in_use();
  constexpr int kMore = 7;
  for (int i = 0; i < kMore; ++i) ASSERT_NO_FATAL_FAILURE(Step());
  EXPECT_EQ(rank_.device->host_syncs(), waits + kMore);
  EXPECT_EQ(rank_.machine->calls("hidden_wait"), hidden);
  EXPECT_EQ(rank_.machine->calls("malloc") + rank_.machine->calls("host_alloc"), allocations);
  EXPECT_EQ(rank_.device->bytes_in_use(), bytes);
}

// Every worker has a trace, which is usually inactive.
TEST_F(OneDevice, InactiveTraceChangesNothing) {
  Trace trace;
  int64_t played[2] = {};
  int64_t waits[2] = {};
  std::vector<float> weights[2];
  for (const bool traced : {false, true}) {
    step_ = 0;
    ASSERT_NO_FATAL_FAILURE(Make(kClippedAdamW));
    if (traced) replica_->flow().set_trace(&trace);
    for (int i = 0; i < 6; ++i) ASSERT_NO_FATAL_FAILURE(Step());
    played[traced] = replica_->recorder()->played();
    waits[traced] = rank_.device->host_syncs();
    weights[traced] = Weights();
  }
  EXPECT_GT(played[1], 0);
  EXPECT_EQ(played[1], played[0]);
  EXPECT_EQ(waits[1], waits[0]);
  EXPECT_EQ(weights[1], weights[0]);

  // While a trace is active, recordings are not replayed; afterwards they are again.
  ASSERT_TRUE(replica_->AwaitOperations().ok());
  trace.Start();
  for (int i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(Step());
  ASSERT_TRUE(replica_->AwaitOperations().ok());
  EXPECT_GT(trace.Stop().size(), 0U);
  EXPECT_EQ(replica_->recorder()->played(), played[1]);
  for (int i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(Step());
  EXPECT_GT(replica_->recorder()->played(), played[1]);
}

TEST_F(OneDevice, MemoryForCheckpointsIsAllocatedInAdvance) {
  ASSERT_NO_FATAL_FAILURE(Make(kClippedAdamW));
  const int64_t without = rank_.machine->calls("host_alloc");
  const std::string with = std::string(kClippedAdamW) + " checkpoint { directory: '/nowhere' }";
  ASSERT_NO_FATAL_FAILURE(Make(with));
  const int64_t made = rank_.machine->calls("host_alloc");
  EXPECT_EQ(made, without + replica_->slices().states());
  ASSERT_TRUE(replica_->FetchOwned(/*states=*/true).ok());
  EXPECT_EQ(rank_.machine->calls("host_alloc"), made);

  const EmulatedRank other = MakeEmulatedRank(EmulatedCuda::Mode::kInline);
  other.machine->FailNext("host_alloc", cudaErrorMemoryAllocation, without);
  const auto replica = Replica::Make(spec_, *MakePlan(spec_, 1), *other.kernels, *transports_[0]);
  EXPECT_THAT(replica, IsError(absl::StatusCode::kResourceExhausted,
                               "(the optimizer's state as the host sees it)"));
}

TEST_F(OneDevice, LarsWaitsTwicePerStep) {
  ASSERT_NO_FATAL_FAILURE(Make(kLars));
  for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(Step());
  const int64_t waits = rank_.device->host_syncs();
  ASSERT_NO_FATAL_FAILURE(Step());
  EXPECT_EQ(rank_.device->host_syncs(), waits + 2);
}

TEST_F(OneDevice, NonFiniteLossChangesNoWeights) {
  for (const char* optimizer : {kSgd, kClippedAdamW, kLars}) {
    ASSERT_NO_FATAL_FAILURE(Make(optimizer));
    for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(Step());
    const std::vector<float> before = Weights();
    const int64_t updates = replica_->slices().updates();
    BatchView view = batch_->View(kSamples, step_);
    std::vector<float> inputs(view.inputs.begin(), view.inputs.end());
    inputs[5] = std::numeric_limits<float>::quiet_NaN();
    view.inputs = inputs;
    const auto loss = replica_->Step({&view, 1}, kRate, true);
    EXPECT_THAT(loss, IsError(absl::StatusCode::kOutOfRange, "'conv'"));
    EXPECT_EQ(Weights(), before);
    EXPECT_EQ(replica_->slices().updates(), updates);
  }
}

TEST_F(OneDevice, BoundaryStepCopiesSlicesToTheHost) {
  ASSERT_NO_FATAL_FAILURE(Make(kSgd));
  for (const bool boundary : {false, true, false, true, false, true}) {
    ASSERT_NO_FATAL_FAILURE(Step(/*gather=*/!boundary));
    ASSERT_TRUE(replica_->AwaitOperations().ok());
    const int64_t copies = rank_.machine->calls("copy_async");
    ASSERT_TRUE(replica_->FetchOwned().ok());
    const int64_t more = rank_.machine->calls("copy_async") - copies;
    EXPECT_EQ(more > 0, !boundary) << more;
    if (boundary) {
      ASSERT_TRUE(replica_->flow().Gather().ok());
    }
  }
}

// As before contributions that are coded on the device.
TEST_F(OneDevice, BoundaryStepWithoutMirrorsCopiesNoSlices) {
  // By whether there are mirrors.
  int64_t copies[2] = {};
  std::vector<float> weights[2];
  for (const bool mirrors : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(Make(kSgd));
    replica_->flow().set_mirrors(mirrors);
    step_ = 0;
    for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(Step());
    const int64_t before = rank_.machine->calls("copy_async");
    ASSERT_NO_FATAL_FAILURE(Step(/*gather=*/false));
    ASSERT_EQ(replica_->CheckWeights(), absl::OkStatus());
    copies[mirrors] = rank_.machine->calls("copy_async") - before;
    weights[mirrors] = Weights();
  }
  int64_t slices = 0;
  for (size_t i = 0; i < replica_->slices().mirror().size(); ++i) {
    slices += replica_->slices().mirror().slice(i).empty() ? 0 : 1;
  }
  EXPECT_EQ(copies[true], copies[false] + slices);
  EXPECT_EQ(weights[true], weights[false]);
}

TEST_F(OneDevice, FindsWeightsThatAreNotFinite) {
  ASSERT_NO_FATAL_FAILURE(Make(kSgd));
  replica_->flow().set_mirrors(false);
  ASSERT_NO_FATAL_FAILURE(Step(/*gather=*/false));
  ASSERT_EQ(replica_->CheckWeights(), absl::OkStatus());
  ASSERT_TRUE(replica_->FetchOwned().ok());
  const Owned& owned = replica_->owned().back();
  owned.values.back() = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(replica_->StoreOwned().ok());
  const int64_t position = owned.positions.end - 1;
  const int tensor = replica_->index().RangesOf(position, position + 1)[0].tensor();
  EXPECT_THAT(replica_->CheckWeights(),
              IsError(absl::StatusCode::kOutOfRange, replica_->index()[tensor].name));
}

TEST_F(OneDevice, TrainsOnStoredValues) {
  ASSERT_NO_FATAL_FAILURE(Make(kClippedAdamW));
  for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(Step());
  const std::vector<float> weights = Weights();
  ASSERT_TRUE(replica_->FetchOwned(/*states=*/true).ok());
  std::vector<std::vector<float>> states;
  for (int i = 0; i < replica_->slices().states(); ++i) {
    states.emplace_back();
    for (const Owned& owned : replica_->slices().State(i)) {
      states.back().insert(states.back().end(), owned.values.begin(), owned.values.end());
    }
  }
  ASSERT_NO_FATAL_FAILURE(Step());
  const std::vector<float> next = Weights();
  EXPECT_NE(next, weights);

  // Restores the state and repeats the step.
  const auto put = [](std::span<const Owned> list, const std::vector<float>& values) {
    auto from = values.begin();
    for (const Owned& owned : list) {
      std::copy_n(from, owned.values.size(), owned.values.begin());
      from += std::ssize(owned.values);
    }
  };
  put(replica_->owned(), weights);
  for (int i = 0; i < replica_->slices().states(); ++i) {
    put(replica_->slices().State(i), states[i]);
  }
  ASSERT_TRUE(replica_->StoreOwned(/*states=*/true).ok());
  replica_->slices().SetUpdates(std::vector<UpdateCount>{{{0, replica_->index().size()}, 3}});
  EXPECT_EQ(Weights(), weights);
  --step_;
  ASSERT_TRUE(replica_->flow().Gather().ok());
  ASSERT_NO_FATAL_FAILURE(Step());
  EXPECT_EQ(Weights(), next);
}

// The phase whose capture failed runs again.
TEST_F(OneDevice, TrainsWithoutRecordingsIfCaptureFails) {
  for (const char* optimizer : {kSgd, kClippedAdamW}) {
    for (const bool library : {false, true}) {
      SCOPED_TRACE(absl::StrCat(optimizer, library ? ", the library fails" : ", no instance"));
      // Calls of the library, in all steps and in the first one.
      int64_t calls = 0, calls_of_step = 0;
      const auto train = [&](bool fails) {
        step_ = 0;
        losses_.clear();
        Make(optimizer);
        if (fails && library) {
          // The last step that calls the library is captured. Its first phase fails.
          rank_.machine->FailNext("library", cudaErrorUnknown, calls - calls_of_step);
        } else if (fails) {
          rank_.machine->FailNext("graph_instantiate", cudaErrorNotSupported);
        }
        const int64_t before = rank_.machine->calls("library");
        for (int i = 0; i < 5 && !HasFatalFailure(); ++i) {
          Step();
          calls = rank_.machine->calls("library") - before;
          if (i == 0) calls_of_step = calls;
        }
        return std::pair(losses_, Weights());
      };
      const auto recorded = train(false);
      EXPECT_GT(replica_->recorder()->played(), 0);
      EXPECT_EQ(replica_->recorder()->refused(), 0);
      EXPECT_EQ(replica_->recorder()->refusal(), "");
      EXPECT_TRUE(replica_->Fallbacks().empty());
      const auto enqueued = train(true);
      EXPECT_EQ(replica_->recorder()->played(), 0);
      EXPECT_EQ(replica_->recorder()->recordings(), 0);
      EXPECT_EQ(replica_->recorder()->refused(), 1);
      EXPECT_THAT(replica_->recorder()->refusal(),
                  testing::HasSubstr(library ? "emulated library" : "instantiation"));
      ASSERT_EQ(replica_->Fallbacks().size(), 1U);
      EXPECT_EQ(replica_->Fallbacks()[0].kind(), v1::Fallback::RECORDING);
      EXPECT_EQ(enqueued, recorded);
    }
  }
}

TEST_F(OneDevice, FallbacksHaveTheReasonOfTheLibrary) {
  ASSERT_NO_FATAL_FAILURE(Make(kSgd));
  rank_.machine->FailNext("plan of convolution", cudaErrorNotSupported);
  for (int i = 0; i < 2; ++i) {
    ASSERT_NO_FATAL_FAILURE(Step());
    const std::vector<v1::Fallback> fallbacks = replica_->Fallbacks();
    ASSERT_EQ(fallbacks.size(), 1U);
    EXPECT_EQ(fallbacks[0].kind(), v1::Fallback::CONVOLUTION);
    EXPECT_EQ(fallbacks[0].count(), 1U);
    EXPECT_EQ(fallbacks[0].reason(), "emulated library: no plan of convolution");
  }
}

TEST_F(OneDevice, EachBatchSizeHasRecordings) {
  ASSERT_NO_FATAL_FAILURE(Make(kSgd));
  for (int i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(Step());
  const int few = replica_->recorder()->recordings();
  EXPECT_GE(few, 2);
  const BatchView view{
      .samples = 4,
      .inputs = batch_->View(kSamples, 0).inputs.first(4 * replica_->graph().input().elements()),
      .labels = batch_->View(kSamples, 0).labels.first(4)};
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(replica_->Step({&view, 1}, kRate, true).ok());
  EXPECT_GT(replica_->recorder()->recordings(), few);
  EXPECT_LE(replica_->recorder()->recordings(), StepRecorder::kMaxRecordings);
}

}  // namespace
}  // namespace cadre
