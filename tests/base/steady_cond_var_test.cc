#include "base/steady_cond_var.h"

#include <gtest/gtest.h>

#include <thread>

namespace cadre {
namespace {

TEST(SteadyCondVarTest, ReturnsAtTheTimeout) {
  absl::Mutex mutex;
  SteadyCondVar changed;
  absl::MutexLock lock(&mutex);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_FALSE(changed.WaitFor(mutex, absl::Milliseconds(30), [] { return false; }));
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(30));
  EXPECT_FALSE(changed.WaitFor(mutex, -absl::InfiniteDuration(), [] { return false; }));
}

TEST(SteadyCondVarTest, NotificationEndsTheWait) {
  absl::Mutex mutex;
  SteadyCondVar changed;
  bool done = false;
  std::thread other([&] {
    absl::MutexLock lock(&mutex);
    done = true;
    changed.NotifyAll();
  });
  {
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(changed.WaitFor(mutex, absl::InfiniteDuration(), [&] { return done; }));
  }
  other.join();
}

}  // namespace
}  // namespace cadre
