#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"

namespace cadre {
namespace {

TEST(BoundedQueueTest, FirstInFirstOut) {
  BoundedQueue<int> queue(3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.Push(i));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.Pop(), i);
}

TEST(BoundedQueueTest, TryPushRefusesWhenFull) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_TRUE(queue.TryPush(4));
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_EQ(queue.Pop(), 4);
}

TEST(BoundedQueueTest, PopBeforeDeadline) {
  BoundedQueue<int> queue(1);
  const absl::Time deadline = absl::Now() + absl::Milliseconds(20);
  EXPECT_EQ(queue.PopBefore(deadline), std::nullopt);
  EXPECT_GE(absl::Now(), deadline);
  // If the deadline has passed, PopBefore still returns an item that is in the queue.
  EXPECT_TRUE(queue.Push(1));
  EXPECT_EQ(queue.PopBefore(absl::InfinitePast()), 1);
  EXPECT_EQ(queue.PopBefore(absl::InfinitePast()), std::nullopt);
}

TEST(BoundedQueueTest, CloseDrainsItems) {
  BoundedQueue<int> queue(3);
  EXPECT_TRUE(queue.Push(1));
  EXPECT_TRUE(queue.Push(2));
  EXPECT_FALSE(queue.closed());
  queue.Close();
  queue.Close();
  EXPECT_TRUE(queue.closed());
  EXPECT_FALSE(queue.Push(3));
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

// The results of these three tests do not depend on whether the thread is already blocked.
TEST(BoundedQueueTest, CloseEndsBlockedPush) {
  BoundedQueue<int> queue(1);
  ASSERT_TRUE(queue.Push(1));
  bool pushed = true;
  std::thread pusher([&] { pushed = queue.Push(2); });
  queue.Close();
  pusher.join();
  EXPECT_FALSE(pushed);
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueueTest, CloseEndsBlockedPop) {
  BoundedQueue<int> queue(1);
  std::optional<int> popped = 5;
  std::thread popper([&] { popped = queue.Pop(); });
  queue.Close();
  popper.join();
  EXPECT_EQ(popped, std::nullopt);
}

TEST(BoundedQueueTest, PushBlocksWhileFull) {
  BoundedQueue<int> queue(1);
  ASSERT_TRUE(queue.Push(1));
  std::thread pusher([&] { EXPECT_TRUE(queue.Push(2)); });
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), 2);
  pusher.join();
}

TEST(BoundedQueueTest, MoveOnlyItems) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.Push(std::make_unique<int>(7)));
  EXPECT_EQ(**queue.Pop(), 7);
}

TEST(BoundedQueueTest, ThreadsLoseNothing) {
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  BoundedQueue<int> queue(3);
  std::vector<std::vector<int>> popped(kThreads);
  std::vector<std::thread> producers, consumers;
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&queue, t] {
      for (int i = 0; i < kEach; ++i) ASSERT_TRUE(queue.Push(t * kEach + i));
    });
    consumers.emplace_back([&queue, &mine = popped[t]] {
      while (const std::optional<int> item = queue.Pop()) mine.push_back(*item);
    });
  }
  for (std::thread& producer : producers) producer.join();
  queue.Close();
  for (std::thread& consumer : consumers) consumer.join();

  std::vector<int> times(kThreads * kEach, 0);
  for (const std::vector<int>& mine : popped) {
    // Each consumer sees each producer's items in order.
    std::vector<int> last(kThreads, -1);
    for (const int item : mine) {
      ++times[item];
      int& before = last[item / kEach];
      EXPECT_LT(before, item);
      before = item;
    }
  }
  EXPECT_EQ(times, std::vector<int>(kThreads * kEach, 1));
}

}  // namespace
}  // namespace cadre
