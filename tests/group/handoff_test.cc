// The order in which a loop and a program act.
#include "group/handoff.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace cadre {
namespace {

using Task = Handoff::Task;

TEST(HandoffTest, DoReturnsWhenTheProgramHasDoneTheTask) {
  Handoff handoff(/*finishes=*/false);
  handoff.Begin();
  std::atomic<int> fetched = 0;
  std::thread program([&] {
    EXPECT_EQ(handoff.Next(absl::InfiniteDuration()), Task::kFetch);
    fetched = 1;
    EXPECT_EQ(handoff.Next(absl::InfiniteDuration()), Task::kTrain);
    EXPECT_EQ(handoff.step(), 4U);
    EXPECT_FALSE(handoff.Step());
    EXPECT_TRUE(handoff.Step());
    EXPECT_EQ(handoff.Next(absl::InfiniteDuration()), Task::kEnded);
  });
  EXPECT_TRUE(handoff.AwaitProgram().ok());
  EXPECT_TRUE(handoff.Do(Task::kFetch).ok());
  EXPECT_EQ(fetched, 1);
  EXPECT_TRUE(handoff.Assign(Task::kTrain, 4, 6).ok());
  EXPECT_TRUE(*handoff.AwaitDone(absl::InfiniteDuration()));
  EXPECT_EQ(handoff.step(), 6U);
  handoff.End();
  program.join();
}

TEST(HandoffTest, CancelledTrainingEndsAtTheNextStep) {
  Handoff handoff(/*finishes=*/false);
  handoff.Begin();
  std::thread program([&] {
    EXPECT_EQ(handoff.Next(absl::InfiniteDuration()), Task::kTrain);
    handoff.Cancel();
    EXPECT_TRUE(handoff.Step());
    // The next generation.
    EXPECT_EQ(handoff.Next(absl::InfiniteDuration()), Task::kStore);
    EXPECT_EQ(handoff.Next(absl::ZeroDuration()), Task::kWait);
  });
  EXPECT_TRUE(handoff.Assign(Task::kTrain, 0, 100).ok());
  EXPECT_TRUE(absl::IsCancelled(handoff.AwaitDone(absl::InfiniteDuration()).status()));
  EXPECT_TRUE(absl::IsCancelled(handoff.AwaitProgram()));
  handoff.Begin();
  EXPECT_TRUE(handoff.AwaitProgram().ok());
  EXPECT_TRUE(handoff.Do(Task::kStore).ok());
  program.join();
}

TEST(HandoffTest, SeveralRanksFinishTheirPeriod) {
  Handoff handoff(/*finishes=*/true);
  handoff.Begin();
  std::thread program([&] {
    EXPECT_EQ(handoff.Next(absl::InfiniteDuration()), Task::kTrain);
    handoff.Cancel();
    EXPECT_FALSE(handoff.Step());
    EXPECT_TRUE(handoff.Step());
  });
  EXPECT_TRUE(handoff.Assign(Task::kTrain, 0, 2).ok());
  EXPECT_TRUE(absl::IsCancelled(handoff.AwaitDone(absl::InfiniteDuration()).status()));
  program.join();
}

TEST(HandoffTest, AwaitDoneReturnsWhileTheProgramTrains) {
  Handoff handoff(/*finishes=*/false);
  handoff.Begin();
  std::thread program([&] { EXPECT_EQ(handoff.Next(absl::InfiniteDuration()), Task::kTrain); });
  EXPECT_TRUE(handoff.Assign(Task::kTrain, 0, 1).ok());
  EXPECT_FALSE(*handoff.AwaitDone(absl::Milliseconds(1)));
  program.join();
  EXPECT_EQ(handoff.Next(absl::ZeroDuration()), Task::kWait);
  EXPECT_TRUE(*handoff.AwaitDone(absl::ZeroDuration()));
}

TEST(HandoffTest, ShortenedTrainingEndsAfterTheStep) {
  Handoff handoff(/*finishes=*/true);
  handoff.Begin();
  EXPECT_EQ(handoff.Next(absl::ZeroDuration()), Task::kWait);
  ASSERT_TRUE(handoff.Assign(Task::kTrain, 4, 100).ok());
  EXPECT_EQ(handoff.Next(absl::InfiniteDuration()), Task::kTrain);
  EXPECT_FALSE(handoff.Step());
  handoff.Shorten();
  EXPECT_TRUE(handoff.Step());
  EXPECT_EQ(handoff.Next(absl::ZeroDuration()), Task::kWait);
  EXPECT_TRUE(*handoff.AwaitDone(absl::ZeroDuration()));
  EXPECT_EQ(handoff.step(), 6U);
}

TEST(HandoffTest, StepsOfAllTasksAreCounted) {
  Handoff handoff(/*finishes=*/false);
  handoff.Begin();
  EXPECT_EQ(handoff.Next(absl::ZeroDuration()), Task::kWait);
  ASSERT_TRUE(handoff.Assign(Task::kTrain, 10, 12).ok());
  EXPECT_EQ(handoff.Next(absl::ZeroDuration()), Task::kTrain);
  handoff.Step();
  handoff.Cancel();
  // The step that it was in when the generation ended.
  handoff.Step();
  EXPECT_EQ(handoff.Next(absl::ZeroDuration()), Task::kWait);
  EXPECT_EQ(handoff.trained(), 2U);
  handoff.Begin();
  // From an earlier version.
  ASSERT_TRUE(handoff.Assign(Task::kTrain, 8, 12).ok());
  EXPECT_EQ(handoff.trained(), 2U);
  EXPECT_EQ(handoff.Next(absl::ZeroDuration()), Task::kTrain);
  handoff.Step();
  EXPECT_EQ(handoff.trained(), 3U);
  EXPECT_EQ(handoff.step(), 9U);
}

TEST(HandoffTest, WakeEndsAwaitDoneOnce) {
  Handoff handoff(/*finishes=*/false);
  handoff.Begin();
  EXPECT_EQ(handoff.Next(absl::ZeroDuration()), Task::kWait);
  ASSERT_TRUE(handoff.Assign(Task::kTrain, 0, 2).ok());
  EXPECT_EQ(handoff.Next(absl::ZeroDuration()), Task::kTrain);
  handoff.Wake();
  EXPECT_FALSE(*handoff.AwaitDone(absl::InfiniteDuration()));
  handoff.EndLoop();
  EXPECT_TRUE(handoff.loop_ended());
  EXPECT_EQ(handoff.Next(absl::ZeroDuration()), Task::kWait);
  EXPECT_TRUE(*handoff.AwaitDone(absl::InfiniteDuration()));
}

TEST(HandoffTest, InterruptEndsAWait) {
  Handoff handoff(/*finishes=*/false);
  handoff.Interrupt();
  EXPECT_EQ(handoff.Next(absl::InfiniteDuration()), Task::kWait);
}

}  // namespace
}  // namespace cadre
