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
void FailNext(OrderQueue& queue, absl::Time now) {
  queue.Failed(queue.Take(now).value(), "the disk is full", now);
}

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
    queue.Failed(order, "the disk is full", now);
  }
  EXPECT_EQ(retries, 2);
}

TEST(OrderQueue, NewOrdersAreTakenDespiteSlowRetries) {
  OrderQueue queue(kWait, 10);
  queue.Failed(Apply("a", 1), "the disk is full", kStart);
  queue.Failed(Apply("b", 1), "the disk is full", kStart);
  ASSERT_TRUE(queue.Add(Close("c")));
  // Each attempt takes longer than the wait, so that one is always due.
  const absl::Time later = kStart + 2 * kWait;
  queue.Failed(queue.Take(later).value(), "the disk is full", later + 2 * kWait);
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
  queue.Failed(apply, "the disk is full", kStart);
  queue.Begin(1);
  EXPECT_EQ(queue.NextTime(), absl::InfinitePast()) << "a reconnect keeps the orders";
  queue.Begin(2);
  queue.Failed(apply, "the disk is full", kStart);
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

TEST(OrderQueue, ReportsFailedOrdersUntilTheySucceed) {
  OrderQueue queue(kWait, 10);
  queue.Add(Open("a"));
  FailNext(queue, kStart);
  const absl::Time later = kStart + kWait;
  const auto report = [&](absl::Time now) { return queue.Delayed(now, absl::Seconds(5)); };
  ASSERT_EQ(report(later).size(), 1U);
  EXPECT_EQ(report(later)[0].run(), "a");
  EXPECT_EQ(report(later)[0].order(), "open_run");
  EXPECT_EQ(report(later)[0].reason(), "the disk is full");
  EXPECT_EQ(report(later)[0].seconds(), 2);
  const auto again = queue.Take(later);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(report(later).size(), 1U) << "while it is tried again";
  EXPECT_EQ(queue.taken_since(), kStart);
  queue.Failed(*again, "the quota is exceeded", later);
  EXPECT_EQ(report(later + kWait)[0].reason(), "the quota is exceeded");
  EXPECT_EQ(report(later + kWait)[0].seconds(), 4);
  ASSERT_TRUE(queue.Take(later + kWait).has_value());
  queue.Succeeded();
  EXPECT_TRUE(report(later + kWait).empty());
}

TEST(OrderQueue, ReportsAnOrderThatTakesLong) {
  OrderQueue queue(kWait, 10);
  queue.Add(Apply("a", 1));
  queue.Take(kStart);
  EXPECT_TRUE(queue.Delayed(kStart + absl::Seconds(4), absl::Seconds(5)).empty());
  const auto slow = queue.Delayed(kStart + absl::Seconds(7), absl::Seconds(5));
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_EQ(slow[0].order(), "apply");
  EXPECT_EQ(slow[0].reason(), "");
  EXPECT_EQ(slow[0].seconds(), 7);
  queue.Succeeded();
  EXPECT_TRUE(queue.Delayed(kStart + absl::Seconds(8), absl::Seconds(5)).empty());
}

TEST(OrderQueue, DoesNotReportOrdersOfAClosedRun) {
  OrderQueue queue(kWait, 10);
  queue.Add(Open("a"));
  FailNext(queue, kStart);
  queue.Add(Close("a"));
  queue.Take(kStart);
  queue.Succeeded();
  EXPECT_TRUE(queue.Delayed(kStart + kWait, absl::Seconds(5)).empty());
}

}  // namespace
}  // namespace cadre
