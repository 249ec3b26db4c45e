#include "member/cancellation.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

TEST(Cancellation, KeepsTheFirstReason) {
  Cancellation cancellation;
  EXPECT_TRUE(cancellation.status().ok());
  cancellation.Cancel(absl::CancelledError("first"));
  cancellation.Cancel(absl::CancelledError("second"));
  EXPECT_EQ(cancellation.status().message(), "first");
}

TEST(Cancellation, HandlersRunOnceUntilUnregistered) {
  Cancellation cancellation;
  int kept = 0;
  int gone = 0;
  auto registration = cancellation.OnCancel([&](const absl::Status&) { ++kept; });
  {
    auto short_lived = cancellation.OnCancel([&](const absl::Status&) { ++gone; });
  }
  cancellation.Cancel(absl::CancelledError("now"));
  cancellation.Cancel(absl::CancelledError("again"));
  EXPECT_EQ(kept, 1);
  EXPECT_EQ(gone, 0);
}

TEST(Cancellation, LateHandlerRunsImmediately) {
  Cancellation cancellation;
  cancellation.Cancel(absl::CancelledError("before"));
  absl::Status seen;
  auto registration = cancellation.OnCancel([&](const absl::Status& reason) { seen = reason; });
  EXPECT_EQ(seen.message(), "before");
}

}  // namespace
}  // namespace cadre
