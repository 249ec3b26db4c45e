#include "worker/comm/companion.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/synchronization/notification.h"

namespace cadre {
namespace {

TEST(Companion, WorksBesideItsCaller) {
  Companion companion;
  absl::Notification reached, go_on;
  companion.Start([&] {
    reached.Notify();
    go_on.WaitForNotification();
    return absl::OkStatus();
  });
  // Only another thread can have come here while this one goes on.
  reached.WaitForNotification();
  go_on.Notify();
  EXPECT_TRUE(companion.Wait().ok());
}

TEST(Companion, TakesOnePieceAfterAnother) {
  Companion companion;
  int sum = 0;
  for (int i = 1; i <= 1000; ++i) {
    companion.Start([&sum, i] {
      sum += i;
      return i % 2 == 0 ? absl::OkStatus() : absl::UnavailableError("odd");
    });
    EXPECT_EQ(companion.Wait().ok(), i % 2 == 0);
  }
  EXPECT_EQ(sum, 500500);
}

TEST(Companion, EndsWithWorkUnderWay) {
  bool done = false;
  {
    Companion companion;
    companion.Start([&] {
      std::this_thread::yield();
      done = true;
      return absl::OkStatus();
    });
  }
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace cadre
