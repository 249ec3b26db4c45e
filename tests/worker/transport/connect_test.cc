// How groups connect: what over, order of arrival, names, refusals, silent and garbling callers,
// generations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "base/counters.h"
#include "tests/worker/transport/meeting.h"
#include "worker/transport/connect_group.h"
#include "worker/transport/host_identity.h"
#include "worker/transport/tcp_link.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<TcpListener> Listen(TcpListener::Options options = {}) {
  auto listener = TcpListener::Listen(options);
  EXPECT_TRUE(listener.ok()) << listener.status();
  return *std::move(listener);
}

ConnectOptions Within(absl::Duration time) {
  return {.deadline = absl::Now() + time, .timeout = absl::Seconds(30)};
}

GroupIdentity Generation(uint64_t generation) {
  return {.schema_hash = 7, .run = "run-1", .group = 2, .generation = generation};
}

// All ranks connect and meet on every channel.
void ExpectWorks(Listeners& listeners, const GroupIdentity& group) {
  OnRanks(listeners.ranks(), [&](int rank) {
    auto transport =
        ConnectGroup(listeners.At(rank), group, rank, listeners.peers, Within(absl::Seconds(20)));
    ASSERT_TRUE(transport.ok()) << transport.status();
    for (int channel = 0; channel < Transport::kChannels; ++channel) {
      const absl::Status met = Meet(**transport, channel);
      EXPECT_TRUE(met.ok()) << met;
    }
  });
}

// A caller that is not one of ours.
Socket RawCall(const TcpListener& listener) {
  auto addresses = Resolve(listener.address(), false);
  EXPECT_TRUE(addresses.ok());
  auto socket = StartConnect(addresses->front());
  EXPECT_TRUE(socket.ok());
  pollfd entry{.fd = socket->fd(), .events = POLLOUT};
  EXPECT_EQ(poll(&entry, 1, 5000), 1);
  EXPECT_TRUE(ConnectResult(*socket).ok());
  return *std::move(socket);
}

