#include "group/step_times.h"

#include "gtest/gtest.h"

namespace cadre {
namespace {

class StepTimesTest : public ::testing::Test {
 protected:
  void Step(double seconds) {
    now_ += absl::Seconds(seconds);
    times_.Step(now_);
  }

  absl::Time now_ = absl::UnixEpoch();
  StepTimes times_;
};

TEST_F(StepTimesTest, NothingIsKnownBeforeTheFirstStep) {
  EXPECT_EQ(times_.Median(), 0);
  times_.Step(now_);
  EXPECT_EQ(times_.Median(), 0) << "its begin is not known";
  Step(3);
  EXPECT_DOUBLE_EQ(times_.Median(), 3);
}

TEST_F(StepTimesTest, PausesDoNotCount) {
  times_.Begin(now_);
  Step(90);  // compiles
  Step(0.05);
  EXPECT_NEAR(times_.Median(), 0.05, 1e-9);
  for (int step = 0; step < 7; ++step) Step(0.05);
  EXPECT_NEAR(times_.Median(), 0.05, 1e-9);
  Step(60);
  Step(60);
  EXPECT_NEAR(times_.Median(), 0.05, 1e-9);
}

TEST_F(StepTimesTest, ExchangesAreNoSteps) {
  times_.Begin(now_);
  Step(2);
  now_ += absl::Minutes(1);
  times_.Begin(now_);
  Step(2);
  EXPECT_DOUBLE_EQ(times_.Median(), 2);
}

TEST_F(StepTimesTest, SlowerStepsAreKnownAfterSome) {
  times_.Begin(now_);
  for (int step = 0; step < 100; ++step) Step(1);
  for (int step = 0; step < 5; ++step) Step(4);
  EXPECT_NEAR(times_.Median(), 4, 1e-9);
}

}  // namespace
}  // namespace cadre
