// Profiles are consistent: parts add up to steps, every layer is present, and only observed steps
// count.
#include "worker/train/step_profile.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "plan/cluster_profile.h"
#include "plan/search/planner.h"
#include "tests/base/expect.h"
#include "tests/comm/transport/ranks.h"
#include "worker/train/batches.h"

namespace cadre {
namespace {

constexpr int64_t kBatchSamples = 5;

v1::RunSpec Spec(int model_ranks) {
  auto spec = Parse<v1::RunSpec>(R"(
    name: "small"
    model {
      input { channels: 3 height: 8 width: 8 }
      layer { name: "conv" convolution { out_channels: 6 kernel: 3 padding: 1 } }
      layer { name: "norm" batch_norm {} }
      layer { name: "fc1" fully_connected { out_features: 21 } }
      layer { name: "relu" relu {} }
      layer { name: "fc2" fully_connected { out_features: 10 } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    batch_per_group: 5
    optimizer { sgd { momentum: 0.9 } }
  )");
  spec.mutable_cluster()->set_model_ranks(model_ranks);
  return spec;
}

void ExpectWithin(double part, double whole) {
  EXPECT_GE(part, 0);
  EXPECT_LE(part, whole);
}

void ExpectConsistent(const StepProfile& profile) {
  EXPECT_EQ(profile.steps(), 3);
  const v1::StepTimes times = profile.Times();
  EXPECT_GT(times.step(), 0);
  EXPECT_GT(times.compute(), 0);
  ExpectWithin(times.compute(), times.step());
  ExpectWithin(times.moves(), times.step());
  ExpectWithin(times.exposed(), times.step());
  EXPECT_GT(times.update(), 0);
  EXPECT_GT(profile.UpdateSeconds(), 0);
  ExpectWithin(profile.UpdateSeconds(), times.update());
}

void Step(Replica& replica, StepProfile* profile, const RandomBatch& batch, int64_t step) {
  replica.flow().set_step(step);
  if (profile != nullptr) profile->BeginStep(step);
  const BatchView view = batch.View(kBatchSamples, step);
  const auto loss = replica.Step({&view, 1}, 1e-6F, /*gather=*/true);
  ASSERT_TRUE(loss.ok()) << loss.status();
  if (profile != nullptr) profile->EndStep();
}

// Trains five steps, of which the middle three are profiled.
void Train(Replica& replica, StepProfile& profile) {
  const RandomBatch batch(replica, kBatchSamples);
  for (int64_t step = 10; step < 15; ++step) {
    const bool profiled = step > 10 && step < 14;
    if (step == 11) {
      ASSERT_TRUE(profile.Start().ok());
    }
    if (step == 14) {
      ASSERT_TRUE(profile.Stop().ok());
    }
    Step(replica, profiled ? &profile : nullptr, batch, step);
  }
  ASSERT_TRUE(replica.AwaitOperations().ok());
}

std::map<std::string, v1::LayerTime> ByLayer(const v1::ModelTimes& times) {
  std::map<std::string, v1::LayerTime> by_layer;
  for (const v1::LayerTime& time : times.time()) {
    EXPECT_TRUE(by_layer.emplace(time.layer(), time).second) << time.layer();
  }
  return by_layer;
}

TEST(StepProfileTest, WhatIsComputedAgainIsNotTheLayersTime) {
  const Transports transports = MakeTransports(Wire::kThreads, 1);
  const v1::RunSpec spec = Spec(1);
  const std::unique_ptr<Backend> kernels = MakeCpuBackend(1);
  auto replica = Replica::Make(spec, *MakePlan(spec, 1), *kernels, *transports[0]);
  ASSERT_TRUE(replica.ok()) << replica.status();
  StepProfile profile(**replica);
  ASSERT_TRUE(profile.Start().ok());
  profile.BeginStep(10);
  Tape tape;
  tape.samples = kBatchSamples;
  const auto play = [&](TapeOpKind kind, bool again, double seconds) {
    TapeOp op;
    op.kind = kind;
    op.again = again;
    profile.Played(tape, op, absl::Time(), seconds);
  };
  play(TapeOpKind::kForward, /*again=*/false, 1);
  play(TapeOpKind::kLoss, /*again=*/false, 0);
  play(TapeOpKind::kForward, /*again=*/true, 2);
  play(TapeOpKind::kBackward, /*again=*/false, 4);
  profile.EndStep();
  ASSERT_TRUE(profile.Stop().ok());
  const v1::LayerTime conv = ByLayer(profile.Layers())["conv"];
  EXPECT_DOUBLE_EQ(conv.forward(), 1);
  EXPECT_DOUBLE_EQ(conv.backward(), 4);
  EXPECT_DOUBLE_EQ(profile.Times().compute(), 7);
}

TEST(StepProfileTest, CoversAllLayersOfGroups) {
  for (const auto& [ranks, model_ranks] : {std::pair(1, 1), std::pair(2, 1), std::pair(3, 3)}) {
    const Transports transports = MakeTransports(Wire::kThreads, ranks);
    const v1::RunSpec spec = Spec(model_ranks);
    const auto plan = MakePlan(spec, ranks);
    ASSERT_TRUE(plan.ok()) << plan.status();
    OnRanks(ranks, [&, ranks = ranks, model_ranks = model_ranks](int rank) {
      const std::unique_ptr<Backend> kernels = MakeCpuBackend(1);
      auto replica = Replica::Make(spec, *plan, *kernels, *transports[rank]);
      ASSERT_TRUE(replica.ok()) << replica.status();
      StepProfile profile(**replica);
      Train(**replica, profile);
      ExpectConsistent(profile);
      const v1::ModelTimes layers = profile.Layers();
      EXPECT_EQ(layers.model(), ModelKey(spec.model()));
      const auto by_layer = ByLayer(layers);
      EXPECT_EQ(std::ssize(by_layer), (*replica)->graph().size());
      for (const auto& [layer, time] : by_layer) {
        EXPECT_GE(time.forward(), 0) << layer;
        EXPECT_GE(time.backward(), 0) << layer;
        EXPECT_GT(time.forward() + time.backward(), 0) << layer;
      }
      const v1::LayerTime& fc = by_layer.at("fc1");
      EXPECT_EQ(int64_t{fc.outs()}, model_ranks);
      EXPECT_EQ(int64_t{fc.samples()}, (5 * model_ranks + ranks - 1) / ranks);
      EXPECT_EQ(int64_t{by_layer.at("conv").samples()}, (5 + ranks - 1) / ranks);
      if (model_ranks > 1) {
        EXPECT_GT(profile.CopySeconds(), 0);
      }
    });
  }
}

TEST(StepProfileTest, PartsAddUpToTheStep) {
  const v1::RunSpec spec = Spec(1);
  const auto plan = MakePlan(spec, 2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Transports transports = MakeTransports(Wire::kThreads, 2);
  OnRanks(2, [&](int rank) {
    const std::unique_ptr<Backend> kernels = MakeCpuBackend(1);
    auto replica = Replica::Make(spec, *plan, *kernels, *transports[rank]);
    ASSERT_TRUE(replica.ok()) << replica.status();
    const RandomBatch batch(**replica, kBatchSamples);
    StepProfile profile(**replica);
    ASSERT_TRUE(profile.Start().ok());
    Step(**replica, &profile, batch, 1);
    // Not between BeginStep and EndStep, so not part of the profile.
    Step(**replica, nullptr, batch, 2);
    ASSERT_TRUE(profile.Stop().ok());
    ASSERT_EQ(profile.steps(), 1);
    const v1::StepTimes times = profile.Times();
    EXPECT_GT(times.update(), 0);
    EXPECT_GT(times.collectives(), 0);
    const v1::ModelTimes by_layer = profile.Layers();
    double layers = 0;
    for (const v1::LayerTime& time : by_layer.time()) layers += time.forward() + time.backward();
    // Rank 0 has fewer of the five samples, so its times are scaled up.
    if (rank == 1) {
      EXPECT_NEAR(layers, times.compute(), 1e-9);
    }
    EXPECT_LE(times.compute() + times.moves() + times.exposed(), times.step());
  });
}

TEST(StepProfileTest, ResumesAndReplacesRepeatedSteps) {
  const Transports transports = MakeTransports(Wire::kThreads, 1);
  const std::unique_ptr<Backend> kernels = MakeCpuBackend(1);
  const v1::RunSpec spec = Spec(1);
  auto replica = Replica::Make(spec, *MakePlan(spec, 1), *kernels, *transports[0]);
  ASSERT_TRUE(replica.ok()) << replica.status();
  const RandomBatch batch(**replica, kBatchSamples);
  StepProfile profile(**replica);
  ASSERT_TRUE(profile.Start().ok());
  for (const int64_t step : {4, 5, 6}) Step(**replica, &profile, batch, step);
  ASSERT_TRUE(profile.Stop().ok());
  Step(**replica, nullptr, batch, 7);
  ASSERT_TRUE(profile.Resume().ok());
  Step(**replica, &profile, batch, 8);
  EXPECT_EQ(profile.steps(), 4);
  Step(**replica, &profile, batch, 5);
  EXPECT_EQ(profile.steps(), 2) << "steps 4 and 5";
  ASSERT_TRUE(profile.Stop().ok());
  EXPECT_GT(profile.Times().update(), 0);
  ASSERT_TRUE(profile.Start().ok());
  EXPECT_EQ(profile.steps(), 0);
  ASSERT_TRUE(profile.Stop().ok());
}

TEST(StepProfileTest, EmptyProfileIsZero) {
  const Transports transports = MakeTransports(Wire::kThreads, 1);
  const std::unique_ptr<Backend> kernels = MakeCpuBackend(1);
  const v1::RunSpec spec = Spec(1);
  auto replica = Replica::Make(spec, *MakePlan(spec, 1), *kernels, *transports[0]);
  ASSERT_TRUE(replica.ok()) << replica.status();
  StepProfile profile(**replica);
  ASSERT_TRUE(profile.Start().ok());
  ASSERT_TRUE(profile.Stop().ok());
  EXPECT_EQ(profile.steps(), 0);
  EXPECT_EQ(profile.Times().step(), 0);
  EXPECT_EQ(profile.Layers().time_size(), 0);
  EXPECT_EQ(profile.CopySeconds(), 0);
}

}  // namespace
}  // namespace cadre