void Send(const Socket& socket, absl::string_view text) {
  EXPECT_EQ(send(socket.fd(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
}

// Everything that the listener says until it closes the connection.
std::string HearAll(const Socket& socket, absl::Duration limit = absl::Seconds(5)) {
  std::string heard;
  std::array<char, 512> part;
  const absl::Time until = absl::Now() + limit;
  while (absl::Now() < until) {
    pollfd entry{.fd = socket.fd(), .events = POLLIN};
    poll(&entry, 1, 20);
    const ssize_t got = recv(socket.fd(), part.data(), part.size(), 0);
    if (got > 0) heard.append(part.data(), static_cast<size_t>(got));
    if (got == 0 || (got < 0 && errno != EAGAIN)) return heard;
  }
  ADD_FAILURE() << "the connection was not closed";
  return heard;
}

Answer HearAnswer(const Socket& socket) {
  const auto answer = DecodeAnswer(HearAll(socket));
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.value_or(Answer{});
}

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
  ExpectWorks(listeners, Generation(1));
}

struct Group {
  int ranks;
  bool shared_memory;
  int connections;
};

class GroupTest : public ::testing::TestWithParam<Group> {};

std::string GroupName(const ::testing::TestParamInfo<Group>& info) {
  return absl::StrCat(info.param.ranks, info.param.shared_memory ? "ByMemory" : "ByTcp",
                      info.param.connections);
}

INSTANTIATE_TEST_SUITE_P(Groups, GroupTest,
                         ::testing::Values(Group{2, true, 0}, Group{3, true, 0}, Group{8, true, 0},
                                           Group{2, false, 0}, Group{2, false, 1},
                                           Group{2, false, 2}, Group{3, false, 4},
                                           Group{5, false, 8}, Group{8, false, 1},
                                           Group{8, false, 4}),
                         GroupName);

// All pairs have links of the kind that was asked for, on which messages longer than any buffer and
// stripe arrive on all channels at once.
TEST_P(GroupTest, Connects) {
  const auto [ranks, shared_memory, connections] = GetParam();
  Listeners listeners(ranks);
  OnRanks(ranks, [&, shared_memory = shared_memory, connections = connections](int rank) {
    const absl::Time start = absl::Now();
    auto made = ConnectGroup(listeners.At(rank), Generation(1), rank, listeners.peers,
                             {.deadline = start + absl::Seconds(20),
                              .timeout = absl::Seconds(30),
                              .shared_memory = shared_memory,
                              .connections = connections});
    ASSERT_TRUE(made.ok()) << made.status();
    if (rank == 0) {
      RecordProperty("milliseconds",
                     std::to_string(absl::ToInt64Milliseconds(absl::Now() - start)));
    }
    Transport& transport = **made;
    EXPECT_EQ(transport.rank(), rank);
    ASSERT_EQ(transport.size(), listeners.ranks());
    for (int peer = 0; peer < transport.size(); ++peer) {
      EXPECT_EQ(transport.host(peer), HostIdentity());
      if (peer == rank) continue;
      EXPECT_EQ(transport.link(peer), shared_memory ? LinkKind::kSharedMemory : LinkKind::kTcp);
    }
    std::vector<std::thread> channels;
    for (int channel = 0; channel < Transport::kChannels; ++channel) {
      channels.emplace_back([&transport, channel] {
        for (uint32_t call = 0; call < 3; ++call) {
          const absl::Status met = Meet(transport, channel, call == 1 ? 700'001 : 0, call);
          EXPECT_TRUE(met.ok()) << met;
        }
      });
    }
    for (std::thread& channel : channels) channel.join();
  });
}

// A rank that does not want to share memory is reached by TCP; the others share.
TEST(ConnectTest, SharedMemoryNeedsBothRanks) {
  Listeners listeners(4);
  OnRanks(4, [&](int rank) {
    ConnectOptions options = Within(absl::Seconds(20));
    options.shared_memory = rank != 2;
    auto transport =
        ConnectGroup(listeners.At(rank), Generation(1), rank, listeners.peers, options);
    ASSERT_TRUE(transport.ok()) << transport.status();
    for (int peer = 0; peer < 4; ++peer) {
      if (peer == rank) continue;
      EXPECT_EQ((*transport)->link(peer),
                rank == 2 || peer == 2 ? LinkKind::kTcp : LinkKind::kSharedMemory);
      EXPECT_EQ((*transport)->host(peer), (*transport)->host(rank));
    }
    const absl::Status met = Meet(**transport, 0, 100'000);
    EXPECT_TRUE(met.ok()) << met;
  });
}

// The higher rank of a pair decides, so ranks with other settings still agree.
TEST(ConnectTest, HigherRankChoosesConnections) {
  Listeners listeners(3);
  OnRanks(3, [&](int rank) {
    ConnectOptions options = Within(absl::Seconds(20));
    options.shared_memory = false;
    options.connections = 2 * rank;
    auto transport =
        ConnectGroup(listeners.At(rank), Generation(1), rank, listeners.peers, options);
    ASSERT_TRUE(transport.ok()) << transport.status();
    const absl::Status met = Meet(**transport, 0, 3'000'000);
    EXPECT_TRUE(met.ok()) << met;
  });
}

TEST(ConnectTest, SingleRank) {
  Listeners listeners(1);
  ExpectWorks(listeners, Generation(1));
}

// Ranks arrive in any order, and in particular a rank may call long before the callee knows of the
// group.
TEST(ConnectTest, AnyOrderOfArrival) {
  std::array<int, 3> order = {0, 1, 2};
  uint64_t generation = 1;
  Listeners listeners(3);
  do {
    std::array<absl::Status, 3> statuses;
    OnRanks(3, [&](int place) {
      absl::SleepFor(absl::Milliseconds(15) * place);
      const int rank = order[place];
      auto transport = ConnectGroup(listeners.At(rank), Generation(generation), rank,
                                    listeners.peers, Within(absl::Seconds(20)));
      statuses[rank] = transport.status();
      ASSERT_TRUE(transport.ok()) << transport.status();
      EXPECT_TRUE(Meet(**transport, 0).ok());
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
    ++generation;
  } while (std::next_permutation(order.begin(), order.end()));
}

// A worker's process may start after its peers were told where it will be.
TEST(ConnectTest, RetriesUntilPeerListens) {
  Listeners listeners(2);
  listeners.each[0].reset();
  OnRanks(2, [&](int rank) {
    if (rank == 0) {
      absl::SleepFor(absl::Milliseconds(100));
      listeners.each[0] = Listen({.address = listeners.peers[0]});
    }
    auto transport = ConnectGroup(listeners.At(rank), Generation(1), rank, listeners.peers,
                                  Within(absl::Seconds(20)));
    EXPECT_TRUE(transport.ok()) << transport.status();
  });
}

TEST(ConnectTest, DeadlineNamesTheMissingRanks) {
  Listeners listeners(4);
  listeners.each[0].reset();
  std::array<absl::Status, 4> statuses;
  OnRanks(4, [&](int rank) {
    if (rank == 0 || rank == 2) return;
    const absl::Duration time = rank == 1 ? absl::Milliseconds(150) : absl::Seconds(60);
    statuses[rank] =
        ConnectGroup(listeners.At(rank), Generation(1), rank, listeners.peers, Within(time))
            .status();
  });
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDeadlineExceeded) << statuses[1];
  const std::string missing =
      absl::StrCat("with rank 0 at ", listeners.peers[0], ", 2 at ", listeners.peers[2]);
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr(missing));
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("refused"));
  // Who hears of the end from another says whom it missed itself.
  EXPECT_EQ(statuses[3].code(), absl::StatusCode::kAborted) << statuses[3];
  EXPECT_THAT(std::string(statuses[3].message()), HasSubstr("rank 1 hung up"));
  EXPECT_THAT(std::string(statuses[3].message()), HasSubstr(missing));
}

TEST(ConnectTest, Cancellation) {
  Listeners listeners(3);
  std::atomic<bool> cancel{false};
  OnRanks(3, [&](int rank) {
    if (rank == 2) {
      absl::SleepFor(absl::Milliseconds(30));
      cancel = true;
      return;
    }
    // Rank 1 calls, rank 0 awaits; neither has a deadline.
    const absl::Time start = absl::Now();
    const auto transport = ConnectGroup(listeners.At(rank), Generation(1), rank, listeners.peers,
                                        {.cancelled = [&] { return cancel.load(); }});
    EXPECT_TRUE(absl::IsCancelled(transport.status()) || absl::IsAborted(transport.status()))
        << transport.status();
    EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  });
}

// Rank 1 has rank 0 and waits for rank 2; that rank 0 gives up ends the wait.
TEST(ConnectTest, PeerClosingEndsAttempt) {
  Listeners listeners(3);
  OnRanks(2, [&](int rank) {
    const auto transport =
        ConnectGroup(listeners.At(rank), Generation(1), rank, listeners.peers,
                     Within(rank == 0 ? absl::Milliseconds(300) : absl::Seconds(60)));
    EXPECT_EQ(transport.status().code(),
              rank == 0 ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kAborted)
        << transport.status();
  });
}

TEST(ConnectTest, RejectsOtherSchema) {
  Counters counters;
  Listeners listeners(2, {.counters = &counters});
  std::array<absl::Status, 2> statuses;
  OnRanks(2, [&](int rank) {
    GroupIdentity group = Generation(1);
    group.schema_hash += static_cast<uint64_t>(rank);
    statuses[rank] = ConnectGroup(listeners.At(rank), group, rank, listeners.peers,
                                  Within(rank == 0 ? absl::Milliseconds(500) : absl::Seconds(60)))
                         .status();
  });
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kFailedPrecondition) << statuses[1];
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("schema"));
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(counters.Get("transport_refused_schema"), 1U);
}

TEST(ConnectTest, RejectsOldGeneration) {
  Counters counters;
  Listeners listeners(2, {.counters = &counters});
  ExpectWorks(listeners, Generation(5));
  // A straggler of the generation before, and one of the same generation that is over.
  for (const uint64_t generation : {4, 5}) {
    const auto straggler = Listen();
    const auto transport = ConnectGroup(*straggler, Generation(generation), 1, listeners.peers,
                                        Within(absl::Seconds(60)));
    EXPECT_EQ(transport.status().code(), absl::StatusCode::kAborted) << transport.status();
    EXPECT_THAT(std::string(transport.status().message()), HasSubstr("generation"));
  }
  EXPECT_EQ(counters.Get("transport_refused_stale_generation"), 2U);
  // The worker itself does not go back either.
  const auto transport =
      ConnectGroup(listeners.At(0), Generation(4), 0, listeners.peers, Within(absl::Seconds(60)));
  EXPECT_EQ(transport.status().code(), absl::StatusCode::kAborted);
  ExpectWorks(listeners, Generation(6));
}

// A call of an older generation that is parked does not end up in the newer group, and is told.
TEST(ConnectTest, NewGenerationRejectsParkedOldCall) {
  Listeners listeners(2);
  const Socket old = RawCall(listeners.At(0));
  Send(old, Encode(Greeting{.group = Generation(1), .from = 1, .to = 0, .ranks = 2}));
  ExpectWorks(listeners, Generation(2));
  EXPECT_EQ(HearAnswer(old).code, Answer::Code::kStaleGeneration);
}

// With nothing else going on at the listener.
TEST(ConnectTest, RejectsParkedCallImmediately) {
  for (int i = 0; i < 20; ++i) {
    const auto listener = Listen();
    const Socket caller = RawCall(*listener);
    Send(caller, Encode(Greeting{.group = Generation(1), .from = 1, .to = 0, .ranks = 2}));
    absl::SleepFor(absl::Milliseconds(i % 4));
    ASSERT_TRUE(listener->Expect({.group = Generation(2), .rank = 0, .ranks = 2}).ok());
    const absl::Time start = absl::Now();
    EXPECT_EQ(HearAnswer(caller).code, Answer::Code::kStaleGeneration);
    EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  }
}

// A parked connection that was handed out ends when its taker closes it.
TEST(ConnectTest, TakeReceivedTransfersOwnership) {
  for (int i = 0; i < 20; ++i) {
    const auto listener = Listen();
    const Socket caller = RawCall(*listener);
    Send(caller, Encode(Greeting{.group = Generation(1), .from = 1, .to = 0, .ranks = 2}));
    absl::SleepFor(absl::Milliseconds(i % 4));
    ASSERT_TRUE(listener->Expect({.group = Generation(1), .rank = 0, .ranks = 2}).ok());
    std::optional<TcpListener::Arrival> arrival;
    while (!arrival) arrival = listener->TakeReceived(Generation(1), 1, Purpose{});
    EXPECT_EQ(arrival->greeting.from, 1U);
    arrival.reset();
    EXPECT_EQ(HearAnswer(caller).code, Answer::Code::kWelcome);
  }
}

// A peer that is already called to the next generation is parked, not refused.
TEST(ConnectTest, NewerGenerationIsParked) {
  Listeners listeners(2);
  const auto other = Listen();
  std::thread newer([&] {
    const auto transport =
        ConnectGroup(*other, Generation(2), 1, listeners.peers, Within(absl::Seconds(20)));
    EXPECT_TRUE(transport.ok()) << transport.status();
  });
  ExpectWorks(listeners, Generation(1));
  const auto transport =
      ConnectGroup(listeners.At(0), Generation(2), 0, listeners.peers, Within(absl::Seconds(20)));
  EXPECT_TRUE(transport.ok()) << transport.status();
  newer.join();
}

TEST(ConnectTest, RejectsWrongRank) {
  Counters counters;
  Listeners listeners(3, {.counters = &counters});
  std::thread waiting([&] {
    const auto transport = ConnectGroup(listeners.At(1), Generation(1), 1,
                                        {listeners.peers[0], listeners.peers[1], "127.0.0.1:1"},
                                        Within(absl::Milliseconds(600)));
    EXPECT_EQ(transport.status().code(), absl::StatusCode::kDeadlineExceeded);
  });
  const Greeting right{.group = Generation(1), .from = 2, .to = 1, .ranks = 3};
  std::vector<Greeting> wrong(7, right);
  wrong[0].from = 1;   // ourselves
  wrong[1].from = 3;   // beyond the group
  wrong[2].to = 0;     // somebody else
  wrong[3].ranks = 4;  // another size
  // A channel and connections that there are not.
  wrong[4].purpose = {.channel = Transport::kChannels, .connection = 0};
  wrong[5].purpose = {.channel = 0, .connection = kMaxConnections};
  wrong[6].purpose = {.channel = Purpose::kControl, .connection = 1};
  for (const Greeting& greeting : wrong) {
    const Socket caller = RawCall(listeners.At(1));
    Send(caller, Encode(greeting));
    EXPECT_EQ(HearAnswer(caller).code, Answer::Code::kWrongRank);
  }
  EXPECT_EQ(counters.Get("transport_refused_place"), wrong.size());
  waiting.join();
}

TEST(ConnectTest, GarbageAndSilenceDoNotBlock) {
  Counters counters;
  Listeners listeners(3, {.counters = &counters});
  std::vector<Socket> callers;
  const std::string greeting =
      Encode(Greeting{.group = Generation(1), .from = 1, .to = 0, .ranks = 3});
  for (int rank = 0; rank < 3; ++rank) {
    // Half a greeting, then silence; nothing at all; and what is no greeting.
    callers.push_back(RawCall(listeners.At(rank)));
    Send(callers.back(), absl::string_view(greeting).substr(0, greeting.size() / 2));
    callers.push_back(RawCall(listeners.At(rank)));
    callers.push_back(RawCall(listeners.At(rank)));
    Send(callers.back(), "GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n");
  }
  ExpectWorks(listeners, Generation(1));
  for (size_t i = 2; i < callers.size(); i += 3) EXPECT_EQ(HearAll(callers[i]), "");
  EXPECT_EQ(counters.Snapshot(),
            (std::map<std::string, uint64_t>{{"transport_garbage_closed", 3}}));
}

// What follows the right beginning is judged, too, and at once.
TEST(ConnectTest, RejectsTrailingBytes) {
  Counters counters;
  const auto listener = Listen({.counters = &counters});
  const std::string greeting =
      Encode(Greeting{.group = Generation(1), .from = 1, .to = 0, .ranks = 2});
  for (const std::string& said :
       {greeting + "and then", greeting.substr(0, 8) + std::string(3000, '\xff')}) {
    const Socket caller = RawCall(*listener);
    Send(caller, said);
    EXPECT_EQ(HearAll(caller), "");
  }
  {
    const Socket caller = RawCall(*listener);
    Send(caller, greeting.substr(0, 20));
  }
  // Who only looks whether the port is open is no garbage.
  { const Socket caller = RawCall(*listener); }
  const absl::Time until = absl::Now() + absl::Seconds(10);
  while (counters.Get("transport_garbage_closed") < 3 && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(counters.Get("transport_garbage_closed"), 3U);
}

TEST(ConnectTest, DropsSilentCallers) {
  Counters counters;
  const auto listener = Listen({.handshake_timeout = absl::Milliseconds(50),
                                .park_timeout = absl::Milliseconds(100),
                                .counters = &counters});
  const Socket silent = RawCall(*listener);
  const Socket parked = RawCall(*listener);
  Send(parked, Encode(Greeting{.group = Generation(1), .from = 1, .to = 0, .ranks = 2}));
  EXPECT_EQ(HearAll(silent), "");
  EXPECT_EQ(HearAll(parked), "");
  EXPECT_EQ(counters.Get("transport_handshake_timeouts"), 1U);
}

TEST(ConnectTest, DropsOldestBeyondLimit) {
  Listeners listeners(2, {.handshake_timeout = absl::Minutes(1), .max_waiting = 4});
  std::vector<Socket> callers;
  for (int i = 0; i < 20; ++i) callers.push_back(RawCall(listeners.At(0)));
  EXPECT_EQ(HearAll(callers.front()), "");
  ExpectWorks(listeners, Generation(1));
}

// Two groups of two runs share the listeners of two workers' processes.
TEST(ConnectTest, GroupsAreSeparate) {
  Listeners listeners(2);
  OnRanks(6, [&](int thread) {
    const int rank = thread % 2;
    GroupIdentity group = Generation(3);
    if (thread / 2 == 1) group.group = 9;
    if (thread / 2 == 2) group.run = "run-2";
    auto transport =
        ConnectGroup(listeners.At(rank), group, rank, listeners.peers, Within(absl::Seconds(20)));
    ASSERT_TRUE(transport.ok()) << transport.status();
    // Of other sizes in other groups.
    const absl::Status met = Meet(**transport, 0, static_cast<size_t>(1 + thread / 2));
    EXPECT_TRUE(met.ok()) << met;
  });
}

// What a callee may say wrongly after the greeting ends the attempt of its caller.
class FalseCalleeTest : public ::testing::Test {
 protected:
  // What becomes of rank 1, to whose every greeting this test answers `said`.
  absl::StatusOr<std::unique_ptr<Transport>> CallerHears(const std::string& said, bool hang_up) {
    auto listening = ListenOn("127.0.0.1:0");
    EXPECT_TRUE(listening.ok());
    const std::string address = absl::StrCat("127.0.0.1:", *LocalPort(*listening));
    const auto own = Listen();
    absl::StatusOr<std::unique_ptr<Transport>> transport;
    std::atomic<bool> over{false};
    std::thread caller([&] {
      transport = ConnectGroup(*own, Generation(1), 1, {address, own->address()},
                               Within(absl::Milliseconds(500)));
      over = true;
    });
    std::vector<Socket> taken;
    while (!over) {
      pollfd entry{.fd = listening->fd(), .events = POLLIN};
      if (poll(&entry, 1, 5) <= 0) continue;
      Socket socket(accept(listening->fd(), nullptr, nullptr));
      std::array<char, 2048> greeting;
      // A caller that has just given up hears nothing.
      if (recv(socket.fd(), greeting.data(), greeting.size(), 0) <= 0) continue;
      send(socket.fd(), said.data(), said.size(), MSG_NOSIGNAL);
      if (!hang_up) taken.push_back(std::move(socket));
    }
    caller.join();
    return transport;
  }

  static std::string Welcomed() {
    return Encode(Answer{.host = HostIdentity(), .shares_memory = true});
  }
};

TEST_F(FalseCalleeTest, MalformedAnswerIsFinal) {
  EXPECT_EQ(CallerHears(std::string("\x01\0\0", 3), false).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(FalseCalleeTest, RetriesAfterCloseBeforeAnswer) {
  const absl::Status status = CallerHears("", true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0"));
}

TEST_F(FalseCalleeTest, CloseAfterAnswerEndsAttempt) {
  const absl::Status status = CallerHears(Welcomed(), true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 hung up"));
}

TEST_F(FalseCalleeTest, MalformedOfferIsFinal) {
  const auto status = CallerHears(Welcomed() + std::string("\x02\0\xff\xff", 4), false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

// Memory that cannot be mapped: the caller makes connections instead.
TEST_F(FalseCalleeTest, InvalidOfferFallsBackToTcp) {
  const std::string nowhere =
      Encode(Offer{.description = "nowhere", .wakeups = {"none", "none", "none"}});
  const auto transport = CallerHears(Welcomed() + nowhere, false);
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_EQ((*transport)->link(0), LinkKind::kTcp);
}

}  // namespace
}  // namespace cadre
