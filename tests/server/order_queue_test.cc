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

void Fail(OrderQueue& queue, const v1::CoordinatorMessage& order, absl::Time now,
          const std::string& reason = "the disk is full") {
  EXPECT_FALSE(queue.Finish(order, {.repeat = absl::UnavailableError(reason)}, now).has_value());
  queue.Release(order);
}

// Makes the next order fail.
void FailNext(OrderQueue& queue, absl::Time now) { Fail(queue, queue.Take(now).value(), now); }

// The order succeeds, with an answer.
void Succeed(OrderQueue& queue, const v1::CoordinatorMessage& order, absl::Time now) {
  v1::MemberMessage answer;
  answer.mutable_applied()->set_round(7);
  const auto sent = queue.Finish(order, {.answer = answer}, now);
  queue.Release(order);
  ASSERT_TRUE(sent.has_value());
  EXPECT_EQ(sent->applied().round(), 7u);
}

v1::CoordinatorMessage Copy(const std::string& run) {
  v1::CoordinatorMessage order;
  order.mutable_copy_shard()->set_run(run);
  return order;
}

v1::CoordinatorMessage Fence(const std::string& run, uint32_t group, uint32_t generation) {
  v1::CoordinatorMessage order;
  order.mutable_fence()->set_run(run);
  order.mutable_fence()->set_group(group);
  order.mutable_fence()->set_generation(generation);
  return order;
}

TEST(OrderQueue, ReturnsOrdersAsTheyArrive) {
  OrderQueue queue({.retry_wait = kWait, .max_new = 10});
  EXPECT_EQ(queue.NextTime(), absl::InfiniteFuture());
  EXPECT_TRUE(queue.Add(Open("a"), kStart));
  EXPECT_TRUE(queue.Add(Apply("a", 1), kStart));
  EXPECT_EQ(queue.NextTime(), absl::InfinitePast());
  const v1::CoordinatorMessage open = queue.Take(kStart).value();
  EXPECT_TRUE(open.has_open_run());
  EXPECT_EQ(queue.NextTime(), absl::InfiniteFuture()) << "one order of a run at a time";
  EXPECT_FALSE(queue.Take(kStart).has_value());
  EXPECT_TRUE(queue.Finish(open, {.answer = v1::MemberMessage()}, kStart).has_value());
  EXPECT_FALSE(queue.Take(kStart).has_value()) << "the answer is not sent yet";
  queue.Release(open);
  EXPECT_TRUE(queue.Take(kStart)->has_apply());
  EXPECT_FALSE(queue.Take(kStart).has_value());
}

// Newer orders replace those of the same kind for the same run, group or shard only.
TEST(OrderQueue, FailedOrdersOfAllKindsAreTriedAgain) {
  OrderQueue queue({.retry_wait = kWait});
  int failed = 0;
  for (const std::string run : {"a", "b"}) {
    v1::CoordinatorMessage report, publish, remove, other_shard = Copy(run);
    report.mutable_report_run()->set_run(run);
    publish.mutable_publish()->set_run(run);
    remove.mutable_delete_run()->set_run(run);
    other_shard.mutable_copy_shard()->set_shard(1);
    for (const v1::CoordinatorMessage& order :
         {Open(run), Apply(run, 1), Fence(run, 0, 1), Fence(run, 1, 1), report, publish, remove,
          Copy(run), other_shard, Close(run)}) {
      EXPECT_EQ(OrderQueue::RunOf(order), run) << BodyName(order);
      Fail(queue, order, kStart);
      ++failed;
    }
  }
  int repeated = 0;
  while (const auto order = queue.Take(kStart + kWait)) {
    Succeed(queue, *order, kStart + kWait);
    ++repeated;
  }
  EXPECT_EQ(repeated, failed);
}

TEST(OrderQueue, FailedOrderWaitsForTheOtherOrdersOfItsRun) {
  OrderQueue queue({.retry_wait = kWait});
  Fail(queue, Apply("a", 1), kStart);
  Fail(queue, Fence("a", 0, 1), kStart);
  const auto first = queue.Take(kStart + kWait);
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(queue.Take(kStart + kWait).has_value());
  Succeed(queue, *first, kStart + kWait);
  EXPECT_TRUE(queue.Take(kStart + kWait).has_value());
}

