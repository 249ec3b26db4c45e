// The transport over links with partial transfers and over faulty control connections.
#include "comm/transport/link_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <numeric>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "comm/transport/suspects.h"
#include "tests/comm/transport/messages.h"
#include "tests/comm/transport/ranks.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// Bytes in flight from one rank to another.
class Pipe {
 public:
  void Put(std::span<const std::byte> data) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    bytes_.insert(bytes_.end(), data.begin(), data.end());
  }
  // Copies at most `limit` bytes.
  Bytes Peek(size_t limit) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return {bytes_.begin(), bytes_.begin() + std::min(limit, bytes_.size())};
  }
  void Drop(size_t count) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    bytes_.erase(bytes_.begin(), bytes_.begin() + count);
  }

 private:
  mutable absl::Mutex mutex_;
  std::deque<std::byte> bytes_ ABSL_GUARDED_BY(mutex_);
};

// Moves a few bytes per call; Peek returns them at addresses where no element is aligned.
class SlowLink final : public Link {
 public:
  SlowLink(std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in)
      : out_(std::move(out)), in_(std::move(in)), peeked_(64) {}

  LinkKind kind() const override { return LinkKind::kTcp; }
  absl::StatusOr<size_t> Write(std::span<const std::byte> first,
                               std::span<const std::byte> second) override {
    Bytes all(first.begin(), first.end());
    all.insert(all.end(), second.begin(), second.end());
    all.resize(std::min(all.size(), Few()));
    out_->Put(all);
    return all.size();
  }
  absl::StatusOr<size_t> Read(std::span<std::byte> into) override {
    const Bytes bytes = in_->Peek(std::min(into.size(), Few()));
    std::copy(bytes.begin(), bytes.end(), into.begin());
    in_->Drop(bytes.size());
    return bytes.size();
  }
  absl::StatusOr<std::span<const std::byte>> Peek(size_t limit) override {
    const Bytes bytes = in_->Peek(std::min(limit, Few()));
    std::copy(bytes.begin(), bytes.end(), peeked_.begin() + 1);
    return std::span<const std::byte>(peeked_).subspan(1, bytes.size());
  }
  void Consume(size_t bytes) override { in_->Drop(bytes); }
  bool PrepareWait(bool, bool, std::vector<pollfd>&) override { return false; }
  void EndWait() override {}
  void Shutdown() override {}

 private:
  size_t Few() { return 1 + (calls_++ * 7) % 23; }

  const std::shared_ptr<Pipe> out_;
  const std::shared_ptr<Pipe> in_;
  Bytes peeked_;
  size_t calls_ = 0;
};

// Ranks connected by slow links, whose pipes and control connections the test can access.
struct SlowGroup {
  explicit SlowGroup(int ranks) {
    std::vector<std::vector<PeerLinks>> peers(ranks);
    for (auto& row : peers) row.resize(ranks);
    for (int a = 0; a < ranks; ++a) {
      for (int b = a + 1; b < ranks; ++b) {
        int sockets[2];
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
        peers[a][b].control = Socket(sockets[0]);
        peers[b][a].control = Socket(sockets[1]);
        for (int channel = 0; channel < Transport::kChannels; ++channel) {
          const auto forward = std::make_shared<Pipe>();
          const auto backward = std::make_shared<Pipe>();
          pipes.push_back(forward);
          peers[a][b].links[channel] = std::make_unique<SlowLink>(forward, backward);
          peers[b][a].links[channel] = std::make_unique<SlowLink>(backward, forward);
        }
      }
    }
    for (int rank = 0; rank < ranks; ++rank) {
      for (const auto& peer : peers[rank]) controls.push_back(peer.control.fd());
      transports.push_back(
          *MakeLinkTransport(rank, std::move(peers[rank]), *MakeWakeups(), absl::Seconds(30)));
    }
  }

  // The descriptor of the control connection of rank `from` with rank `to`.
  int Control(int from, int to) const { return controls[from * transports.size() + to]; }

  Transports transports;
  // By pair and channel: from the lower rank to the higher.
  std::vector<std::shared_ptr<Pipe>> pipes;
  std::vector<int> controls;
};

