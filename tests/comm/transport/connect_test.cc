// Connecting groups: kinds of links, order of arrival, host names, generations, refusals, and peers
// that are silent or send garbage.
#include <arpa/inet.h>
#include <glog/logging.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <functional>

#include "absl/strings/str_cat.h"
#include "base/counters.h"
#include "base/digest.h"
#include "comm/transport/host_identity.h"
#include "comm/transport/suspects.h"
#include "comm/transport/tcp_link.h"
#include "tests/comm/transport/messages.h"
#include "tests/comm/transport/ranks.h"
#include "tests/comm/transport/sockets.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using TransportOr = absl::StatusOr<std::unique_ptr<Transport>>;

std::unique_ptr<TcpListener> Listen(const TcpListener::Options& options = {}) {
  auto listener = TcpListener::Listen(options);
  EXPECT_TRUE(listener.ok()) << listener.status();
  return *std::move(listener);
}

ConnectOptions Within(absl::Duration time) {
  return {.deadline = absl::Now() + time, .timeout = absl::Seconds(30)};
}

constexpr SecretKey kKey = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

GroupIdentity Generation(uint64_t generation) {
  return {.protocol = 7, .run = "run-1", .group = 2, .generation = generation, .key = kKey};
}

Header MakeHeader(uint64_t generation, uint32_t ranks = 2, uint32_t from = 1, uint32_t to = 0) {
  const GroupIdentity group = Generation(generation);
  Header header{.run = TextDigest(group.run),
                .generation = generation,
                .group = group.group,
                .ranks = ranks,
                .from = from,
                .to = to,
                .protocol = group.protocol,
                .connections = 1};
  return header;
}

TransportOr Connect(Listeners& listeners, int rank, const GroupIdentity& group,
                    const ConnectOptions& options = Within(absl::Seconds(20))) {
  return ConnectGroup(listeners.At(rank), group, rank, listeners.peers, options);
}

// Connects all ranks and exchanges messages on every channel.
void ExpectConnects(Listeners& listeners, const GroupIdentity& group) {
  OnRanks(listeners.ranks(), [&](int rank) {
    auto transport = Connect(listeners, rank, group);
    ASSERT_TRUE(transport.ok()) << transport.status();
    for (int channel = 0; channel < Transport::kChannels; ++channel) {
      EXPECT_EQ(ExchangeWithAll(**transport, channel), absl::OkStatus());
    }
  });
}

// A connection on which the test sends arbitrary bytes after the listener's greeting.
class RawCaller {
 public:
  explicit RawCaller(const TcpListener& listener) : RawCaller(ConnectTo(listener.address())) {}
  explicit RawCaller(Socket socket) : socket_(std::move(socket)), greeting_(ReadGreeting()) {}
  RawCaller(const TcpListener& listener, Header header) : RawCaller(listener) {
    Send(Signed(header));
  }

  // The header as a rank with the key sends it on this connection.
  std::string Signed(Header header) const {
    Sign(kKey, header, greeting_.challenge);
    return std::string(BytesOf(header));
  }