TEST(OrderQueue, RunThatHangsStopsNoOtherRun) {
  OrderQueue queue({.retry_wait = kWait, .max_taken = 4});
  for (const char* const run : {"a", "a", "b", "a"}) queue.Add(Apply(run, 1), kStart);
  EXPECT_EQ(queue.Take(kStart)->apply().run(), "a");
  const v1::CoordinatorMessage other = queue.Take(kStart).value();
  EXPECT_EQ(other.apply().run(), "b");
  EXPECT_FALSE(queue.Take(kStart).has_value());
  // A failed order is tried again as well.
  Fail(queue, other, kStart);
  EXPECT_EQ(queue.NextTime(), kStart + kWait);
  EXPECT_EQ(queue.Take(kStart + kWait)->apply().run(), "b");
}

// The coordinator ends a run whose shard cannot be created for long.
TEST(OrderQueue, ShardWhoseCreationWaitsForAThreadHasNotFailed) {
  OrderQueue queue({.retry_wait = kWait, .max_taken = 2});
  for (const char* const run : {"a", "b"}) queue.Add(Apply(run, 1), kStart);
  v1::CoordinatorMessage open;
  open.mutable_open_run()->set_run("c");
  queue.Add(open, kStart);
  ASSERT_TRUE(queue.Take(kStart).has_value());
  ASSERT_TRUE(queue.Take(kStart).has_value());
  for (const v1::DelayedOrder& delayed : queue.Delayed(kStart + absl::Hours(1))) {
    EXPECT_EQ(delayed.order(), "apply");
  }
}

TEST(OrderQueue, NamesTheOrderThatOccupiesAThread) {
  OrderQueue queue({.retry_wait = kWait, .max_taken = 2});
  for (const char* const run : {"a", "b", "c"}) queue.Add(Apply(run, 1), kStart);
  ASSERT_TRUE(queue.Take(kStart).has_value());
  ASSERT_TRUE(queue.Take(kStart + kMoment).has_value());
  EXPECT_FALSE(queue.Take(kStart + kMoment).has_value()) << "all threads are busy";
  EXPECT_EQ(queue.NextTime(), absl::InfiniteFuture());
  const auto late = queue.Delayed(kStart + absl::Seconds(41));
  ASSERT_EQ(late.size(), 3U);
  EXPECT_EQ(late[2].run(), "c");
  EXPECT_EQ(late[2].order(), "apply");
  EXPECT_EQ(late[2].reason(),
            "it waits, because all threads for orders are busy (2), the longest with apply of a "
            "for 41s");
  Succeed(queue, Apply("a", 1), kStart + absl::Seconds(40));
  EXPECT_EQ(queue.Take(kStart + absl::Seconds(40))->apply().run(), "c");
}

TEST(OrderQueue, NamesTheOrdersThatAreCarriedOut) {
  OrderQueue queue({.retry_wait = kWait});
  EXPECT_EQ(queue.TakenText(kStart), "");
  for (const char* const run : {"a", "b"}) queue.Add(Apply(run, 1), kStart);
  ASSERT_TRUE(queue.Take(kStart).has_value());
  ASSERT_TRUE(queue.Take(kStart + absl::Seconds(2)).has_value());
  EXPECT_EQ(queue.TakenText(kStart + absl::Seconds(4)), "apply of a for 4s, apply of b for 2s");
}

// The coordinator repeats the order of the round when the shard is restored.
TEST(OrderQueue, ShardThatBecomesHollowDropsAFailedApply) {
  OrderQueue queue({.retry_wait = kWait});
  queue.Add(Apply("a", 1), kStart);
  queue.Add(Apply("b", 1), kStart);
  FailNext(queue, kStart);
  FailNext(queue, kStart);
  queue.Add(Open("a"), kStart);
  queue.Release(*queue.Take(kStart));
  v1::CoordinatorMessage hollow = Open("b");
  hollow.mutable_open_run()->set_hollow(0);
  queue.Add(hollow, kStart);
  queue.Release(*queue.Take(kStart));
  EXPECT_EQ(queue.Take(kStart + kWait)->apply().run(), "a") << "another OpenRun keeps it";
  EXPECT_FALSE(queue.Take(kStart + kWait).has_value());
}

