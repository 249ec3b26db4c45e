// When the steps of a rank are looked at, and when the coordinator hears of it; by a clock that
// only the test moves.
#include "worker/train/step_measurer.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "kernels/backend.h"
#include "plan/search/planner.h"
#include "tests/worker/transport/ranks.h"
#include "worker/train/random_batch.h"

namespace cadre {
namespace {

constexpr int64_t kSamples = 4;
// Of the first ones, that nobody looks at; and of those that are told of.
constexpr int kBefore = 2;
constexpr int kLookedAt = 6;
// Steps that are compared with those before, of a second each.
constexpr int kWindow = 8;

v1::RunSpec Spec() {
  v1::RunSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
    name: "small"
    model {
      input { channels: 1 height: 4 width: 4 }
      layer { name: "fc" fully_connected { out_features: 3 } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    batch_per_group: 4
    optimizer { sgd {} }
  )",
                                                            &spec));
  return spec;
}

// Hears what is measured; nothing else is said here.
class Listener final : public GroupControl {
 public:
  std::vector<v1::Measured> measured;

  void Measured(const v1::Measured& message) override { measured.push_back(message); }
  absl::StatusOr<v1::Start> PreparedAndStart(const v1::Prepared&) override {
    return absl::CancelledError("there is no run");
  }
  void Report(const v1::Progress&) override {}
  void Contribute(const v1::Contributed&) override {}
  absl::StatusOr<std::optional<v1::Decision>> AwaitDecision(absl::Duration) override {
    return absl::CancelledError("there is no run");
  }
  void Adopted(const v1::Adopted&) override {}
  void Evaluated(const v1::Evaluated&) override {}
  std::optional<v1::TraceSteps> TakeTraceRequest() override { return std::nullopt; }
  void Traced(const v1::Traced&) override {}
  bool connected() const override { return true; }
  std::string ShardAddress(uint32_t) const override { return ""; }
};

// A rank that is alone, and trains.
class StepMeasurerTest : public ::testing::Test {
 protected:
  explicit StepMeasurerTest(uint32_t rank = 0) {
    auto replica = Replica::Make(Spec(), *MakePlan(Spec(), 1), *kernels_, *transports_[0]);
    EXPECT_TRUE(replica.ok()) << replica.status();
    replica_ = *std::move(replica);
    batch_ = std::make_unique<RandomBatch>(*replica_, kSamples);
    v1::RankSlot place;
    place.set_generation(7);
    place.set_rank(rank);
    measurer_ = std::make_unique<StepMeasurer>(place, *replica_, control_, clock_);
  }

