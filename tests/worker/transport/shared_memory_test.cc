// Rings in shared memory: what is one side's is the other's, between threads and between
// processes, and a process that is killed leaves nobody waiting.
#include "worker/transport/shared_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/worker/transport/messages.h"
#include "tests/worker/transport/ranks.h"
#include "worker/transport/link_transport.h"

namespace cadre {
namespace {

struct Ends {
  std::unique_ptr<Wakeup> wakeups[2];
  std::unique_ptr<Link> links[2];
};

Ends MakeEnds(std::shared_ptr<SharedSegment> left, std::shared_ptr<SharedSegment> right,
              int channel = 0) {
  Ends ends;
  for (auto& wakeup : ends.wakeups) wakeup = *Wakeup::Make();
  ends.links[0] =
      MakeSharedMemoryLink(std::move(left), channel, 0,
                           *WakeupHandle::Take(ends.wakeups[1]->name()), LinkKind::kThreads);
  ends.links[1] =
      MakeSharedMemoryLink(std::move(right), channel, 1,
                           *WakeupHandle::Take(ends.wakeups[0]->name()), LinkKind::kThreads);
  return ends;
}

Ends MakeEnds() {
  const auto segment = *SharedSegment::MakeForThreads();
  return MakeEnds(segment, segment);
}

bool Rings(const Wakeup& wakeup) {
  pollfd entry{.fd = wakeup.fd(), .events = POLLIN};
  return poll(&entry, 1, 0) == 1;
}

TEST(WakeupTest, SignaledUntilCleared) {
  const auto wakeup = *Wakeup::Make();
  const auto handle = *WakeupHandle::Take(wakeup->name());
  EXPECT_FALSE(Rings(*wakeup));
  // Far more often than anything is kept: it never blocks.
  for (int i = 0; i < 10'000; ++i) handle.Signal();
  EXPECT_TRUE(Rings(*wakeup));
  wakeup->Clear();
  EXPECT_FALSE(Rings(*wakeup));
  handle.Signal();
  EXPECT_TRUE(Rings(*wakeup));
}

TEST(WakeupTest, UnknownNames) {
  auto wakeup = *Wakeup::Make();
  const std::string name = wakeup->name();
  const auto handle = *WakeupHandle::Take(name);
  wakeup.reset();
  handle.Signal();
  EXPECT_EQ(WakeupHandle::Take(name).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(WakeupHandle::Take("").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(WakeupHandle::Take(std::string(500, 'b')).status().code(), absl::StatusCode::kNotFound);
}

TEST(SharedSegmentTest, OpensByDescription) {
  const auto made = *SharedSegment::Make();
  EXPECT_LE(made->description().size(), 200U);
  const auto opened = SharedSegment::Open(made->description());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const Ends ends = MakeEnds(made, *opened, 1);
  const auto sent = Pattern(1000, 1);
  ASSERT_EQ(*ends.links[0]->Write(sent, {}), 1000U);
  std::vector<std::byte> got(1000);
  ASSERT_EQ(*ends.links[1]->Read(got), 1000U);
  EXPECT_EQ(got, sent);
}

TEST(SharedSegmentTest, RejectsInvalidDescriptions) {
  const auto made = *SharedSegment::Make();
  const std::string nonce = made->description().substr(made->description().rfind(' ') + 1);
  for (const std::string& description :
       {std::string(), std::string("1 2"), std::string("a b c"), absl::StrCat("0 0 ", nonce),
        absl::StrCat(getpid(), " 0 ", nonce), absl::StrCat(getpid(), " 99999 ", nonce),
        made->description().substr(1) + "0"}) {
    EXPECT_FALSE(SharedSegment::Open(description).ok()) << description;
  }
  // Memory of the right kind, but not that one.
  std::string other = made->description();
  other.back() = other.back() == '0' ? '1' : '0';
  EXPECT_EQ(SharedSegment::Open(other).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SharedMemoryLinkTest, PartialWritesAndWrapAround) {
  const Ends ends = MakeEnds();
  constexpr size_t kRing = SharedSegment::kRingBytes;
  const auto sent = Pattern(3 * kRing, 5);
  size_t written = 0;
  size_t read = 0;
  std::vector<std::byte> got(sent.size());
  size_t step = 1;
  while (read < sent.size()) {
    step = step * 3 % 100'003;
    const auto rest = std::span(sent).subspan(written);
    // In two parts, as one.
    const size_t first = std::min(rest.size(), step % 97);
    const size_t second = std::min(rest.size() - first, 2 * step);
    if (first + second > 0) {
      written += *ends.links[0]->Write(rest.first(first), rest.subspan(first, second));
    }
    ASSERT_LE(written - read, kRing);
    read += *ends.links[1]->Read(std::span(got).subspan(read, std::min(got.size() - read, step)));
  }
  EXPECT_TRUE(got == sent);
  // A reader gives room back a little later.
  EXPECT_GE(*ends.links[0]->Write(sent, {}), kRing - kRing / 8);
  EXPECT_EQ(*ends.links[0]->Write(sent, {}), 0U);
}

TEST(SharedMemoryLinkTest, PeekDoesNotConsume) {
  const Ends ends = MakeEnds();
  const auto sent = Pattern(100, 2);
  EXPECT_TRUE(ends.links[1]->Peek(100)->empty());
  ASSERT_EQ(*ends.links[0]->Write(sent, {}), 100U);
  EXPECT_EQ(ends.links[1]->Peek(10)->size(), 10U);
  const auto shown = *ends.links[1]->Peek(1000);
  EXPECT_TRUE(std::equal(shown.begin(), shown.end(), sent.begin(), sent.end()));
  ends.links[1]->Consume(40);
  EXPECT_EQ(ends.links[1]->Peek(1000)->size(), 60U);
}

TEST(SharedMemoryLinkTest, SignalsOnlySleepers) {
  const Ends ends = MakeEnds();
  const auto sent = Pattern(SharedSegment::kRingBytes, 2);
  std::vector<pollfd> polled;
  ASSERT_EQ(*ends.links[0]->Write(std::span(sent).first(8), {}), 8U);
  EXPECT_FALSE(Rings(*ends.wakeups[1]));
  // It is there already: nobody needs to sleep.
  EXPECT_FALSE(ends.links[1]->PrepareWait(true, false, polled));
  ends.links[1]->EndWait();
  std::vector<std::byte> got(8);
  ASSERT_EQ(*ends.links[1]->Read(got), 8U);
  EXPECT_TRUE(ends.links[1]->PrepareWait(true, false, polled));
  EXPECT_TRUE(polled.empty());
  EXPECT_GT(*ends.links[0]->Write(sent, {}), 0U);
  EXPECT_TRUE(Rings(*ends.wakeups[1]));
  ends.links[1]->EndWait();
  // The other way: a writer without room.
  while (*ends.links[0]->Write(sent, {}) > 0) {
  }
  EXPECT_TRUE(ends.links[0]->PrepareWait(false, true, polled));
  got.resize(SharedSegment::kRingBytes / 2);
  EXPECT_GT(*ends.links[1]->Read(got), 0U);
  EXPECT_TRUE(Rings(*ends.wakeups[0]));
  EXPECT_FALSE(ends.links[0]->PrepareWait(false, true, polled));
  ends.links[0]->EndWait();
}

TEST(SharedMemoryLinkTest, DeliversDataSentBeforeClose) {
  Ends ends = MakeEnds();
  std::vector<pollfd> polled;
  EXPECT_TRUE(ends.links[1]->PrepareWait(true, false, polled));
  const auto sent = Pattern(100, 2);
  ASSERT_EQ(*ends.links[0]->Write(sent, {}), 100U);
  ends.wakeups[1]->Clear();
  EXPECT_FALSE(ends.links[1]->PrepareWait(true, false, polled));
  ends.links[0].reset();
  EXPECT_TRUE(Rings(*ends.wakeups[1]));
  std::vector<std::byte> got(100);
  ASSERT_EQ(*ends.links[1]->Read(got), 100U);
  EXPECT_EQ(got, sent);
  EXPECT_FALSE(ends.links[1]->PrepareWait(true, false, polled));
  EXPECT_EQ(ends.links[1]->Read(got).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ends.links[1]->Peek(1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ends.links[1]->Write(sent, {}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(SharedMemoryLinkTest, ShutdownClosesBothEnds) {
  const Ends ends = MakeEnds();
  const auto sent = Pattern(100, 2);
  ASSERT_EQ(*ends.links[0]->Write(sent, {}), 100U);
  ends.links[0]->Shutdown();
  std::vector<std::byte> got(100);
  std::vector<pollfd> polled;
  for (const auto& link : ends.links) {
    EXPECT_EQ(link->Read(got).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(link->Peek(1).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(link->Write(sent, {}).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_FALSE(link->PrepareWait(true, true, polled));
    link->EndWait();
  }
}

// What the two processes of a test tell one another before their transports stand.
void Send(int fd, const std::string& text) {
  ASSERT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}
std::string Receive(int fd, size_t bytes) {
  std::string text(bytes, '\0');
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = read(fd, text.data() + done, bytes - done);
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  return text;
}

using Wakeups = std::array<std::unique_ptr<Wakeup>, Transport::kChannels>;

// The transport of one of two processes that share `segment`. `line`: a socket to the other.
std::unique_ptr<Transport> JoinOther(int rank, const std::shared_ptr<SharedSegment>& segment,
                                     int line, Socket control) {
  Wakeups wakeups;
  std::vector<PeerLinks> peers(2);
  for (auto& wakeup : wakeups) {
    wakeup = *Wakeup::Make();
    Send(line, wakeup->name());
  }
  PeerLinks& peer = peers[1 - rank];
  peer.control = std::move(control);
  for (size_t channel = 0; channel < wakeups.size(); ++channel) {
    auto handle = WakeupHandle::Take(Receive(line, wakeups[channel]->name().size()));
    EXPECT_TRUE(handle.ok()) << handle.status();
    peer.links[channel] = MakeSharedMemoryLink(segment, static_cast<int>(channel), rank,
                                               *std::move(handle), LinkKind::kSharedMemory);
  }
  // A timeout that cannot be what ends the wait.
  auto transport = MakeLinkTransport(rank, std::move(peers), std::move(wakeups), absl::Minutes(5));
  EXPECT_TRUE(transport.ok()) << transport.status();
  return *std::move(transport);
}

// Exchanges large messages until an error, which it returns. `first`: said to `line` after one.
absl::Status ExchangeForEver(Transport& transport, int channel, int line) {
  const auto sent = Pattern(4 << 20, 1);
  std::vector<std::byte> got(sent.size());
  const int peer = 1 - transport.rank();
  absl::Status status;
  for (uint32_t i = 0; status.ok(); ++i) {
    status = Exchange(transport, peer, sent, peer, got, i, channel);
    if (status.ok() && got != sent) return absl::DataLossError("not what was sent");
    if (i == 0 && line >= 0) Send(line, "1");
  }
  return status;
}

TEST(SharedMemoryProcessTest, KilledProcessFailsAllChannels) {
  int lines[2];
  int controls[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, lines), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, controls), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(controls[0]);
    const std::string description = Receive(lines[1], static_cast<size_t>(Receive(lines[1], 1)[0]));
    auto segment = SharedSegment::Open(description);
    if (!segment.ok()) _exit(1);
    const auto transport = JoinOther(1, *segment, lines[1], Socket(controls[1]));
    ExchangeForEver(*transport, 1, lines[1]).IgnoreError();
    _exit(2);
  }
  close(controls[1]);
  const auto segment = *SharedSegment::Make();
  const std::string& description = segment->description();
  Send(lines[0], std::string(1, static_cast<char>(description.size())) + description);
  const auto transport = JoinOther(0, segment, lines[0], Socket(controls[0]));
  EXPECT_EQ(transport->link(1), LinkKind::kSharedMemory);
  std::array<absl::Status, 2> statuses;
  std::array<absl::Time, 2> noticed;
  std::thread moving([&] {
    statuses[0] = ExchangeForEver(*transport, 1, -1);
    noticed[0] = absl::Now();
  });
  std::thread waiting([&] {
    std::vector<std::byte> got(8);
    statuses[1] = Receive(*transport, 1, 1, got, 0);
    noticed[1] = absl::Now();
  });
  ASSERT_EQ(Receive(lines[0], 1), "1");
  const absl::Time killed = absl::Now();
  ASSERT_EQ(kill(child, SIGKILL), 0);
  moving.join();
  waiting.join();
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  close(lines[0]);
  close(lines[1]);
  for (const size_t i : {0U, 1U}) {
    EXPECT_EQ(statuses[i].code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(statuses[i].message()), ::testing::HasSubstr("rank 1 is lost"));
    EXPECT_LT(noticed[i] - killed, absl::Milliseconds(100));
  }
}

}  // namespace
}  // namespace cadre