TEST(OrderQueue, ShardThatIsRestoredFromACopyDropsAFailedApply) {
  OrderQueue queue({.retry_wait = kWait});
  queue.Add(Apply("a", 1), kStart);
  FailNext(queue, kStart);
  queue.Add(Copy("a"), kStart);
  const v1::CoordinatorMessage copy = queue.Take(kStart).value();
  v1::MemberMessage restored;
  restored.mutable_applied()->set_from_copy(true);
  restored.mutable_applied()->set_error("the copy is damaged");
  queue.Finish(copy, {.answer = restored}, kStart);
  queue.Release(copy);
  EXPECT_EQ(queue.NextTime(), kStart + kWait) << "the shard is not restored";
  queue.Add(copy, kStart);
  ASSERT_TRUE(queue.Take(kStart)->has_copy_shard());
  restored.mutable_applied()->clear_error();
  queue.Finish(copy, {.answer = restored}, kStart);
  queue.Release(copy);
  EXPECT_EQ(queue.NextTime(), absl::InfiniteFuture());
}

TEST(OrderQueue, CopyThatIsDiscardedWhileItIsMadeIsNotAnswered) {
  OrderQueue queue({.retry_wait = kWait});
  v1::CoordinatorMessage hollow = Open("a");
  hollow.mutable_open_run()->set_hollow(2);
  v1::MemberMessage copied;
  copied.mutable_applied()->set_run("a");
  copied.mutable_applied()->set_from_copy(true);

  for (const OrderResult& result : {OrderResult{.answer = copied},
                                    OrderResult{.repeat = absl::UnavailableError("unreachable")}}) {
    queue.Add(Copy("a"), kStart);
    const v1::CoordinatorMessage copy = queue.Take(kStart).value();
    queue.Add(hollow, kStart);
    const v1::CoordinatorMessage open = queue.Take(kStart).value();
    Succeed(queue, open, kStart);
    EXPECT_FALSE(queue.Finish(copy, result, kStart).has_value());
    queue.Release(copy);
    EXPECT_EQ(queue.NextTime(), absl::InfiniteFuture());
    EXPECT_TRUE(queue.Delayed(kStart + kWait).empty());
  }

  // The coordinator receives the answer about the copy first.
  queue.Add(Copy("a"), kStart);
  const v1::CoordinatorMessage copy = queue.Take(kStart).value();
  EXPECT_TRUE(queue.Finish(copy, {.answer = copied}, kStart).has_value());
  queue.Add(hollow, kStart);
  queue.Add(Close("a"), kStart);
  EXPECT_FALSE(queue.Take(kStart).has_value()) << "nor is the order after it carried out";
  EXPECT_EQ(queue.NextTime(), absl::InfiniteFuture());
  queue.Release(copy);
  EXPECT_TRUE(queue.Take(kStart).value().has_open_run());
}

TEST(OrderQueue, CopyIsNotMadeWhileItsShardBecomesHollow) {
  OrderQueue queue({.retry_wait = kWait});
  v1::CoordinatorMessage hollow = Open("a");
  hollow.mutable_open_run()->set_hollow(2);
  queue.Add(hollow, kStart);
  const v1::CoordinatorMessage open = queue.Take(kStart).value();
  queue.Add(Copy("a"), kStart);
  EXPECT_FALSE(queue.Take(kStart).has_value());
  EXPECT_EQ(queue.NextTime(), absl::InfiniteFuture());
  Succeed(queue, open, kStart);
  EXPECT_TRUE(queue.Take(kStart).value().has_copy_shard());
}

