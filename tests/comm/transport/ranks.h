// Groups of ranks in one process, over any link, for the tests of this folder and those above.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "comm/transport/connect_group.h"
#include "comm/transport/thread_transport.h"

namespace cadre {

// 0, 1, ..., ranks - 1.
inline std::vector<int> AllRanks(int ranks) {
  std::vector<int> all(ranks);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Calls `body(rank)` on one thread per rank and waits for all.
inline void OnRanks(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

// The same; returns the results by rank.
inline std::vector<absl::Status> StatusesOnRanks(
    int ranks, const std::function<absl::Status(int rank)>& body) {
  std::vector<absl::Status> statuses(ranks);
  OnRanks(ranks, [&](int rank) { statuses[rank] = body(rank); });
  return statuses;
}

using Transports = std::vector<std::unique_ptr<Transport>>;

// One listener per rank.
struct Listeners {
  explicit Listeners(int ranks, const TcpListener::Options& options = {}) {
    for (int i = 0; i < ranks; ++i) {
      auto listener = TcpListener::Listen(options);
      EXPECT_TRUE(listener.ok()) << listener.status();
      each.push_back(*std::move(listener));
      peers.push_back(each.back()->address());
    }
  }
  TcpListener& At(int rank) { return *each[rank]; }
  int ranks() const { return std::ssize(each); }

  std::vector<std::unique_ptr<TcpListener>> each;
  // Their addresses.
  std::vector<std::string> peers;
};

// Connects ranks through listeners, as in different processes.
inline Transports MakeConnectedTransports(int ranks, absl::Duration timeout, bool shared_memory) {
  Listeners listeners(ranks);
  Transports transports(ranks);
  const GroupIdentity group{.protocol = 7, .run = "test", .generation = 1};
  OnRanks(ranks, [&](int rank) {
    auto transport = ConnectGroup(listeners.At(rank), group, rank, listeners.peers,
                                  {.deadline = absl::Now() + absl::Seconds(30),
                                   .timeout = timeout,
                                   .shared_memory = shared_memory});
    EXPECT_TRUE(transport.ok()) << transport.status();
    if (transport.ok()) transports[rank] = *std::move(transport);
  });
  return transports;
}

// The kind of link between the ranks of a test.
enum class Wire { kThreads, kSharedMemory, kTcp };

inline std::string WireName(Wire wire) {
  switch (wire) {
    case Wire::kThreads:
      return "Threads";
    case Wire::kSharedMemory:
      return "SharedMemory";
    case Wire::kTcp:
      return "Tcp";
  }
  return "Unknown";
}
inline void PrintTo(Wire wire, std::ostream* out) { *out << WireName(wire); }

inline Transports MakeTransports(Wire wire, int ranks, absl::Duration timeout = absl::Seconds(30)) {
  if (wire == Wire::kThreads) return MakeThreadTransports(ranks, timeout);
  return MakeConnectedTransports(ranks, timeout, wire == Wire::kSharedMemory);
}

}  // namespace cadre