void AddDoubles(std::byte* sum, const std::byte* values, size_t bytes) {
  ASSERT_EQ(reinterpret_cast<uintptr_t>(values) % sizeof(double), 0U);
  ASSERT_EQ(reinterpret_cast<uintptr_t>(sum) % sizeof(double), 0U);
  ASSERT_EQ(bytes % sizeof(double), 0U);
  auto* to = reinterpret_cast<double*>(sum);
  const auto* from = reinterpret_cast<const double*>(values);
  for (size_t i = 0; i < bytes / sizeof(double); ++i) to[i] += from[i];
}

TEST(LinkTransportTest, SumsPartialUnalignedElements) {
  const SlowGroup group(2);
  OnRanks(2, [&](int rank) {
    std::vector<double> data(999);
    std::iota(data.begin(), data.end(), rank);
    std::vector<double> total(data.size(), 1.0);
    const Transfer list[] = {SendOf(1 - rank, std::as_bytes(std::span(data))),
                             {.kind = Transfer::Kind::kReceiveSum,
                              .peer = 1 - rank,
                              .data = std::as_writable_bytes(std::span(total))}};
    const absl::Status status = group.transports[rank]->Run(
        1, TagOf(1), list, {.add = AddDoubles, .element = sizeof(double)});
    ASSERT_TRUE(status.ok()) << status;
    for (int i = 0; i < std::ssize(total); ++i) ASSERT_EQ(total[i], 1.0 + i + (1 - rank)) << i;
  });
}

TEST(LinkTransportTest, InvalidHeaderFailsGroup) {
  const SlowGroup group(2);
  group.pipes[0]->Put(Pattern(200, 3));
  Bytes got(8);
  EXPECT_EQ(Receive(*group.transports[1], 0, 1, got),
            WithSuspects(absl::InternalError("rank 0 sent an invalid message header"), {0}));
  EXPECT_EQ(
      Receive(*group.transports[0], 1, 1, got),
      WithSuspects(absl::UnavailableError("rank 1 aborted: rank 0 sent an invalid message header"),
                   {0}));
}

// A control connection that ends without a notice means that the peer is lost. The rank that
// detects it informs all others.
TEST(LinkTransportTest, PeerLossFailsAllChannels) {
  const SlowGroup group(3);
  OnRanks(3 * Transport::kChannels + 1, [&](int thread) {
    if (thread == 3 * Transport::kChannels) {
      absl::SleepFor(absl::Milliseconds(10));
      // The connection between ranks 1 and 2 only.
      shutdown(group.Control(1, 2), SHUT_RDWR);
      return;
    }
    const int rank = thread / Transport::kChannels;
    Bytes got(8);
    const absl::Status status =
        Receive(*group.transports[rank], (rank + 1) % 3, 1, got, thread % Transport::kChannels);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("is lost: it closed the connection"));
    if (rank == 0) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("aborted: rank"));
    }
  });
}

TEST(LinkTransportTest, InvalidControlMessageIsLoss) {
  const SlowGroup group(2);
  const std::string noise(100, 'n');
  ASSERT_EQ(send(group.Control(0, 1), noise.data(), noise.size(), 0), 100);
  Bytes got(8);
  EXPECT_EQ(Receive(*group.transports[1], 0, 1, got),
            WithSuspects(
                absl::UnavailableError("rank 0 is lost: it sent an invalid control message"), {0}));
}

// The next call fails even if it does not involve the rank that has aborted.
TEST(LinkTransportTest, NextCallFails) {
  const SlowGroup group(3);
  group.transports[0]->Abort(absl::AbortedError("over"));
  // Notices are polled once per millisecond.
  absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(Send(*group.transports[1], 2, 1, Pattern(8, 0)),
            WithSuspects(absl::UnavailableError("rank 0 aborted: over"), {0}));
}

TEST(LinkTransportTest, ReportsLinks) {
  const Transports group = MakeThreadTransports(2, absl::Seconds(1));
  EXPECT_EQ(group[0]->link(0), LinkKind::kSelf);
  EXPECT_EQ(group[0]->link(1), LinkKind::kThreads);
}

}  // namespace
}  // namespace cadre