TEST(OrderQueue, CopyOfAnotherShardIsAnsweredAlthoughTheOwnBecomesHollow) {
  OrderQueue queue({.retry_wait = kWait});
  queue.Add(Copy("a"), kStart);
  v1::CoordinatorMessage hollow = Open("a");
  hollow.mutable_open_run()->set_shard(1);
  hollow.mutable_open_run()->set_hollow(2);
  const v1::CoordinatorMessage copy = queue.Take(kStart).value();
  queue.Add(hollow, kStart);
  EXPECT_TRUE(queue.Take(kStart).has_value());
  v1::MemberMessage copied;
  copied.mutable_shard_copied()->set_run("a");
  EXPECT_TRUE(queue.Finish(copy, {.answer = copied}, kStart).has_value());
}

// An order that waits is delayed by the other orders of its run, which are listed, or by those that
// occupy all threads.
TEST(OrderQueue, OrderThatWaitsForAThreadIsReportedAfterFiveSeconds) {
  OrderQueue queue({.retry_wait = kWait, .max_taken = 2});
  const absl::Time later = kStart + absl::Seconds(1);
  for (const char* const run : {"a", "b", "a"}) queue.Add(Apply(run, 1), kStart);
  queue.Add(Apply("c", 1), later);
  EXPECT_TRUE(queue.Delayed(kStart + absl::Minutes(1)).empty()) << "there are threads";
  queue.Take(kStart);
  queue.Take(kStart);
  EXPECT_EQ(queue.Delayed(later + absl::Seconds(5) - kMoment).size(), 2U);
  const auto late = queue.Delayed(later + absl::Seconds(5));
  ASSERT_EQ(late.size(), 3U);
  EXPECT_EQ(late[2].run(), "c");
}

TEST(OrderQueue, ReportsAtMost64Orders) {
  OrderQueue queue({.retry_wait = kWait});
  for (int run = 0; run < 64; ++run) Fail(queue, Apply(std::to_string(run), 1), kStart);
  EXPECT_EQ(queue.Delayed(kStart).size(), 64U);
  for (int run = 64; run < 200; ++run) Fail(queue, Apply(std::to_string(run), 1), kStart);
  EXPECT_EQ(queue.Delayed(kStart).size(), 64U);
}

TEST(OrderQueue, CopiesTakeHalfOfTheThreads) {
  OrderQueue queue({.retry_wait = kWait, .max_taken = 4});
  for (const char* const run : {"a", "b", "c"}) queue.Add(Copy(run), kStart);
  queue.Add(Apply("a", 1), kStart);
  EXPECT_EQ(queue.Take(kStart)->copy_shard().run(), "a");
  EXPECT_EQ(queue.Take(kStart)->copy_shard().run(), "b");
  EXPECT_TRUE(queue.Take(kStart)->has_apply()) << "beside the copy for the same run";
  EXPECT_FALSE(queue.Take(kStart).has_value());
}

TEST(OrderQueue, FencesOfARunThatHangsDoNotFillIt) {
  OrderQueue queue({.retry_wait = kWait, .max_new = 2});
  for (uint32_t generation = 1; generation < 10; ++generation) {
    EXPECT_TRUE(queue.Add(Fence("a", 0, generation), kStart));
  }
  EXPECT_TRUE(queue.Add(Fence("a", 1, 10), kStart));
  EXPECT_EQ(queue.Take(kStart)->fence().generation(), 9U);
}

TEST(OrderQueue, DropsOrdersBeyondItsLimit) {
  OrderQueue queue({.retry_wait = kWait, .max_new = 1});
  EXPECT_TRUE(queue.Add(Open("a"), kStart));
  EXPECT_FALSE(queue.Add(Open("b"), kStart));
  queue.Take(kStart);
  EXPECT_TRUE(queue.Add(Open("b"), kStart));
}

