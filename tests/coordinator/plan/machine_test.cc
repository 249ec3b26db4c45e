#include "coordinator/plan/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "spec/cluster_profile.h"
#include "spec/text.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = R"pb(
  model {
    input { channels: 1 height: 4 width: 4 }
    layer {
      name: "fc1"
      fully_connected { out_features: 8 }
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
)pb";

class MachineTest : public ::testing::Test {
 protected:
  MachineTest() : spec_(ParseRunSpec("spec", kModel)->spec) {}

  v1::ClusterProfile Profile(const std::string& text) {
    auto profile = ParseClusterProfile(text, "profile");
    EXPECT_TRUE(profile.ok()) << profile.status();
    return profile.value_or(v1::ClusterProfile());
  }
  absl::StatusOr<GroupMachine> MachineFor(const v1::ClusterProfile& profile, int first, int ranks) {
    return MachineOf(profile, spec_.model(), graph_, first, ranks);
  }

  const v1::RunSpec spec_;
  const Graph graph_ = *Graph::FromModel(spec_.model());
};

// Three machines of two workers, one of four; slower links to the last.
constexpr char kHosts[] = R"pb(
  host {
    name: "rack"
    count: 3
    workers: 2
    device: "small"
    cores: 4
    memory_bytes: 1000
    inside { alpha: 1e-6 beta: 1e-10 }
  }
  host {
    name: "far"
    workers: 4
    device: "large"
    memory_bytes: 4000
    inside { alpha: 2e-6 beta: 2e-10 }
  }
  link {
    from: "rack"
    to: "rack"
    link { alpha: 1e-5 beta: 1e-9 }
  }
  link {
    from: "far"
    to: "rack"
    link { alpha: 5e-5 beta: 8e-9 }
  }
  device { name: "small" flops: 1e9 update_seconds: 1e-9 }
  device { name: "large" flops: 4e9 update_seconds: 2e-9 }
)pb";

TEST_F(MachineTest, CountsWorkersOfAllHosts) { EXPECT_EQ(WorkersOf(Profile(kHosts)), 10); }

TEST_F(MachineTest, TakesTheLinkInsideOfOneHost) {
  const auto machine = MachineFor(Profile(kHosts), 2, 2);
  ASSERT_TRUE(machine.ok()) << machine.status();
  EXPECT_EQ(machine->per_host, 2);
  EXPECT_DOUBLE_EQ(machine->link.beta, 1e-10);
  EXPECT_DOUBLE_EQ(machine->cores, 4);
  EXPECT_DOUBLE_EQ(machine->flops, 1e9);
}

TEST_F(MachineTest, TakesTheSlowestLinkAmongItsHosts) {
  const auto near = MachineFor(Profile(kHosts), 0, 6);
  const auto far = MachineFor(Profile(kHosts), 0, 10);
  ASSERT_TRUE(near.ok() && far.ok()) << near.status() << far.status();
  EXPECT_DOUBLE_EQ(near->link.beta, 1e-9);
  EXPECT_DOUBLE_EQ(far->link.beta, 8e-9);
  EXPECT_DOUBLE_EQ(near->inside.beta, 1e-10);
  EXPECT_DOUBLE_EQ(far->inside.beta, 2e-10);
  EXPECT_EQ(far->memory_bytes, 1000);
  // Of the slowest device.
  EXPECT_DOUBLE_EQ(far->flops, 1e9);
  EXPECT_EQ(far->per_host, 2);
}

TEST_F(MachineTest, KnowsWhichRanksShareAHost) {
  // From the middle of a host on, no two neighbours are sure to share one.
  EXPECT_EQ(MachineFor(Profile(kHosts), 1, 4)->per_host, 1);
  EXPECT_EQ(MachineFor(Profile(kHosts), 0, 3)->per_host, 2);
  EXPECT_EQ(MachineFor(Profile(kHosts), 6, 4)->per_host, 4);
  EXPECT_DOUBLE_EQ(MachineFor(Profile(kHosts), 1, 4)->cores, 2);
}