  void Send(absl::string_view bytes) const {
    EXPECT_EQ(send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }

  // All bytes that the listener sends until it closes the connection.
  std::string ReadToEnd() const { return Read(std::string::npos); }

  // At most `size` bytes.
  std::string Read(size_t size) const {
    std::string received;
    std::array<char, 512> part;
    const absl::Time until = absl::Now() + absl::Seconds(5);
    while (received.size() < size && absl::Now() < until) {
      pollfd entry{.fd = socket_.fd(), .events = POLLIN};
      poll(&entry, 1, 20);
      const ssize_t got =
          recv(socket_.fd(), part.data(), std::min(part.size(), size - received.size()), 0);
      if (got > 0) received.append(part.data(), got);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return received;
    }
    EXPECT_EQ(received.size(), size) << "the connection was not closed";
    return received;
  }

  Answer::Code ReadCode() const {
    const std::string answer = Read(sizeof(Answer));
    EXPECT_EQ(answer.size(), sizeof(Answer));
    return answer.size() == sizeof(Answer) ? FromBytes<Answer>(answer).code : Answer::Code{};
  }

  // Sends a byte about every 10 ms. Returns the number of bytes when the listener has closed the
  // connection.
  size_t SendSlowly(absl::string_view bytes) const {
    for (size_t sent = 0; sent < bytes.size(); ++sent) {
      pollfd entry{.fd = socket_.fd(), .events = POLLIN};
      if (poll(&entry, 1, 10) > 0) return sent;
      std::ignore = send(socket_.fd(), &bytes[sent], 1, MSG_NOSIGNAL);
    }
    return bytes.size();
  }

 private:
  Greeting ReadGreeting() const {
    const std::string greeting = Read(sizeof(Greeting));
    EXPECT_EQ(greeting.size(), sizeof(Greeting));
    return greeting.size() == sizeof(Greeting) ? FromBytes<Greeting>(greeting) : Greeting();
  }

  const Socket socket_;
  const Greeting greeting_;
};

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

TEST(ConnectTest, RejectsIncompatibleProtocol) {
  Counters counters;
  Listeners listeners(2, {.counters = &counters});
  const auto statuses = StatusesOnRanks(2, [&](int rank) {
    GroupIdentity group = Generation(1);
    group.protocol += 2 * rank;
    const absl::Duration time = rank == 0 ? absl::Milliseconds(500) : absl::Seconds(60);
    return Connect(listeners, rank, group, Within(time)).status();
  });
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kFailedPrecondition) << statuses[1];
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("protocol"));
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(counters.Get("transport_refused_protocol"), 1U);
}

TEST(ConnectTest, RejectsOtherKey) {
  Counters counters;
  Listeners listeners(2, {.counters = &counters});
  const auto statuses = StatusesOnRanks(2, [&](int rank) {
    GroupIdentity group = Generation(1);
    group.key[15] += rank;
    const absl::Duration time = rank == 0 ? absl::Milliseconds(500) : absl::Seconds(60);
    return Connect(listeners, rank, group, Within(time)).status();
  });
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kFailedPrecondition) << statuses[1];
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("key"));
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(counters.Get("transport_refused_key"), 1U);
}

// The tag covers every byte: a header with a changed byte is closed, waits or is refused, but never
// delivered.
TEST(ConnectTest, ChangedHeaderIsNeverDelivered) {
  const auto listener = Listen();
  ASSERT_TRUE(listener->Expect(Generation(1), 0, 2, nullptr).ok());
  for (size_t i = 0; i < sizeof(Header); ++i) {
    // Another run, group or a later generation: it waits.
    if (i >= offsetof(Header, run) && i < offsetof(Header, host)) continue;
    if (i >= offsetof(Header, group) && i < offsetof(Header, ranks)) continue;
    const RawCaller caller(*listener);
    std::string changed = caller.Signed(MakeHeader(1));
    changed[i] ^= 1;
    caller.Send(changed);
    caller.ReadToEnd();
  }
  EXPECT_EQ(RawCaller(*listener, MakeHeader(0)).ReadCode(), Answer::Code::kStaleGeneration);
  EXPECT_TRUE(listener->TakeArrivals(Generation(1)).empty());
}

// A recorded header is refused on another connection: before its caller is connected, while it is,
// and after its generation.
TEST(ConnectTest, RefusesReplayedHeader) {
  Listeners listeners(3);
  std::atomic<bool> cancel{false};
  std::thread waiting([&] {
    Connect(listeners, 0, Generation(1), {.cancelled = [&] { return cancel.load(); }})
        .status()
        .IgnoreError();
  });
  const RawCaller first(listeners.At(0));
  const std::string header = first.Signed(MakeHeader(1, 3));
  const auto replay = [&] {
    const RawCaller caller(listeners.At(0));
    caller.Send(header);
    return caller.ReadCode();
  };
  EXPECT_EQ(replay(), Answer::Code::kWrongKey);
  first.Send(header);
  EXPECT_EQ(first.ReadCode(), Answer::Code::kAccepted);
  EXPECT_EQ(replay(), Answer::Code::kWrongKey);
  cancel = true;
  waiting.join();
  EXPECT_EQ(replay(), Answer::Code::kStaleGeneration);
}

