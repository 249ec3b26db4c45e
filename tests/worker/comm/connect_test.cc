// How groups connect: order of arrival, names, refusals, silent and garbling callers, generations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "tests/worker/comm/ranks.h"
#include "worker/comm/communicator.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<TcpListener> Listen(TcpListener::Options options = {}) {
  auto listener = TcpListener::Listen(options);
  EXPECT_TRUE(listener.ok()) << listener.status();
  return *std::move(listener);
}

struct Listeners {
  explicit Listeners(int ranks, TcpListener::Options options = {}) {
    for (int i = 0; i < ranks; ++i) {
      each.push_back(Listen(options));
      peers.push_back(each.back()->address());
    }
  }
  TcpListener& At(int rank) { return *each[static_cast<size_t>(rank)]; }
  std::vector<std::unique_ptr<TcpListener>> each;
  std::vector<std::string> peers;
};

ConnectOptions Within(absl::Duration time) {
  return {.deadline = absl::Now() + time, .timeout = absl::Seconds(30)};
}

GroupIdentity Generation(uint64_t generation) {
  return {.schema_hash = 7, .run = "run-1", .group = 2, .generation = generation};
}

// All ranks connect and take a barrier together.
void ExpectWorks(Listeners& listeners, const GroupIdentity& group) {
  const int ranks = static_cast<int>(listeners.each.size());
  OnRanks(ranks, [&](int rank) {
    const absl::Time start = absl::Now();
    auto transport =
        ConnectGroup(listeners.At(rank), group, rank, listeners.peers, Within(absl::Seconds(20)));
    ASSERT_TRUE(transport.ok()) << transport.status();
    EXPECT_LT(absl::Now() - start, absl::Seconds(5));
    std::vector<int> members(static_cast<size_t>(ranks));
    for (int k = 0; k < ranks; ++k) members[static_cast<size_t>(k)] = k;
    EXPECT_TRUE(Communicator(**transport, members).Barrier().ok());
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

void Say(const Socket& socket, absl::string_view text) {
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

TEST(ListenTest, TakesAFreePortAndSaysWhich) {
  const auto listener = Listen({.address = "localhost:0"});
  EXPECT_GT(listener->port(), 0);
  EXPECT_EQ(listener->address(), absl::StrCat("localhost:", listener->port()));
  const auto again = TcpListener::Listen({.address = listener->address()});
  EXPECT_EQ(again.status().code(), absl::StatusCode::kAlreadyExists) << again.status();
}

TEST(ListenTest, RefusesMalformedAddresses) {
  for (const char* address : {"", "localhost", ":80", "host:", "host:x", "host:70000", "::1:80"}) {
    const auto listener = TcpListener::Listen({.address = address});
    EXPECT_EQ(listener.status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
  EXPECT_TRUE(ParseHostPort("[::1]:80").ok());
}

TEST(ConnectTest, HostNamesWork) {
  Listeners listeners(3, {.address = "localhost:0"});
  ExpectWorks(listeners, Generation(1));
}

TEST(ConnectTest, OneRankNeedsNobody) {
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
      const int rank = order[static_cast<size_t>(place)];
      auto transport = ConnectGroup(listeners.At(rank), Generation(generation), rank,
                                    listeners.peers, Within(absl::Seconds(20)));
      statuses[static_cast<size_t>(rank)] = transport.status();
      if (transport.ok()) {
        EXPECT_TRUE(Communicator(**transport, {0, 1, 2}).Barrier().ok());
      }
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
    ++generation;
  } while (std::next_permutation(order.begin(), order.end()));
}

// A worker's process may start after its peers were told where it will be.
TEST(ConnectTest, RetriesWhileThePeerIsNotThereYet) {
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
    statuses[static_cast<size_t>(rank)] =
        ConnectGroup(listeners.At(rank), Generation(1), rank, listeners.peers,
                     Within(absl::Milliseconds(150)))
            .status();
  });
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDeadlineExceeded) << statuses[1];
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("with rank 0, 2"));
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("refused"));
}