TEST_F(MachineTest, RefusesMoreRanksThanWorkers) {
  const absl::Status status = MachineFor(Profile(kHosts), 4, 7).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("10 workers, 11 are wanted"));
}

TEST_F(MachineTest, AxesWithinAHostUseItsLink) {
  const GroupMachine machine = *MachineFor(Profile(kHosts), 0, 6);
  const Mesh inner({{"data", 3}, {"model", 2}});
  EXPECT_DOUBLE_EQ(machine.LinkOf(inner, {"model"}).beta, 1e-10);
  EXPECT_DOUBLE_EQ(machine.LinkOf(inner, {"data"}).beta, 1e-9);
  EXPECT_DOUBLE_EQ(machine.LinkOf(inner, {"data", "model"}).beta, 1e-9);
  // Neighbours along the outer axis are three ranks apart.
  const Mesh outer({{"data", 2}, {"model", 3}});
  EXPECT_DOUBLE_EQ(machine.LinkOf(outer, {"model"}).beta, 1e-9);
}

v1::ModelTimes Times() {
  v1::ModelTimes times;
  const auto add = [&](uint32_t samples, uint32_t outs, double forward) {
    v1::LayerTime& time = *times.add_time();
    time.set_layer("fc1");
    time.set_samples(samples);
    time.set_outs(outs);
    time.set_forward(forward);
    time.set_backward(2 * forward);
  };
  add(4, 1, 0.5);
  add(8, 1, 0.7);
  add(8, 2, 0.4);
  return times;
}

TEST_F(MachineTest, MeasuredTimesAreTakenAsTheyAre) {
  const MeasuredLayers layers(Times(), graph_);
  const auto seconds = layers.Of(1, {.samples = 8, .outs = 2});
  ASSERT_TRUE(seconds.has_value());
  EXPECT_DOUBLE_EQ(seconds->forward, 0.4);
  EXPECT_DOUBLE_EQ(seconds->backward, 0.8);
}

TEST_F(MachineTest, SizesInBetweenLieBetweenWhatIsCutAlike) {
  const MeasuredLayers layers(Times(), graph_);
  EXPECT_NEAR(layers.Of(1, {.samples = 6})->forward, 0.6, 1e-12);
  EXPECT_NEAR(layers.Of(1, {.samples = 2})->forward, 0.25, 1e-12);
  EXPECT_NEAR(layers.Of(1, {.samples = 16})->forward, 1.4, 1e-12);
  // Nothing is cut in four: two samples' work in all.
  EXPECT_NEAR(layers.Of(1, {.samples = 8, .outs = 4})->forward, 0.25, 1e-12);
  EXPECT_FALSE(layers.Of(2, {.samples = 8}).has_value());
}

TEST_F(MachineTest, WhatWasNotMeasuredFollowsFromItsWork) {
  GroupMachine machine = UniformMachine({}, 1e3);
  // 16 inputs, 8 outputs: 256 operations a sample.
  const LayerSeconds seconds = machine.SecondsOf(graph_[1], 1, {.samples = 4, .outs = 2});
  EXPECT_DOUBLE_EQ(seconds.forward, 4 * 256 / 2 / 1e3);
  EXPECT_DOUBLE_EQ(seconds.backward, 2 * seconds.forward);
  machine.flops = 0;
  EXPECT_FALSE(machine.computes());
  EXPECT_EQ(machine.SecondsOf(graph_[1], 1, {.samples = 4}).forward, 0);
}

TEST_F(MachineTest, CountsBeyondAllBoundsDoNotWrapAround) {
  v1::ClusterProfile profile;
  for (int h = 0; h < 3; ++h) {
    v1::HostProfile& host = *profile.add_host();
    host.set_count(4'294'967'295U);
    host.set_workers(4'294'967'295U);
  }
  EXPECT_EQ(WorkersOf(profile), int64_t{1} << 60);
}

}  // namespace
}  // namespace cadre
