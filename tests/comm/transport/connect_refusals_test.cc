// Callers and ranks that are refused, silent, too many or false.
#include <arpa/inet.h>
#include <glog/logging.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <functional>

#include "absl/strings/str_cat.h"
#include "base/counters.h"
#include "comm/transport/host_identity.h"
#include "comm/transport/tcp_link.h"
#include "tests/comm/transport/connecting.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

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