TEST(OrderQueue, RetriesDespiteOtherOrders) {
  OrderQueue queue({.retry_wait = kWait, .max_new = 10});
  queue.Add(Apply("large", 1), kStart);
  FailNext(queue, kStart);
  int retries = 0;
  for (absl::Time now = kStart; now < kStart + 3 * kWait; now += kWait / 4) {
    queue.Add(Apply("small", 1), kStart);
    const v1::CoordinatorMessage order = queue.Take(now).value();
    if (order.apply().run() != "large") {
      Succeed(queue, order, now);
      continue;
    }
    ++retries;
    Fail(queue, order, now);
  }
  EXPECT_EQ(retries, 2);
}

TEST(OrderQueue, NewOrdersAreTakenDespiteSlowRetries) {
  OrderQueue queue({.retry_wait = kWait, .max_new = 10});
  Fail(queue, Apply("a", 1), kStart);
  Fail(queue, Apply("b", 1), kStart);
  ASSERT_TRUE(queue.Add(Close("c"), kStart));
  // Each attempt takes longer than the wait, so that one is always due.
  const absl::Time later = kStart + 2 * kWait;
  Fail(queue, queue.Take(later).value(), later + 2 * kWait);
  EXPECT_TRUE(queue.Take(later + 2 * kWait)->has_close_run());
  EXPECT_TRUE(queue.Take(later + 2 * kWait)->has_apply());
}

TEST(OrderQueue, WaitsBeforeARetry) {
  OrderQueue queue({.retry_wait = kWait, .max_new = 10});
  queue.Add(Open("a"), kStart);
  FailNext(queue, kStart);
  EXPECT_EQ(queue.NextTime(), kStart + kWait);
  EXPECT_FALSE(queue.Take(kStart + kWait - kMoment).has_value());
  EXPECT_TRUE(queue.Take(kStart + kWait).has_value());
  EXPECT_FALSE(queue.Take(kStart + 2 * kWait).has_value());
}

TEST(OrderQueue, NewerOrderReplacesAFailedOne) {
  OrderQueue queue({.retry_wait = kWait, .max_new = 10});
  queue.Add(Apply("a", 1), kStart);
  queue.Add(Apply("b", 1), kStart);
  FailNext(queue, kStart);
  FailNext(queue, kStart);
  queue.Add(Apply("a", 2), kStart);
  const v1::CoordinatorMessage newer = queue.Take(kStart).value();
  EXPECT_EQ(newer.apply().round(), 2u);
  Succeed(queue, newer, kStart);
  EXPECT_EQ(queue.Take(kStart + kWait)->apply().run(), "b");
  EXPECT_FALSE(queue.Take(kStart + kWait).has_value());
}

TEST(OrderQueue, NewCoordinatorDropsOrdersOfEarlierOnes) {
  OrderQueue queue({.retry_wait = kWait, .max_new = 10});
  queue.Begin(1);
  queue.Add(Open("a"), kStart);
  v1::CoordinatorMessage apply = Apply("b", 1);
  apply.set_epoch(1);
  Fail(queue, apply, kStart);
  queue.Begin(1);
  EXPECT_EQ(queue.NextTime(), absl::InfinitePast()) << "a reconnect keeps the orders";
  EXPECT_EQ(queue.Delayed(kStart).size(), 1U);
  queue.Begin(2);
  EXPECT_TRUE(queue.Delayed(kStart).empty());
  Fail(queue, apply, kStart);
  EXPECT_EQ(queue.NextTime(), absl::InfiniteFuture());
}

TEST(OrderQueue, EndOfTheRunRemovesFailedOrders) {
  v1::CoordinatorMessage remove;
  remove.mutable_delete_run()->set_run("a");
  for (const v1::CoordinatorMessage& last : {Close("a"), remove}) {
    OrderQueue queue({.retry_wait = kWait, .max_new = 10});
    queue.Add(Open("a"), kStart);
    queue.Add(Apply("a", 1), kStart);
    FailNext(queue, kStart);
    FailNext(queue, kStart);
    queue.Add(last, kStart);
    const v1::CoordinatorMessage taken = queue.Take(kStart).value();
    EXPECT_EQ(taken.body_case(), last.body_case());
    Succeed(queue, taken, kStart);
    EXPECT_EQ(queue.NextTime(), absl::InfiniteFuture());
  }
}