TEST(ConnectTest, RejectsOldGeneration) {
  Counters counters;
  Listeners listeners(2, {.counters = &counters});
  ExpectConnects(listeners, Generation(5));
  // An older generation, and the same one after its end.
  for (const uint64_t generation : {4, 5}) {
    const auto late = Listen();
    const absl::Status status =
        ConnectGroup(*late, Generation(generation), 1, listeners.peers, Within(absl::Seconds(60)))
            .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("generation"));
  }
  EXPECT_EQ(counters.Get("transport_refused_stale_generation"), 2U);
  // The worker itself cannot return to an older generation either.
  EXPECT_EQ(Connect(listeners, 0, Generation(4)).status().code(), absl::StatusCode::kAborted);
  ExpectConnects(listeners, Generation(6));
}

// Counts the lines of the log.
class CountLines final : public google::LogSink {
 public:
  CountLines() { google::AddLogSink(this); }
  ~CountLines() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity, const char*, const char*, int, const google::LogMessageTime&,
            const char*, size_t) override {
    ++count_;
  }
  int count() const { return count_; }

 private:
  std::atomic<int> count_ = 0;
};

TEST(ConnectTest, RefusalsDoNotFillTheLog) {
  Counters counters;
  Listeners listeners(2, {.counters = &counters});
  ExpectConnects(listeners, Generation(5));
  const absl::Time start = absl::Now();
  const CountLines lines;
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(RawCaller(listeners.At(0), MakeHeader(4)).ReadCode(), Answer::Code::kStaleGeneration);
  }
  EXPECT_EQ(counters.Get("transport_refused_stale_generation"), 40U);
  EXPECT_GE(lines.count(), 1);
  EXPECT_LE(lines.count(), 2 + absl::ToInt64Seconds(absl::Now() - start));
}

TEST(ConnectTest, NewGenerationRejectsWaitingOldCall) {
  Listeners listeners(2);
  const RawCaller old(listeners.At(0), MakeHeader(1));
  ExpectConnects(listeners, Generation(2));
  EXPECT_EQ(old.ReadCode(), Answer::Code::kStaleGeneration);
}

