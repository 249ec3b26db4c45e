// Which steps of a rank are profiled, and when a profile is reported; with a manual clock.
#include "worker/train/step_measurer.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "plan/search/planner.h"
#include "tests/base/expect.h"
#include "tests/base/manual_clock.h"
#include "tests/comm/transport/ranks.h"
#include "tests/member/recording_control.h"
#include "worker/train/batches.h"

namespace cadre {
namespace {

constexpr int64_t kSamples = 4;
// Numbers of warm-up steps and of profiled steps.
constexpr int kWarmUp = 2;
constexpr int kProfiled = 6;
// Number of steps in a window, whose duration is compared with earlier windows, if a step takes a
// second.
constexpr int kWindow = 8;

v1::RunSpec Spec() {
  return Parse<v1::RunSpec>(R"(
    name: "small"
    model {
      input { channels: 1 height: 4 width: 4 }
      layer { name: "fc" fully_connected { out_features: 3 } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    batch_per_group: 4
    optimizer { sgd {} }
  )");
}

// A single rank that trains.
class StepMeasurerTest : public ::testing::Test {
 protected:
  explicit StepMeasurerTest(uint32_t rank = 0) {
    auto replica = Replica::Make(Spec(), *MakePlan(Spec(), 1), *kernels_, *transports_[0]);
    EXPECT_TRUE(replica.ok()) << replica.status();
    replica_ = *std::move(replica);
    batch_ = std::make_unique<RandomBatch>(*replica_, kSamples);
    v1::RankSlot rank_slot;
    rank_slot.set_generation(7);
    rank_slot.set_rank(rank);
    measurer_ = std::make_unique<StepMeasurer>(rank_slot, *replica_, control_, clock_);
  }

  void TakeStep(bool boundary = false, bool traced = false,
                absl::Duration length = absl::Seconds(1)) {
    ASSERT_TRUE(
        measurer_->BeforeStep({.number = step_, .boundary = boundary, .traced = traced}).ok());
    replica_->flow().set_step(step_);
    const BatchView view = batch_->View(kSamples, step_++);
    ASSERT_TRUE(replica_->Step({&view, 1}, 1e-6F, /*gather=*/!boundary).ok());
    clock_.Advance(length);
    ASSERT_TRUE(measurer_->AfterStep().ok());
    if (boundary) {
      ASSERT_TRUE(replica_->flow().Gather().ok());
    }
  }
  void TakeSteps(int steps, absl::Duration length = absl::Seconds(1)) {
    for (int i = 0; i < steps; ++i) TakeStep(false, false, length);
  }
  // Number of steps until a report, if every `period`th is the last one before a boundary.
  int StepsUntilReport(int period) {
    int steps = 0;
    while (control_.measured.empty() && steps < 100) {
      ++steps;
      TakeStep(/*boundary=*/steps % period == 0);
    }
    return steps;
  }

  const Transports transports_ = MakeTransports(Wire::kThreads, 1);
  const std::unique_ptr<Backend> kernels_ = MakeCpuBackend(1);
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<RandomBatch> batch_;
  ManualClock clock_;
  RecordingControl control_;
  std::unique_ptr<StepMeasurer> measurer_;
  uint32_t step_ = 0;
};

TEST_F(StepMeasurerTest, ReportsOneProfile) {
  TakeSteps(kWarmUp + kProfiled - 1);
  EXPECT_TRUE(control_.measured.empty());
  TakeSteps(1);
  ASSERT_EQ(control_.measured.size(), 1u);
  const v1::Measured& measured = control_.measured[0];
  EXPECT_EQ(measured.place().generation(), 7u);
  EXPECT_GT(measured.times().compute(), 0);
  EXPECT_EQ(measured.layers().time_size(), 3) << "input, fc, loss";
  EXPECT_GT(measured.update_seconds(), 0);
  EXPECT_EQ(measured.copy_seconds(), 0) << "there are no moves";
  TakeSteps(3 * kWindow);
  EXPECT_EQ(control_.measured.size(), 1u);
}

TEST_F(StepMeasurerTest, SkipsStepsBeforeBoundaries) {
  // Profiled: 3, 5, 6, 7, 9, 10.
  EXPECT_EQ(StepsUntilReport(/*period=*/4), 10);
}

TEST_F(StepMeasurerTest, ProfilesAllStepsIfBoundariesAreClose) {
  EXPECT_EQ(StepsUntilReport(/*period=*/2), kWarmUp + kProfiled);
}

TEST_F(StepMeasurerTest, ProfilesAllStepsIfEachIsBeforeABoundary) {
  EXPECT_EQ(StepsUntilReport(/*period=*/1), kWarmUp + kProfiled);
}

TEST_F(StepMeasurerTest, ProfileSpansPauses) {
  // Three steps between pauses; the first two of all are warm-up.
  for (int pause = 0; pause < 3; ++pause) {
    EXPECT_TRUE(control_.measured.empty());
    TakeSteps(3);
    ASSERT_TRUE(measurer_->Pause().ok());
  }
  EXPECT_EQ(control_.measured.size(), 1u) << "1 + 3 + 2 profiled steps";
}

TEST_F(StepMeasurerTest, TracedStepsAreNotProfiled) {
  TakeSteps(kWarmUp + 2);
  for (int i = 0; i < 10; ++i) TakeStep(/*boundary=*/false, /*traced=*/true);
  EXPECT_TRUE(control_.measured.empty());
  TakeSteps(kProfiled - 3);
  EXPECT_TRUE(control_.measured.empty());
  TakeSteps(1);
  EXPECT_EQ(control_.measured.size(), 1u);
}

TEST_F(StepMeasurerTest, ReportsAgainWhenStepTimeChanges) {
  TakeSteps(kWarmUp + kProfiled);
  ASSERT_EQ(control_.measured.size(), 1u);
  TakeSteps(kWindow);
  // A change by exactly a quarter is not reported.
  TakeSteps(kWindow, absl::Milliseconds(1250));
  TakeSteps(kProfiled);
  EXPECT_EQ(control_.measured.size(), 1u);
  TakeSteps(kWindow - kProfiled);
  TakeSteps(kWindow, absl::Milliseconds(1300));
  EXPECT_EQ(control_.measured.size(), 1u) << "the next steps are profiled";
  TakeSteps(kProfiled, absl::Milliseconds(1300));
  ASSERT_EQ(control_.measured.size(), 2u);
  // The new step time is the reference.
  TakeSteps(kWindow, absl::Milliseconds(1300));
  TakeSteps(kWindow + kProfiled, absl::Seconds(1));
  EXPECT_EQ(control_.measured.size(), 3u) << "faster";
}

TEST_F(StepMeasurerTest, ShortDisturbancesAreIgnored) {
  TakeSteps(kWarmUp + kProfiled);
  // A window spans at least five seconds.
  TakeSteps(400, absl::Milliseconds(25));
  TakeStep(false, false, absl::Milliseconds(500));
  TakeSteps(400, absl::Milliseconds(25));
  EXPECT_EQ(control_.measured.size(), 1u);
}

class OtherRankTest : public StepMeasurerTest {
 protected:
  OtherRankTest() : StepMeasurerTest(1) {}
};

TEST_F(OtherRankTest, ReportsNothing) {
  TakeSteps(kWarmUp + 2 * kProfiled);
  ASSERT_TRUE(measurer_->Pause().ok());
  EXPECT_TRUE(control_.measured.empty());
}

}  // namespace
}  // namespace cadre