TEST(OrderQueue, ReportsFailedOrdersUntilTheySucceed) {
  OrderQueue queue({.retry_wait = kWait, .max_new = 10});
  queue.Add(Open("a"), kStart);
  FailNext(queue, kStart);
  const absl::Time later = kStart + kWait;
  const auto report = [&](absl::Time now) { return queue.Delayed(now); };
  ASSERT_EQ(report(later).size(), 1U);
  EXPECT_EQ(report(later)[0].run(), "a");
  EXPECT_EQ(report(later)[0].order(), "open_run");
  EXPECT_EQ(report(later)[0].reason(), "the disk is full");
  EXPECT_EQ(report(later)[0].seconds(), 2);
  const auto again = queue.Take(later);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(report(later).size(), 1U) << "while it is tried again";
  EXPECT_EQ(report(later + absl::Seconds(7)).size(), 1U);
  Fail(queue, *again, later, "the quota is exceeded");
  EXPECT_EQ(report(later + kWait)[0].reason(), "the quota is exceeded");
  EXPECT_EQ(report(later + kWait)[0].seconds(), 4);
  Succeed(queue, queue.Take(later + kWait).value(), later + kWait);
  EXPECT_TRUE(report(later + kWait).empty());
}

TEST(OrderQueue, ReportsAnOrderThatTakesLong) {
  OrderQueue queue({.retry_wait = kWait, .max_new = 10});
  queue.Add(Apply("a", 1), kStart);
  const v1::CoordinatorMessage apply = queue.Take(kStart).value();
  EXPECT_TRUE(queue.Delayed(kStart + absl::Seconds(5) - kMoment).empty());
  EXPECT_EQ(queue.Delayed(kStart + absl::Seconds(5)).size(), 1U);
  const auto slow = queue.Delayed(kStart + absl::Seconds(7));
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_EQ(slow[0].order(), "apply");
  EXPECT_EQ(slow[0].reason(), "");
  EXPECT_EQ(slow[0].seconds(), 7);
  Succeed(queue, apply, kStart + absl::Seconds(8));
  EXPECT_TRUE(queue.Delayed(kStart + absl::Seconds(8)).empty());
}

TEST(OrderQueue, FailureIsAsOldAsTheOrder) {
  OrderQueue queue({.retry_wait = kWait});
  queue.Add(Apply("a", 1), kStart);
  Fail(queue, queue.Take(kStart).value(), kStart + absl::Seconds(3));
  ASSERT_EQ(queue.Delayed(kStart + absl::Seconds(4)).size(), 1U);
  EXPECT_EQ(queue.Delayed(kStart + absl::Seconds(4))[0].seconds(), 4);
}

TEST(OrderQueue, DoesNotReportOrdersOfAClosedRun) {
  OrderQueue queue({.retry_wait = kWait, .max_new = 10});
  queue.Add(Open("a"), kStart);
  FailNext(queue, kStart);
  queue.Add(Close("a"), kStart);
  Succeed(queue, queue.Take(kStart).value(), kStart);
  EXPECT_TRUE(queue.Delayed(kStart + kWait).empty());
}

TEST(OrderQueue, GivesUpAnOrderThatFailsForLong) {
  OrderQueue queue({.retry_wait = kWait, .create_patience = 2 * kWait});
  queue.Add(Open("a"), kStart);
  v1::MemberMessage refusal;
  refusal.mutable_run_opened()->set_error("the disk is full");
  const OrderResult result{.repeat = absl::UnavailableError("the disk is full"),
                           .give_up = refusal};
  for (const absl::Time now : {kStart, kStart + kWait}) {
    const v1::CoordinatorMessage order = queue.Take(now).value();
    EXPECT_FALSE(queue.Finish(order, result, now).has_value());
    queue.Release(order);
  }
  const absl::Time last = kStart + 2 * kWait;
  const v1::CoordinatorMessage order = queue.Take(last).value();
  const auto answer = queue.Finish(order, result, last);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->run_opened().error(), "the disk is full");
  queue.Release(order);
  EXPECT_EQ(queue.NextTime(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace cadre
