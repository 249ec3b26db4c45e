#include "plan/search/hardware_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/plan/profile.h"
#include "tests/plan/search/problems.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

class HardwareModelTest : public ::testing::Test {
 protected:
  // Three hosts with two workers each and one with four, to which links are slower.
  HardwareModelTest()
      : profile_(testing::ProfileOf(R"(
            host { name: "rack" count: 3 workers: 2 device: "small" cores: 4 memory_bytes: 1000
                   inside { alpha: 1e-6 beta: 1e-10 } }
            host { name: "far" workers: 4 device: "large" memory_bytes: 4000
                   inside { alpha: 2e-6 beta: 2e-10 } }
            link { from: "rack" to: "rack" link { alpha: 1e-5 beta: 1e-9 } }
            link { from: "far" to: "rack" link { alpha: 5e-5 beta: 8e-9 } }
            device { name: "small" flops: 1e9 update_seconds: 1e-9 }
            device { name: "large" flops: 4e9 update_seconds: 2e-9 })")) {}

  absl::StatusOr<HardwareModel> HardwareFor(int first, int ranks) {
    return HardwareOf(profile_, model_.spec.model(), graph_, first, ranks);
  }

  const v1::ClusterProfile profile_;

  const testing::SmallModel model_{4, {8, 4}, 8};
  const Graph& graph_ = model_.graph;
};

TEST_F(HardwareModelTest, UsesInnerLinkOnOneHost) {
  const auto hardware = HardwareFor(2, 2);
  ASSERT_TRUE(hardware.ok()) << hardware.status();
  EXPECT_EQ(hardware->per_host, 2);
  EXPECT_DOUBLE_EQ(hardware->link.beta, 1e-10);
  EXPECT_DOUBLE_EQ(hardware->cores, 4);
  EXPECT_DOUBLE_EQ(hardware->flops, 1e9);
}

TEST_F(HardwareModelTest, UsesSlowestLinkAndDevice) {
  const auto near = HardwareFor(0, 6);
  const auto far = HardwareFor(0, 10);
  ASSERT_TRUE(near.ok() && far.ok()) << near.status() << far.status();
  EXPECT_DOUBLE_EQ(near->link.beta, 1e-9);
  EXPECT_DOUBLE_EQ(far->link.beta, 8e-9);
  EXPECT_DOUBLE_EQ(near->inside.beta, 1e-10);
  EXPECT_DOUBLE_EQ(far->inside.beta, 2e-10);
  EXPECT_EQ(far->memory_bytes, 1000);
  EXPECT_DOUBLE_EQ(far->flops, 1e9);
  EXPECT_EQ(far->per_host, 2);
}

TEST_F(HardwareModelTest, RanksPerHost) {
  // A group that starts in the middle of a host has no common block of ranks on one host.
  EXPECT_EQ(HardwareFor(1, 4)->per_host, 1);
  EXPECT_EQ(HardwareFor(0, 3)->per_host, 2);
  EXPECT_EQ(HardwareFor(6, 4)->per_host, 4);
  EXPECT_DOUBLE_EQ(HardwareFor(1, 4)->cores, 2);
}

TEST_F(HardwareModelTest, RejectsTooFewWorkers) {
  const absl::Status status = HardwareFor(4, 7).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("10 workers, 11 are required"));
}

TEST_F(HardwareModelTest, AxesWithinHostUseInnerLink) {
  const HardwareModel hardware = *HardwareFor(0, 6);
  const Mesh inner({{"data", 3}, {"model", 2}});
  EXPECT_DOUBLE_EQ(hardware.LinkOf(inner, {"model"}).beta, 1e-10);
  EXPECT_DOUBLE_EQ(hardware.LinkOf(inner, {"data"}).beta, 1e-9);
  EXPECT_DOUBLE_EQ(hardware.LinkOf(inner, {"data", "model"}).beta, 1e-9);
  // The inner axis of three ranks crosses the borders of hosts with two workers.
  const Mesh outer({{"data", 2}, {"model", 3}});
  EXPECT_DOUBLE_EQ(hardware.LinkOf(outer, {"model"}).beta, 1e-9);
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

TEST_F(HardwareModelTest, MeasuredPartsAreExact) {
  const MeasuredLayers layers(Times(), graph_);
  const auto seconds = layers.Of(1, {.samples = 8, .outs = 2});
  ASSERT_TRUE(seconds.has_value());
  EXPECT_DOUBLE_EQ(seconds->forward, 0.4);
  EXPECT_DOUBLE_EQ(seconds->backward, 0.8);
}

TEST_F(HardwareModelTest, InterpolatesBetweenEqualSplits) {
  const MeasuredLayers layers(Times(), graph_);
  EXPECT_NEAR(layers.Of(1, {.samples = 6})->forward, 0.6, 1e-12);
  EXPECT_NEAR(layers.Of(1, {.samples = 2})->forward, 0.25, 1e-12);
  EXPECT_NEAR(layers.Of(1, {.samples = 16})->forward, 1.4, 1e-12);
  // No measured part is split in four, so the time follows from the work, which is that of two
  // samples.
  EXPECT_NEAR(layers.Of(1, {.samples = 8, .outs = 4})->forward, 0.25, 1e-12);
  EXPECT_FALSE(layers.Of(2, {.samples = 8}).has_value());
}

TEST_F(HardwareModelTest, UnmeasuredFollowsFromFlops) {
  HardwareModel hardware = UniformHardware({}, 1e3);
  // 16 inputs, 8 outputs: 256 operations a sample.
  const LayerSeconds seconds = hardware.SecondsOf(graph_[1], 1, {.samples = 4, .outs = 2});
  EXPECT_DOUBLE_EQ(seconds.forward, 4 * 256 / 2 / 1e3);
  EXPECT_DOUBLE_EQ(seconds.backward, 2 * seconds.forward);
  hardware.flops = 0;
  EXPECT_FALSE(hardware.computes());
  EXPECT_EQ(hardware.SecondsOf(graph_[1], 1, {.samples = 4}).forward, 0);
}

}  // namespace
}  // namespace cadre
