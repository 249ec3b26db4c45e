#include "server/order_queue.h"

#include <gtest/gtest.h>

#include <string>

namespace cadre {
namespace {

constexpr absl::Duration kWait = absl::Seconds(2);
constexpr absl::Duration kMoment = absl::Milliseconds(1);
const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

v1::CoordinatorMessage Open(const std::string& run) {
  v1::CoordinatorMessage order;
  order.mutable_open_run()->set_run(run);
  return order;
}

v1::CoordinatorMessage Apply(const std::string& run, uint32_t round) {
  v1::CoordinatorMessage order;
  order.mutable_apply()->set_run(run);
  order.mutable_apply()->set_round(round);
  return order;
}

v1::CoordinatorMessage Close(const std::string& run) {
  v1::CoordinatorMessage order;
  order.mutable_close_run()->set_run(run);
  return order;
}

// Makes the next order fail.
void FailNext(OrderQueue& queue, absl::Time now) { queue.Failed(queue.Take(now).value(), now); }

TEST(OrderQueue, ReturnsOrdersAsTheyArrive) {
  OrderQueue queue(kWait, 10);
  EXPECT_EQ(queue.NextTime(), absl::InfiniteFuture());
  EXPECT_TRUE(queue.Add(Open("a")));
  EXPECT_TRUE(queue.Add(Apply("a", 1)));
  EXPECT_EQ(queue.NextTime(), absl::InfinitePast());
  EXPECT_TRUE(queue.Take(kStart)->has_open_run());
  EXPECT_TRUE(queue.Take(kStart)->has_apply());
  EXPECT_FALSE(queue.Take(kStart).has_value());
}

TEST(OrderQueue, DropsOrdersBeyondItsLimit) {
  OrderQueue queue(kWait, 1);
  EXPECT_TRUE(queue.Add(Open("a")));
  EXPECT_FALSE(queue.Add(Open("b")));
  queue.Take(kStart);
  EXPECT_TRUE(queue.Add(Open("b")));
}

TEST(OrderQueue, RetriesDespiteOtherOrders) {
  OrderQueue queue(kWait, 10);
  queue.Add(Apply("large", 1));
  FailNext(queue, kStart);
  int retries = 0;
  for (absl::Time now = kStart; now < kStart + 3 * kWait; now += kWait / 4) {
    queue.Add(Apply("small", 1));
    const v1::CoordinatorMessage order = queue.Take(now).value();
    if (order.apply().run() != "large") continue;
    ++retries;
    queue.Failed(order, now);
  }
  EXPECT_EQ(retries, 2);
}

TEST(OrderQueue, NewOrdersAreTakenDespiteSlowRetries) {
  OrderQueue queue(kWait, 10);
  queue.Failed(Apply("a", 1), kStart);
  queue.Failed(Apply("b", 1), kStart);
  ASSERT_TRUE(queue.Add(Close("c")));
  // Each attempt takes longer than the wait, so that one is always due.
  const absl::Time later = kStart + 2 * kWait;
  queue.Failed(queue.Take(later).value(), later + 2 * kWait);
  EXPECT_TRUE(queue.Take(later + 2 * kWait)->has_close_run());
  EXPECT_TRUE(queue.Take(later + 2 * kWait)->has_apply());
}

TEST(OrderQueue, WaitsBeforeARetry) {
  OrderQueue queue(kWait, 10);
  queue.Add(Open("a"));
  FailNext(queue, kStart);
  EXPECT_EQ(queue.NextTime(), kStart + kWait);
  EXPECT_FALSE(queue.Take(kStart + kWait - kMoment).has_value());
  EXPECT_TRUE(queue.Take(kStart + kWait).has_value());
  EXPECT_FALSE(queue.Take(kStart + 2 * kWait).has_value());
}

TEST(OrderQueue, NewerOrderReplacesAFailedOne) {
  OrderQueue queue(kWait, 10);
  queue.Add(Apply("a", 1));
  queue.Add(Apply("b", 1));
  FailNext(queue, kStart);
  FailNext(queue, kStart);
  queue.Add(Apply("a", 2));
  EXPECT_EQ(queue.Take(kStart)->apply().round(), 2u);
  EXPECT_EQ(queue.Take(kStart + kWait)->apply().run(), "b");
  EXPECT_FALSE(queue.Take(kStart + kWait).has_value());
}

TEST(OrderQueue, NewCoordinatorDropsOrdersOfEarlierOnes) {
  OrderQueue queue(kWait, 10);
  queue.Begin(1);
  queue.Add(Open("a"));
  v1::CoordinatorMessage apply = Apply("b", 1);
  apply.set_epoch(1);
  queue.Failed(apply, kStart);
  queue.Begin(1);
  EXPECT_EQ(queue.NextTime(), absl::InfinitePast()) << "a reconnect keeps the orders";
  queue.Begin(2);
  queue.Failed(apply, kStart);
  EXPECT_EQ(queue.NextTime(), absl::InfiniteFuture());
}

TEST(OrderQueue, EndOfTheRunRemovesFailedOrders) {
  OrderQueue queue(kWait, 10);
  queue.Add(Open("a"));
  queue.Add(Apply("a", 1));
  FailNext(queue, kStart);
  FailNext(queue, kStart);
  queue.Add(Close("a"));
  EXPECT_TRUE(queue.Take(kStart)->has_close_run());
  EXPECT_EQ(queue.NextTime(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace cadre
