// Connecting groups: kinds of links, order of arrival, host names, generations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "comm/transport/suspects.h"
#include "tests/comm/transport/connecting.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ListenTest, PortZeroSelectsFreePort) {
  const auto listener = Listen({.address = "localhost:0"});
  EXPECT_GT(listener->port(), 0);
  EXPECT_EQ(listener->address(), absl::StrCat("localhost:", listener->port()));
  const auto again = TcpListener::Listen({.address = listener->address()});
  EXPECT_EQ(again.status().code(), absl::StatusCode::kAlreadyExists) << again.status();
}

TEST(ListenTest, RejectsMalformedAddresses) {
  for (const char* address : {"", "localhost", ":80", "host:", "host:x", "host:70000", "::1:80"}) {
    const auto listener = TcpListener::Listen({.address = address});
    EXPECT_EQ(listener.status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
  EXPECT_TRUE(ParseHostPort("[::1]:80").ok());
}

TEST(ConnectTest, HostNames) {
  Listeners listeners(3, {.address = "localhost:0"});
  ExpectConnects(listeners, Generation(1));
}

struct Group {
  int ranks;
  bool shared_memory;
  int connections;
};

class GroupTest : public ::testing::TestWithParam<Group> {};

std::string GroupName(const ::testing::TestParamInfo<Group>& info) {
  return absl::StrCat(info.param.ranks, info.param.shared_memory ? "SharedMemory" : "Tcp",
                      info.param.connections);
}

INSTANTIATE_TEST_SUITE_P(Groups, GroupTest,
                         ::testing::Values(Group{1, true, 0}, Group{2, true, 0}, Group{3, true, 0},
                                           Group{8, true, 0}, Group{2, false, 0},
                                           Group{2, false, 1}, Group{2, false, 2},
                                           Group{3, false, 4}, Group{5, false, 8},
                                           Group{8, false, 1}, Group{8, false, 4}),
                         GroupName);

// Messages longer than any buffer and stripe arrive on all channels concurrently.
TEST_P(GroupTest, Connects) {
  const Group given = GetParam();
  Listeners listeners(given.ranks);
  OnRanks(given.ranks, [&](int rank) {
    ConnectOptions options = Within(absl::Seconds(20));
    options.shared_memory = given.shared_memory;
    options.connections = given.connections;
    auto connected = Connect(listeners, rank, Generation(1), options);
    ASSERT_TRUE(connected.ok()) << connected.status();
    Transport& transport = **connected;
    EXPECT_EQ(transport.rank(), rank);
    ASSERT_EQ(transport.size(), given.ranks);
    for (int peer = 0; peer < transport.size(); ++peer) {
      const LinkKind kind = given.shared_memory ? LinkKind::kSharedMemory : LinkKind::kTcp;
      EXPECT_EQ(transport.link(peer), peer == rank ? LinkKind::kSelf : kind);
    }
    OnRanks(Transport::kChannels, [&](int channel) {
      for (uint32_t call = 0; call < 3; ++call) {
        EXPECT_EQ(ExchangeWithAll(transport, channel, call == 1 ? 700'001 : 0, call),
                  absl::OkStatus());
      }
    });
  });
}

TEST(ConnectTest, SharedMemoryNeedsBothRanks) {
  Listeners listeners(4);
  OnRanks(4, [&](int rank) {
    ConnectOptions options = Within(absl::Seconds(20));
    options.shared_memory = rank != 2;
    auto transport = Connect(listeners, rank, Generation(1), options);
    ASSERT_TRUE(transport.ok()) << transport.status();
    for (int peer = 0; peer < 4; ++peer) {
      if (peer == rank) continue;
      EXPECT_EQ((*transport)->link(peer),
                rank == 2 || peer == 2 ? LinkKind::kTcp : LinkKind::kSharedMemory);
    }
    EXPECT_EQ(ExchangeWithAll(**transport, 0, 100'000), absl::OkStatus());
  });
}

// Ranks with different settings agree, because the higher rank of a pair decides.
TEST(ConnectTest, HigherRankChoosesConnections) {
  Listeners listeners(3);
  OnRanks(3, [&](int rank) {
    ConnectOptions options = Within(absl::Seconds(20));
    options.shared_memory = false;
    options.connections = 2 * rank;
    auto transport = Connect(listeners, rank, Generation(1), options);
    ASSERT_TRUE(transport.ok()) << transport.status();
    EXPECT_EQ(ExchangeWithAll(**transport, 0, 3'000'000), absl::OkStatus());
  });
}

// Ranks may start in any order; in particular, a rank may call before the callee expects the group.
TEST(ConnectTest, AnyOrderOfArrival) {
  std::array<int, 3> order = {0, 1, 2};
  uint64_t generation = 1;
  Listeners listeners(3);
  do {
    OnRanks(3, [&](int position) {
      absl::SleepFor(absl::Milliseconds(15) * position);
      auto transport = Connect(listeners, order[position], Generation(generation));
      ASSERT_TRUE(transport.ok()) << transport.status();
      EXPECT_EQ(ExchangeWithAll(**transport, 0), absl::OkStatus());
    });
    ++generation;
  } while (std::next_permutation(order.begin(), order.end()));
}

// The process of a worker may start after its address was sent to its peers.
TEST(ConnectTest, RetriesUntilPeerListens) {
  Listeners listeners(2);
  listeners.each[0].reset();
  OnRanks(2, [&](int rank) {
    if (rank == 0) {
      absl::SleepFor(absl::Milliseconds(100));
      listeners.each[0] = Listen({.address = listeners.peers[0]});
    }
    EXPECT_EQ(Connect(listeners, rank, Generation(1)).status(), absl::OkStatus());
  });
}

TEST(ConnectTest, DeadlineNamesMissingRanks) {
  Listeners listeners(3);
  listeners.each[0].reset();
  const absl::Status status =
      Connect(listeners, 1, Generation(1), Within(absl::Milliseconds(50))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  const std::string missing =
      absl::StrCat("with rank 0 at ", listeners.peers[0], ", 2 at ", listeners.peers[2]);
  EXPECT_THAT(std::string(status.message()), HasSubstr(missing));
  EXPECT_THAT(std::string(status.message()), HasSubstr("refused"));
  EXPECT_THAT(SuspectsOf(status), ElementsAre(0, 2));
}

// A rank whose peer has ended the attempt suspects that peer, and also names the ranks that it
// missed itself.
TEST(ConnectTest, ClosedConnectionNamesMissingRanks) {
  Listeners listeners(4);
  listeners.each[0].reset();
  TcpListener& second = listeners.At(1);
  ASSERT_TRUE(second.Expect(Generation(1), 1, 4, nullptr).ok());
  absl::Status status;
  std::thread fourth([&] { status = Connect(listeners, 3, Generation(1)).status(); });
  std::vector<TcpListener::Arrival> arrivals;
  while (arrivals.empty()) arrivals = second.TakeArrivals(Generation(1));
  Answer answer;
  Sign(kKey, answer, arrivals[0].header.tag);
  EXPECT_EQ(SendWhole(arrivals[0].socket, BytesOf(answer)), absl::OkStatus());
  arrivals.clear();
  fourth.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 closed its connection"));
  const std::string missing =
      absl::StrCat("with rank 0 at ", listeners.peers[0], ", 2 at ", listeners.peers[2]);
  EXPECT_THAT(std::string(status.message()), HasSubstr(missing));
  EXPECT_THAT(std::string(status.message()), HasSubstr("(rank 0 at "));
  EXPECT_THAT(SuspectsOf(status), ElementsAre(1));
}

// Rank 1 calls and rank 0 accepts; neither has a deadline.
TEST(ConnectTest, Cancellation) {
  Listeners listeners(3);
  std::atomic<bool> cancel{false};
  OnRanks(3, [&](int rank) {
    if (rank == 2) {
      absl::SleepFor(absl::Milliseconds(30));
      cancel = true;
      return;
    }
    const absl::Time start = absl::Now();
    const absl::Status status =
        Connect(listeners, rank, Generation(1), {.cancelled = [&] { return cancel.load(); }})
            .status();
    EXPECT_TRUE(absl::IsCancelled(status) || absl::IsAborted(status)) << status;
    EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  });
}

// Rank 1 is connected with rank 0 and waits for rank 2 when rank 0 reaches its deadline.
TEST(ConnectTest, PeerClosingEndsAttempt) {
  Listeners listeners(3);
  const auto statuses = StatusesOnRanks(2, [&](int rank) {
    const absl::Duration time = rank == 0 ? absl::Milliseconds(300) : absl::Seconds(60);
    return Connect(listeners, rank, Generation(1), Within(time)).status();
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded) << statuses[0];
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kAborted) << statuses[1];
}

// A connection that TakeArrivals has returned is closed only by its new owner.
TEST(ConnectTest, TakeArrivalsTransfersOwnership) {
  for (int i = 0; i < 20; ++i) {
    const auto listener = Listen();
    const RawCaller caller(*listener, MakeHeader(1));
    absl::SleepFor(absl::Milliseconds(i % 4));
    ASSERT_TRUE(listener->Expect(Generation(1), 0, 2, nullptr).ok());
    std::vector<TcpListener::Arrival> arrivals;
    while (arrivals.empty()) arrivals = listener->TakeArrivals(Generation(1));
    ASSERT_EQ(arrivals.size(), 1U);
    EXPECT_EQ(arrivals[0].header.from, 1U);
    arrivals.clear();
    EXPECT_EQ(caller.ReadToEnd(), "");
  }
}

TEST(ConnectTest, NewerGenerationWaits) {
  Listeners listeners(2);
  const auto other = Listen();
  std::thread newer([&] {
    EXPECT_EQ(
        ConnectGroup(*other, Generation(2), 1, listeners.peers, Within(absl::Seconds(20))).status(),
        absl::OkStatus());
  });
  ExpectConnects(listeners, Generation(1));
  EXPECT_EQ(Connect(listeners, 0, Generation(2)).status(), absl::OkStatus());
  newer.join();
}

// Groups of different runs share the listeners of their workers' processes.
TEST(ConnectTest, GroupsAreSeparate) {
  Listeners listeners(2);
  OnRanks(6, [&](int thread) {
    GroupIdentity group = Generation(3);
    if (thread / 2 == 1) group.group = 9;
    if (thread / 2 == 2) group.run = "run-2";
    auto transport = Connect(listeners, thread % 2, group);
    ASSERT_TRUE(transport.ok()) << transport.status();
    // The groups exchange messages of different sizes.
    EXPECT_EQ(ExchangeWithAll(**transport, 0, 1 + thread / 2), absl::OkStatus());
  });
}

}  // namespace
}  // namespace cadre
