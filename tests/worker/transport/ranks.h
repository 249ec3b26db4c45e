// Groups of ranks in one process, over any transport, for the tests of this room and those above.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "worker/transport/connect_group.h"
#include "worker/transport/thread_transport.h"

namespace cadre {

// Calls `body(rank)` on a thread per rank and waits for all.
inline void OnRanks(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

using Transports = std::vector<std::unique_ptr<Transport>>;

// Ranks that find one another through listeners, as those of different processes do.
inline Transports MakeConnectedTransports(int ranks, absl::Duration timeout, bool shared_memory) {
  std::vector<std::unique_ptr<TcpListener>> listeners;
  std::vector<std::string> peers;
  for (int rank = 0; rank < ranks; ++rank) {
    auto listener = TcpListener::Listen({});
    EXPECT_TRUE(listener.ok()) << listener.status();
    peers.push_back((*listener)->address());
    listeners.push_back(*std::move(listener));
  }
  Transports transports(static_cast<size_t>(ranks));
  const GroupIdentity group{.schema_hash = 7, .run = "test", .generation = 1};
  OnRanks(ranks, [&](int rank) {
    const auto i = static_cast<size_t>(rank);
    auto transport = ConnectGroup(*listeners[i], group, rank, peers,
                                  {.deadline = absl::Now() + absl::Seconds(30),
                                   .timeout = timeout,
                                   .shared_memory = shared_memory});
    EXPECT_TRUE(transport.ok()) << transport.status();
    if (transport.ok()) transports[i] = *std::move(transport);
  });
  return transports;
}

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