// A waiting connection is refused although nothing else happens at the listener.
TEST(ConnectTest, RejectsWaitingCallImmediately) {
  for (int i = 0; i < 20; ++i) {
    const auto listener = Listen();
    const RawCaller caller(*listener, MakeHeader(1));
    absl::SleepFor(absl::Milliseconds(i % 4));
    ASSERT_TRUE(listener->Expect(Generation(2), 0, 2, nullptr).ok());
    const absl::Time start = absl::Now();
    EXPECT_EQ(caller.ReadCode(), Answer::Code::kStaleGeneration);
    EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  }
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

TEST(ConnectTest, RejectsWrongRank) {
  Counters counters;
  Listeners listeners(3, {.counters = &counters});
  listeners.peers[2] = "127.0.0.1:1";
  std::thread waiting([&] {
    EXPECT_EQ(Connect(listeners, 1, Generation(1), Within(absl::Milliseconds(600))).status().code(),
              absl::StatusCode::kDeadlineExceeded);
  });
  std::vector<Header> invalid(9, MakeHeader(1, 3, 2, 1));
  invalid[0].from = 1;   // the callee itself
  invalid[1].from = 3;   // not in the group
  invalid[2].to = 0;     // another rank
  invalid[3].ranks = 4;  // another size
  // Channels and connections that do not exist.
  invalid[4].purpose = {.channel = Transport::kChannels, .connection = 0};
  invalid[5].purpose = {.channel = 0, .connection = 1};
  invalid[6].purpose = {.channel = Purpose::kControl, .connection = 1};
  invalid[7].connections = 0;
  invalid[8].connections = kMaxConnections + 1;
  for (const Header& header : invalid) {
    EXPECT_EQ(RawCaller(listeners.At(1), header).ReadCode(), Answer::Code::kWrongRank);
  }
  EXPECT_EQ(counters.Get("transport_refused_place"), invalid.size());
  waiting.join();
}

TEST(ConnectTest, GarbageAndSilenceDoNotBlock) {
  Counters counters;
  Listeners listeners(3, {.counters = &counters});
  std::vector<std::unique_ptr<RawCaller>> silent, garbage;
  for (const auto& listener : listeners.each) {
    silent.push_back(std::make_unique<RawCaller>(*listener));
    silent.back()->Send(BytesOf(MakeHeader(1, 3)).substr(0, sizeof(Header) / 2));
    silent.push_back(std::make_unique<RawCaller>(*listener));
    garbage.push_back(std::make_unique<RawCaller>(*listener));
    garbage.back()->Send("GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n");
  }
  ExpectConnects(listeners, Generation(1));
  for (const auto& caller : garbage) EXPECT_EQ(caller->ReadToEnd(), "");
  EXPECT_EQ(counters.Snapshot(),
            (std::map<std::string, uint64_t>{{"transport_garbage_closed", 3}}));
}

TEST(ConnectTest, ClosesGarbageAndIncompleteHeaders) {
  Counters counters;
  const auto listener = Listen({.counters = &counters});
  ASSERT_TRUE(listener->Expect(Generation(1), 0, 2, nullptr).ok());
  const RawCaller garbage(*listener);
  garbage.Send(std::string(3000, '\xff'));
  EXPECT_EQ(garbage.ReadToEnd(), "");
  RawCaller(*listener).Send(BytesOf(MakeHeader(1)).substr(0, 20));
  // A connection without any bytes, such as a port scan, does not count as garbage.
  { const RawCaller empty(*listener); }
  const absl::Time until = absl::Now() + absl::Seconds(10);
  while (counters.Get("transport_garbage_closed") < 2 && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(counters.Get("transport_garbage_closed"), 2U);
}

// A caller whose header remains incomplete is dropped when its time is over, and so is a caller
// whose generation does not begin.
TEST(ConnectTest, DropsSlowAndWaitingCallers) {
  Counters counters;
  const auto listener = Listen({.wait_timeout = absl::Milliseconds(100), .counters = &counters});
  const RawCaller silent(*listener);
  const RawCaller slow(*listener);
  const RawCaller waiting(*listener, MakeHeader(1));
  EXPECT_EQ(silent.ReadToEnd(), "");
  // Bytes do not prolong the time.
  EXPECT_LT(slow.SendSlowly(slow.Signed(MakeHeader(1))), sizeof(Header));
  EXPECT_EQ(waiting.ReadToEnd(), "");
  EXPECT_EQ(counters.Get("transport_handshake_timeouts"), 2U);
}

// Both addresses are on the loopback interface.
Socket ConnectFrom(const char* source, int port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET};
  EXPECT_EQ(inet_pton(AF_INET, source, &address.sin_addr), 1);
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);
  EXPECT_EQ(bind(socket.fd(), raw, sizeof address), 0);
  EXPECT_EQ(inet_pton(AF_INET, "127.0.0.1", &address.sin_addr), 1);
  address.sin_port = htons(port);
  EXPECT_EQ(connect(socket.fd(), raw, sizeof address), 0);
  TuneConnection(socket);
  return socket;
}