TEST(ConnectTest, CanBeCancelled) {
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
TEST(ConnectTest, APeerThatGivesUpEndsTheAttempt) {
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

TEST(ConnectTest, AnotherSchemaIsRefusedByName) {
  Listeners listeners(2);
  std::array<absl::Status, 2> statuses;
  OnRanks(2, [&](int rank) {
    GroupIdentity group = Generation(1);
    group.schema_hash += static_cast<uint64_t>(rank);
    statuses[static_cast<size_t>(rank)] =
        ConnectGroup(listeners.At(rank), group, rank, listeners.peers,
                     Within(rank == 0 ? absl::Milliseconds(500) : absl::Seconds(60)))
            .status();
  });
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kFailedPrecondition) << statuses[1];
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("schema"));
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ConnectTest, AnOldGenerationIsRefusedByName) {
  Listeners listeners(2);
  ExpectWorks(listeners, Generation(5));
  // A straggler of the generation before, and one of the same generation that is over.
  for (const uint64_t generation : {4, 5}) {
    const auto straggler = Listen();
    const auto transport = ConnectGroup(*straggler, Generation(generation), 1, listeners.peers,
                                        Within(absl::Seconds(60)));
    EXPECT_EQ(transport.status().code(), absl::StatusCode::kAborted) << transport.status();
    EXPECT_THAT(std::string(transport.status().message()), HasSubstr("generation"));
  }
  // The worker itself does not go back either.
  const auto transport =
      ConnectGroup(listeners.At(0), Generation(4), 0, listeners.peers, Within(absl::Seconds(60)));
  EXPECT_EQ(transport.status().code(), absl::StatusCode::kAborted);
  ExpectWorks(listeners, Generation(6));
}

// A call of an older generation that is parked does not end up in the newer group, and is told.
TEST(ConnectTest, AParkedCallOfAnOldGenerationIsRefusedWhenTheNewOneComes) {
  Listeners listeners(2);
  const Socket old = RawCall(listeners.At(0));
  Say(old, Encode(Greeting{.group = Generation(1), .from = 1, .to = 0, .ranks = 2}));
  ExpectWorks(listeners, Generation(2));
  EXPECT_EQ(HearAnswer(old).code, Answer::Code::kStaleGeneration);
}

// With nothing else going on at the listener.
TEST(ConnectTest, AParkedCallIsRefusedAtOnce) {
  for (int i = 0; i < 20; ++i) {
    const auto listener = Listen();
    const Socket caller = RawCall(*listener);
    Say(caller, Encode(Greeting{.group = Generation(1), .from = 1, .to = 0, .ranks = 2}));
    absl::SleepFor(absl::Milliseconds(i % 4));
    ASSERT_TRUE(listener->Expect(Generation(2), 0, 2).ok());
    const absl::Time start = absl::Now();
    EXPECT_EQ(HearAnswer(caller).code, Answer::Code::kStaleGeneration);
    EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  }
}

// A parked connection that was handed out ends when its taker closes it.
TEST(ConnectTest, AHandedOutConnectionBelongsToItsTaker) {
  for (int i = 0; i < 20; ++i) {
    const auto listener = Listen();
    const Socket caller = RawCall(*listener);
    Say(caller, Encode(Greeting{.group = Generation(1), .from = 1, .to = 0, .ranks = 2}));
    absl::SleepFor(absl::Milliseconds(i % 4));
    ASSERT_TRUE(listener->Expect(Generation(1), 0, 2).ok());
    EXPECT_FALSE(listener->TakeArrived(Generation(1), 1, absl::Seconds(5)).empty());
    EXPECT_EQ(HearAnswer(caller).code, Answer::Code::kWelcome);
  }
}