  void TakeStep(bool boundary = false, bool traced = false,
                absl::Duration length = absl::Seconds(1)) {
    ASSERT_TRUE(
        measurer_->BeforeStep({.number = step_, .boundary = boundary, .traced = traced}).ok());
    replica_->set_step(step_);
    const BatchView view = batch_->View(kSamples, step_++);
    ASSERT_TRUE(replica_->Step({&view, 1}, 1e-6F, /*gather=*/!boundary).ok());
    clock_.Advance(length);
    ASSERT_TRUE(measurer_->AfterStep().ok());
    if (boundary) {
      ASSERT_TRUE(replica_->GatherWeights().ok());
    }
  }
  void TakeSteps(int steps, absl::Duration length = absl::Seconds(1)) {
    for (int i = 0; i < steps; ++i) TakeStep(false, false, length);
  }
  // Steps until something was told; each `period`th is the last before a boundary.
  int StepsUntilTold(int period) {
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
  ManualClock clock_{absl::UnixEpoch()};
  Listener control_;
  std::unique_ptr<StepMeasurer> measurer_;
  uint32_t step_ = 0;
};

TEST_F(StepMeasurerTest, TellsOnceWhatStepsAreMadeOf) {
  TakeSteps(kBefore + kLookedAt - 1);
  EXPECT_TRUE(control_.measured.empty());
  TakeSteps(1);
  ASSERT_EQ(control_.measured.size(), 1u);
  const v1::Measured& measured = control_.measured[0];
  EXPECT_EQ(measured.place().generation(), 7u);
  EXPECT_GT(measured.times().compute(), 0);
  EXPECT_EQ(measured.layers().time_size(), 3) << "input, fc, loss";
  EXPECT_GT(measured.update_seconds(), 0);
  EXPECT_EQ(measured.copy_seconds(), 0) << "nothing moves";
  TakeSteps(3 * kWindow);
  EXPECT_EQ(control_.measured.size(), 1u);
}

TEST_F(StepMeasurerTest, PassesStepsBeforeBoundariesOver) {
  // Looked at: 3, 5, 6, 7, 9, 10.
  EXPECT_EQ(StepsUntilTold(/*period=*/4), 10);
}

TEST_F(StepMeasurerTest, LooksAtAllWhereBoundariesAreClose) {
  EXPECT_EQ(StepsUntilTold(/*period=*/2), kBefore + kLookedAt);
}

TEST_F(StepMeasurerTest, LooksAtAllWhereEveryStepIsBeforeABoundary) {
  EXPECT_EQ(StepsUntilTold(/*period=*/1), kBefore + kLookedAt);
}

TEST_F(StepMeasurerTest, ShortEpochsAddUp) {
  // Three steps, then something else: the first two are not looked at, the last one is.
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_TRUE(control_.measured.empty());
    TakeSteps(3);
    ASSERT_TRUE(measurer_->Pause().ok());
  }
  EXPECT_EQ(control_.measured.size(), 1u) << "1 and 3 and, at last, 2";
}

TEST_F(StepMeasurerTest, StepsThatAreTracedDoNotCount) {
  TakeSteps(kBefore + 2);
  for (int i = 0; i < 10; ++i) TakeStep(/*boundary=*/false, /*traced=*/true);
  EXPECT_TRUE(control_.measured.empty());
  TakeSteps(kLookedAt - 3);
  EXPECT_TRUE(control_.measured.empty());
  TakeSteps(1);
  EXPECT_EQ(control_.measured.size(), 1u);
}

TEST_F(StepMeasurerTest, SaysItAgainWhenStepsHaveBecomeSlowerOrFaster) {
  TakeSteps(kBefore + kLookedAt);
  ASSERT_EQ(control_.measured.size(), 1u);
  TakeSteps(kWindow);
  // A quarter is not more than a quarter.
  TakeSteps(kWindow, absl::Milliseconds(1250));
  TakeSteps(kLookedAt);
  EXPECT_EQ(control_.measured.size(), 1u);
  TakeSteps(kWindow - kLookedAt);
  TakeSteps(kWindow, absl::Milliseconds(1300));
  EXPECT_EQ(control_.measured.size(), 1u) << "those are looked at that come now";
  TakeSteps(kLookedAt, absl::Milliseconds(1300));
  ASSERT_EQ(control_.measured.size(), 2u);
  // Compared with what they are now.
  TakeSteps(kWindow, absl::Milliseconds(1300));
  TakeSteps(kWindow + kLookedAt, absl::Seconds(1));
  EXPECT_EQ(control_.measured.size(), 3u) << "faster";
}

TEST_F(StepMeasurerTest, HiccupsOfShortStepsAreNoChange) {
  TakeSteps(kBefore + kLookedAt);
  // A window is of five seconds at least.
  TakeSteps(400, absl::Milliseconds(25));
  TakeStep(false, false, absl::Milliseconds(500));
  TakeSteps(400, absl::Milliseconds(25));
  EXPECT_EQ(control_.measured.size(), 1u);
}

class OtherRankTest : public StepMeasurerTest {
 protected:
  OtherRankTest() : StepMeasurerTest(1) {}
};

TEST_F(OtherRankTest, SaysNothing) {
  TakeSteps(kBefore + 2 * kLookedAt);
  ASSERT_TRUE(measurer_->Pause().ok());
  EXPECT_TRUE(control_.measured.empty());
}

}  // namespace
}  // namespace cadre