// A host with many connections loses its own.
TEST(ConnectTest, DropsOldestOfBusiestHostBeyondLimit) {
  Listeners listeners(2, {.wait_timeout = absl::Minutes(1), .max_waiting = 4});
  const RawCaller quiet(listeners.At(0));
  std::vector<std::unique_ptr<RawCaller>> callers;
  for (int i = 0; i < 20; ++i) {
    callers.push_back(
        std::make_unique<RawCaller>(ConnectFrom("127.0.0.2", listeners.At(0).port())));
  }
  EXPECT_EQ(callers[16]->ReadToEnd(), "");
  quiet.Send(quiet.Signed(MakeHeader(0)));
  ExpectConnects(listeners, Generation(1));
  EXPECT_EQ(quiet.ReadCode(), Answer::Code::kStaleGeneration);
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

// Connects rank 1 to a rank 0 that answers every header with `answer(header)` and then closes the
// connection or leaves it open.
TransportOr ConnectToFalseRank(const std::function<std::string(const Header&)>& answer,
                               bool close) {
  auto listening = ListenOn("127.0.0.1:0");
  EXPECT_TRUE(listening.ok());
  const std::string address = absl::StrCat("127.0.0.1:", *LocalPort(*listening));
  const auto own = Listen();
  TransportOr transport;
  std::atomic<bool> done{false};
  std::thread caller([&] {
    transport = ConnectGroup(*own, Generation(1), 1, {address, own->address()},
                             Within(absl::Milliseconds(500)));
    done = true;
  });
  std::vector<Socket> open;
  while (!done) {
    pollfd entry{.fd = listening->fd(), .events = POLLIN};
    if (poll(&entry, 1, 5) <= 0) continue;
    Socket socket(accept(listening->fd(), nullptr, nullptr));
    std::string header;
    SendWhole(socket, BytesOf(Greeting())).IgnoreError();
    // The caller may have closed the connection already.
    if (!ReadUntil(socket, sizeof(Header), &header).value_or(false)) continue;
    const std::string bytes = answer(FromBytes<Header>(header));
    send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (!close) open.push_back(std::move(socket));
  }
  caller.join();
  return transport;
}

std::string Accepted(const SecretKey& key, const Header& header, absl::string_view wakeup = "") {
  Answer answer{.host = HostIdentity()};
  answer.wakeups.fill(FixedText<64>(wakeup));
  Sign(key, answer, header.tag);
  return std::string(BytesOf(answer));
}

TEST(FalseRankTest, InvalidAnswersEndAttempt) {
  const struct {
    std::function<std::string(const Header&)> answer;
    bool close;
    absl::StatusCode code;
    const char* message;
  } cases[] = {
      {[](const Header&) { return std::string(sizeof(Answer), '\xff'); }, false,
       absl::StatusCode::kFailedPrecondition, "key"},
      {[](const Header& header) { return Accepted({}, header); }, false,
       absl::StatusCode::kFailedPrecondition, "key"},
      // An answer to another header.
      {[](const Header&) { return Accepted(kKey, Header{}); }, false,
       absl::StatusCode::kFailedPrecondition, "key"},
      // Before the answer, a closed connection is retried.
      {[](const Header&) { return std::string(); }, true, absl::StatusCode::kDeadlineExceeded,
       "rank 0"},
      {[](const Header& header) {
         return header.purpose == Purpose{} ? Accepted(kKey, header) : std::string();
       },
       true, absl::StatusCode::kAborted, "rank 0 closed its connection"},
  };
  for (const auto& given : cases) {
    const absl::Status status = ConnectToFalseRank(given.answer, given.close).status();
    EXPECT_EQ(status.code(), given.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(given.message));
  }
}

// A rank that does not use the memory, and one that used it and has ended since.
TEST(FalseRankTest, AnswerSettlesKindOfLink) {
  for (const bool memory : {false, true}) {
    const auto transport = ConnectToFalseRank(
        [=](const Header& header) { return Accepted(kKey, header, memory ? "none" : ""); }, false);
    ASSERT_TRUE(transport.ok()) << transport.status();
    EXPECT_EQ((*transport)->link(0), memory ? LinkKind::kSharedMemory : LinkKind::kTcp);
  }
}

}  // namespace
}  // namespace cadre
