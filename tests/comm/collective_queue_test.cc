#include "comm/collective_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "tests/comm/transport/ranks.h"

namespace cadre {
namespace {

Communicator Background(Transport& transport) {
  return Communicator(transport, AllRanks(transport.size()), Transport::kBackground);
}

TEST(CollectiveQueue, AllRanksUseOneOrder) {
  constexpr int kRanks = 4;
  constexpr uint64_t kCollectives = 60;
  const Transports group = MakeThreadTransports(kRanks, absl::Seconds(60));
  std::vector<std::vector<uint64_t>> ran(kRanks);
  OnRanks(kRanks, [&](int rank) {
    Communicator comm = Background(*group[rank]);
    CollectiveQueue queue(*group[rank]);
    std::vector<uint64_t> keys(kCollectives);
    std::iota(keys.begin(), keys.end(), 1);
    std::mt19937 random(rank);
    std::shuffle(keys.begin(), keys.end(), random);
    std::vector<float> sums(kCollectives + 1);
    for (const uint64_t key : keys) {
      queue.Post(key, key % 5, [&, key] {
        ran[rank].push_back(key);
        sums[key] = key * (rank + 1);
        return comm.AllReduceSum(std::span<float>(&sums[key], 1));
      });
      if (random() % 4 == 0) absl::SleepFor(absl::Microseconds(random() % 300));
    }
    EXPECT_TRUE(queue.WaitAll().ok());
    for (uint64_t key = 1; key <= kCollectives; ++key) EXPECT_EQ(sums[key], key * (1 + 2 + 3 + 4));
  });
  for (int rank = 1; rank < kRanks; ++rank) EXPECT_EQ(ran[rank], ran[0]);
}

TEST(CollectiveQueue, HighestPriorityFirst) {
  const Transports group = MakeThreadTransports(1, absl::Seconds(60));
  CollectiveQueue queue(*group[0]);
  absl::Notification started;
  absl::Notification proceed;
  queue.Post(100, 0, [&] {
    started.Notify();
    proceed.WaitForNotification();
    return absl::OkStatus();
  });
  started.WaitForNotification();
  std::vector<uint64_t> ran;
  const auto work = [&ran](uint64_t key) {
    return [&ran, key] {
      ran.push_back(key);
      return absl::OkStatus();
    };
  };
  queue.Post(1, 9, work(1));
  queue.Post(2, 3, work(2));
  queue.Post(3, 9, work(3));
  queue.Post(4, -1, work(4));
  proceed.Notify();
  ASSERT_TRUE(queue.WaitAll().ok());
  EXPECT_EQ(ran, (std::vector<uint64_t>{4, 2, 1, 3}));
}

TEST(CollectiveQueue, ForgetReleasesWait) {
  const Transports group = MakeThreadTransports(1, absl::Seconds(60));
  CollectiveQueue queue(*group[0]);
  queue.Expect(2);
  queue.Expect(3);
  bool second = false;
  queue.Post(1, 0, [&] {
    queue.Post(2, 0, [&] {
      second = true;
      return absl::OkStatus();
    });
    queue.Forget(3);
    return absl::OkStatus();
  });
  EXPECT_TRUE(queue.Wait(2).ok());
  EXPECT_TRUE(second);
  EXPECT_TRUE(queue.Wait(3).ok());
  EXPECT_TRUE(queue.Wait(77).ok()) << "neither posted nor expected";
  EXPECT_TRUE(queue.WaitAll().ok());
}

TEST(CollectiveQueue, IdleQueueDoesNotTimeOut) {
  const Transports group = MakeThreadTransports(2, absl::Milliseconds(200));
  OnRanks(2, [&](int rank) {
    Communicator comm = Background(*group[rank]);
    CollectiveQueue queue(*group[rank]);
    for (uint64_t key = 0; key < 2; ++key) {
      queue.Post(key, 0, [&comm] { return comm.Barrier(); });
      EXPECT_TRUE(queue.WaitAll().ok());
      absl::SleepFor(absl::Milliseconds(500));
    }
  });
}

TEST(CollectiveQueue, ErrorEndsAllRanks) {
  const Transports group = MakeThreadTransports(3, absl::Seconds(60));
  OnRanks(3, [&](int rank) {
    Communicator comm = Background(*group[rank]);
    CollectiveQueue queue(*group[rank]);
    queue.Post(1, 0, [rank] {
      return rank == 1 ? absl::ResourceExhaustedError("out of memory") : absl::OkStatus();
    });
    queue.Post(2, 1, [&comm] { return comm.Barrier(); });
    queue.Expect(3);
    const absl::Status status = queue.WaitAll();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(std::string(status.message()).find("out of memory"), std::string::npos) << status;
    EXPECT_EQ(queue.Wait(3), status);
    EXPECT_FALSE(group[rank]->status().ok());
    queue.Post(4, 0, [] {
      ADD_FAILURE() << "ran after an error";
      return absl::OkStatus();
    });
    EXPECT_EQ(queue.WaitAll(), status);
  });
}

TEST(CollectiveQueue, UnfinishedWorkAbortsPeers) {
  const Transports group = MakeThreadTransports(2, absl::Seconds(60));
  OnRanks(2, [&](int rank) {
    Communicator comm = Background(*group[rank]);
    CollectiveQueue queue(*group[rank]);
    if (rank == 0) {
      // Its peer never posts this one.
      queue.Post(1, 0, [&comm] { return comm.Barrier(); });
      EXPECT_FALSE(queue.WaitAll().ok());
    } else {
      queue.Post(2, 0, [] { return absl::OkStatus(); });
    }
  });
}

// A rank whose own thread has failed does not post the work that it expected.
TEST(CollectiveQueue, FailReleasesWait) {
  const Transports group = MakeThreadTransports(2, absl::Seconds(60));
  CollectiveQueue queue(*group[0]);
  queue.Expect(7);
  absl::Status waited;
  std::thread waiter([&] { waited = queue.WaitAll(); });
  queue.Fail(absl::UnavailableError("the peer of a move is lost"));
  waiter.join();
  EXPECT_EQ(waited, absl::UnavailableError("the peer of a move is lost"));
  EXPECT_EQ(queue.Wait(7), waited);
  // The peer fails in its next call at the latest.
  EXPECT_FALSE(Background(*group[1]).Barrier().ok());
}

// Running work may still use the caller's memory.
TEST(CollectiveQueue, WaitAllAfterFailureWaitsForRunningWork) {
  const Transports group = MakeThreadTransports(1, absl::Seconds(60));
  CollectiveQueue queue(*group[0]);
  absl::Notification running;
  absl::Notification proceed;
  bool ended = false;
  queue.Post(1, 0, [&] {
    running.Notify();
    proceed.WaitForNotification();
    ended = true;
    return absl::OkStatus();
  });
  running.WaitForNotification();
  queue.Fail(absl::CancelledError("released"));
  std::thread later([&] { proceed.Notify(); });
  EXPECT_FALSE(queue.WaitAll().ok());
  EXPECT_TRUE(ended);
  later.join();
}

}  // namespace
}  // namespace cadre
