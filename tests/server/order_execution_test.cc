#include "server/order_execution.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

// The message may contain keys, which must not reach a log.
TEST(OrderExecutionTest, BodyNameDoesNotShowValues) {
  v1::CoordinatorMessage message;
  EXPECT_EQ(BodyName(message), "nothing");
  message.mutable_assignment()->set_key("secret");
  EXPECT_EQ(BodyName(message), "assignment");
  (*message.mutable_open_run()->mutable_keys())[0] = "secret";
  EXPECT_EQ(BodyName(message), "open_run");
}

}  // namespace
}  // namespace cadre
