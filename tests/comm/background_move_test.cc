// Moves on the host, in a thread. Moves on devices are tested with the network.
#include "comm/background_move.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"

namespace cadre {
namespace {

class BackgroundMoveTest : public testing::Test {
 protected:
  const std::unique_ptr<Device> host_ = MakeHostDevice();
};

TEST_F(BackgroundMoveTest, RunsConcurrently) {
  const auto background = BackgroundMove::Make(*host_);
  absl::Notification started, proceed;
  background->Start([&] {
    started.Notify();
    proceed.WaitForNotification();
    return absl::OkStatus();
  });
  // The move is running on another thread.
  started.WaitForNotification();
  proceed.Notify();
  EXPECT_TRUE(background->Wait().ok());
}

TEST_F(BackgroundMoveTest, RunsMovesInSequence) {
  const auto background = BackgroundMove::Make(*host_);
  int sum = 0;
  for (int i = 1; i <= 1000; ++i) {
    background->Start([&sum, i] {
      sum += i;
      return i % 2 == 0 ? absl::OkStatus() : absl::UnavailableError("odd");
    });
    EXPECT_EQ(background->Wait().ok(), i % 2 == 0);
  }
  EXPECT_EQ(sum, 500500);
}

TEST_F(BackgroundMoveTest, DestructorWaitsForMove) {
  bool done = false;
  {
    const auto background = BackgroundMove::Make(*host_);
    background->Start([&] {
      std::this_thread::yield();
      done = true;
      return absl::OkStatus();
    });
  }
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace cadre
