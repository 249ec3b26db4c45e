// What a transport makes of links and control connections that misbehave.
#include "worker/transport/link_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/worker/transport/messages.h"
#include "tests/worker/transport/ranks.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// Bytes on their way from one rank to another.
class Pipe {
 public:
  void Put(std::span<const std::byte> data) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    bytes_.insert(bytes_.end(), data.begin(), data.end());
  }
  // At most `most` bytes, which stay.
  std::vector<std::byte> Poll(size_t most) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto n = static_cast<ptrdiff_t>(std::min(most, bytes_.size()));
    return {bytes_.begin(), bytes_.begin() + n};
  }
  void Drop(size_t count) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    bytes_.erase(bytes_.begin(), bytes_.begin() + count);
  }

 private:
  mutable absl::Mutex mutex_;
  std::deque<std::byte> bytes_ ABSL_GUARDED_BY(mutex_);
};

// Takes and gives a few bytes at a time, and shows them where no element is aligned.
class DribblingLink final : public Link {
 public:
  DribblingLink(std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in)
      : out_(std::move(out)), in_(std::move(in)), shown_(64) {}

  LinkKind kind() const override { return LinkKind::kTcp; }
  absl::StatusOr<size_t> Write(std::span<const std::byte> first,
                               std::span<const std::byte> second) override {
    std::vector<std::byte> all(first.begin(), first.end());
    all.insert(all.end(), second.begin(), second.end());
    all.resize(std::min(all.size(), Few()));
    out_->Put(all);
    return all.size();
  }
  absl::StatusOr<size_t> Read(std::span<std::byte> into) override {
    const auto bytes = in_->Poll(std::min(into.size(), Few()));
    std::copy(bytes.begin(), bytes.end(), into.begin());
    in_->Drop(bytes.size());
    return bytes.size();
  }
  absl::StatusOr<std::span<const std::byte>> Peek(size_t most) override {
    const auto bytes = in_->Poll(std::min(most, Few()));
    std::copy(bytes.begin(), bytes.end(), shown_.begin() + 1);
    return std::span<const std::byte>(shown_).subspan(1, bytes.size());
  }
  void Consume(size_t bytes) override { in_->Drop(bytes); }
  bool PrepareWait(bool, bool, std::vector<pollfd>&) override { return false; }
  void EndWait() override {}
  void Shutdown() override {}

 private:
  size_t Few() { return 1 + (turn_++ * 7) % 23; }

  const std::shared_ptr<Pipe> out_;
  const std::shared_ptr<Pipe> in_;
  std::vector<std::byte> shown_;
  size_t turn_ = 0;
};

// A group over pipes, whose control connections and pipes the test holds.
struct Workshop {
  explicit Workshop(int ranks, absl::Duration timeout = absl::Seconds(30)) {
    const auto n = static_cast<size_t>(ranks);
    std::vector<std::vector<PeerLinks>> peers(n);
    for (auto& row : peers) row.resize(n);
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = a + 1; b < n; ++b) {
        int sockets[2];
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
        peers[a][b].control = Socket(sockets[0]);
        peers[b][a].control = Socket(sockets[1]);
        for (size_t channel = 0; channel < Transport::kChannels; ++channel) {
          const auto there = std::make_shared<Pipe>();
          const auto back = std::make_shared<Pipe>();
          pipes.push_back(there);
          peers[a][b].links[channel] = std::make_unique<DribblingLink>(there, back);
          peers[b][a].links[channel] = std::make_unique<DribblingLink>(back, there);
        }
      }
    }
    for (int rank = 0; rank < ranks; ++rank) {
      for (const auto& peer : peers[rank]) {
        controls.push_back(peer.control.fd());
      }
      std::array<std::unique_ptr<Wakeup>, Transport::kChannels> wakeups;
      for (auto& wakeup : wakeups) wakeup = *Wakeup::Make();
      auto transport = MakeLinkTransport(rank, std::move(peers[rank]), std::move(wakeups), timeout);
      EXPECT_TRUE(transport.ok()) << transport.status();
      group.push_back(*std::move(transport));
    }
  }

  // The descriptor of rank `from`'s control connection with `to`.
  int Control(int from, int to) const {
    return controls[static_cast<size_t>(from) * group.size() + static_cast<size_t>(to)];
  }

  Transports group;
  // Of the pairs, by channel: from the lower rank to the higher.
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
  const Workshop workshop(2);
  OnRanks(2, [&](int rank) {
    std::vector<double> data(999);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<double>(i) + rank;
    const auto bytes = std::as_writable_bytes(std::span(data));
    std::vector<double> total(data.size(), 1.0);
    const Transfer list[] = {{.kind = Transfer::Kind::kSend, .peer = 1 - rank, .data = bytes},
                             {.kind = Transfer::Kind::kReceiveSum,
                              .peer = 1 - rank,
                              .data = std::as_writable_bytes(std::span(total))}};
    const absl::Status status = workshop.group[rank]->Run(
        1, TagOf(1), list, {.add = AddDoubles, .element = sizeof(double)});
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < total.size(); ++i) {
      ASSERT_EQ(total[i], 1.0 + static_cast<double>(i) + (1 - rank)) << i;
    }
  });
}

