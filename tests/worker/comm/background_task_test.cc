#include "worker/comm/background_task.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/synchronization/notification.h"

namespace cadre {
namespace {

TEST(BackgroundTask, RunsConcurrently) {
  BackgroundTask background_task;
  absl::Notification started, proceed;
  background_task.Start([&] {
    started.Notify();
    proceed.WaitForNotification();
    return absl::OkStatus();
  });
  // The task is running on another thread.
  started.WaitForNotification();
  proceed.Notify();
  EXPECT_TRUE(background_task.Wait().ok());
}

TEST(BackgroundTask, RunsTasksInSequence) {
  BackgroundTask background_task;
  int sum = 0;
  for (int i = 1; i <= 1000; ++i) {
    background_task.Start([&sum, i] {
      sum += i;
      return i % 2 == 0 ? absl::OkStatus() : absl::UnavailableError("odd");
    });
    EXPECT_EQ(background_task.Wait().ok(), i % 2 == 0);
  }
  EXPECT_EQ(sum, 500500);
}

TEST(BackgroundTask, DestructorWaitsForTask) {
  bool done = false;
  {
    BackgroundTask background_task;
    background_task.Start([&] {
      std::this_thread::yield();
      done = true;
      return absl::OkStatus();
    });
  }
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace cadre