// A peer that is already called to the next generation is parked, not refused.
TEST(ConnectTest, ANewerGenerationWaitsForUs) {
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

TEST(ConnectTest, AWrongPlaceIsRefusedByName) {
  Listeners listeners(3);
  std::thread waiting([&] {
    const auto transport = ConnectGroup(listeners.At(1), Generation(1), 1,
                                        {listeners.peers[0], listeners.peers[1], "127.0.0.1:1"},
                                        Within(absl::Milliseconds(600)));
    EXPECT_EQ(transport.status().code(), absl::StatusCode::kDeadlineExceeded);
  });
  const Greeting right{.group = Generation(1), .from = 2, .to = 1, .ranks = 3};
  std::vector<Greeting> wrong(4, right);
  wrong[0].from = 1;   // ourselves
  wrong[1].from = 3;   // beyond the group
  wrong[2].to = 0;     // somebody else
  wrong[3].ranks = 4;  // another size
  for (const Greeting& greeting : wrong) {
    const Socket caller = RawCall(listeners.At(1));
    Say(caller, Encode(greeting));
    EXPECT_EQ(HearAnswer(caller).code, Answer::Code::kWrongPlace);
  }
  waiting.join();
}

TEST(ConnectTest, GarbageAndSilenceHoldUpNobody) {
  Listeners listeners(3);
  std::vector<Socket> callers;
  const std::string greeting =
      Encode(Greeting{.group = Generation(1), .from = 1, .to = 0, .ranks = 3});
  for (int rank = 0; rank < 3; ++rank) {
    // Half a greeting, then silence; nothing at all; and what is no greeting.
    callers.push_back(RawCall(listeners.At(rank)));
    Say(callers.back(), absl::string_view(greeting).substr(0, greeting.size() / 2));
    callers.push_back(RawCall(listeners.At(rank)));
    callers.push_back(RawCall(listeners.At(rank)));
    Say(callers.back(), "GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n");
  }
  ExpectWorks(listeners, Generation(1));
  for (size_t i = 2; i < callers.size(); i += 3) EXPECT_EQ(HearAll(callers[i]), "");
}

TEST(ConnectTest, SilentCallersAreDroppedInTime) {
  const auto listener = Listen(
      {.handshake_timeout = absl::Milliseconds(50), .park_timeout = absl::Milliseconds(100)});
  const Socket silent = RawCall(*listener);
  const Socket parked = RawCall(*listener);
  Say(parked, Encode(Greeting{.group = Generation(1), .from = 1, .to = 0, .ranks = 2}));
  EXPECT_EQ(HearAll(silent), "");
  EXPECT_EQ(HearAll(parked), "");
}

TEST(ConnectTest, ManySilentCallersPushOneAnotherOut) {
  Listeners listeners(2, {.handshake_timeout = absl::Minutes(1), .max_waiting = 4});
  std::vector<Socket> callers;
  for (int i = 0; i < 20; ++i) callers.push_back(RawCall(listeners.At(0)));
  EXPECT_EQ(HearAll(callers.front()), "");
  ExpectWorks(listeners, Generation(1));
}

// Two groups of two runs share the listeners of two workers' processes.
TEST(ConnectTest, GroupsDoNotMix) {
  Listeners listeners(2);
  OnRanks(6, [&](int thread) {
    const int rank = thread % 2;
    GroupIdentity group = Generation(3);
    if (thread / 2 == 1) group.group = 9;
    if (thread / 2 == 2) group.run = "run-2";
    auto transport =
        ConnectGroup(listeners.At(rank), group, rank, listeners.peers, Within(absl::Seconds(20)));
    ASSERT_TRUE(transport.ok()) << transport.status();
    std::vector<uint64_t> sum = {static_cast<uint64_t>(thread)};
    ASSERT_TRUE(Communicator(**transport, {0, 1}).AllReduceSum(std::span(sum)).ok());
    EXPECT_EQ(sum[0], static_cast<uint64_t>(thread / 2 * 4 + 1));
  });
}

TEST(HandshakeTest, EveryPrefixIsUnfinishedAndEveryExtensionIsRefused) {
  const Greeting greeting{.group = {.schema_hash = 0x1234567890abcdef,
                                    .run = "a run",
                                    .group = 3,
                                    .generation = 1ULL << 40},
                          .from = 4,
                          .to = 2,
                          .ranks = 5};
  const std::string bytes = Encode(greeting);
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto part = DecodeGreeting(absl::string_view(bytes).substr(0, length));
    ASSERT_TRUE(part.ok());
    EXPECT_FALSE(part->has_value()) << length;
  }
  const auto whole = DecodeGreeting(bytes);
  ASSERT_TRUE(whole.ok() && whole->has_value());
  EXPECT_EQ((*whole)->group, greeting.group);
  EXPECT_EQ((*whole)->from, 4U);
  EXPECT_EQ((*whole)->to, 2U);
  EXPECT_EQ((*whole)->ranks, 5U);
  EXPECT_FALSE(DecodeGreeting(bytes + "x").ok());
  EXPECT_FALSE(DecodeGreeting("x" + bytes).ok());
}

TEST(HandshakeTest, AnswersComeBack) {
  const std::string bytes =
      Encode(Answer{.code = Answer::Code::kWrongPlace, .reason = "elsewhere"});
  EXPECT_EQ(AnswerBytes(bytes), bytes.size());
  const auto answer = DecodeAnswer(bytes);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->code, Answer::Code::kWrongPlace);
  EXPECT_EQ(answer->reason, "elsewhere");
  EXPECT_FALSE(DecodeAnswer(bytes.substr(0, bytes.size() - 1)).ok());
  EXPECT_FALSE(DecodeAnswer(std::string("\x09\0\0", 3)).ok());
}

}  // namespace
}  // namespace cadre