TEST(LinkTransportTest, InvalidHeaderFailsGroup) {
  const Workshop workshop(2);
  workshop.pipes[0]->Put(Pattern(200, 3));
  std::vector<std::byte> got(8);
  EXPECT_EQ(Receive(*workshop.group[1], 0, 1, got),
            absl::InternalError("rank 0 sent an invalid message header"));
  EXPECT_EQ(Receive(*workshop.group[0], 1, 1, got),
            absl::UnavailableError("rank 1 gave up: rank 0 sent an invalid message header"));
}

// A connection that ends without a word is a death; everybody hears of it, on every channel, from
// whoever saw it.
TEST(LinkTransportTest, PeerLossFailsAllChannels) {
  const Workshop workshop(3);
  OnRanks(3 * Transport::kChannels + 1, [&](int thread) {
    if (thread == 3 * Transport::kChannels) {
      absl::SleepFor(absl::Milliseconds(10));
      // Only between ranks 1 and 2.
      shutdown(workshop.Control(1, 2), SHUT_RDWR);
      return;
    }
    const int rank = thread / Transport::kChannels;
    std::vector<std::byte> got(8);
    const absl::Status status =
        Receive(*workshop.group[rank], (rank + 1) % 3, 1, got, thread % Transport::kChannels);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("is lost: it closed the connection"));
    if (rank == 0) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("gave up: rank"));
    }
  });
}

TEST(LinkTransportTest, InvalidControlMessageIsLoss) {
  const Workshop workshop(2);
  const std::string noise(100, 'n');
  ASSERT_EQ(send(workshop.Control(0, 1), noise.data(), noise.size(), 0), 100);
  std::vector<std::byte> got(8);
  EXPECT_EQ(Receive(*workshop.group[1], 0, 1, got),
            absl::UnavailableError("rank 0 is lost: it sent an invalid control message"));
}

// A call that could do without the dead rank fails as well.
TEST(LinkTransportTest, NextCallFails) {
  const Workshop workshop(3);
  workshop.group[0]->Abort(absl::AbortedError("over"));
  // News are looked for once in a millisecond.
  absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(Send(*workshop.group[1], 2, 1, Pattern(8, 0)),
            absl::UnavailableError("rank 0 gave up: over"));
}

TEST(LinkTransportTest, LinksAndHosts) {
  const Transports group = MakeThreadTransports(2, absl::Seconds(1));
  EXPECT_EQ(group[0]->link(0), LinkKind::kSelf);
  EXPECT_EQ(group[0]->link(1), LinkKind::kThreads);
  EXPECT_EQ(group[0]->host(0), group[0]->host(1));
  EXPECT_EQ(group[0]->host(0), group[1]->host(0));
}

}  // namespace
}  // namespace cadre
