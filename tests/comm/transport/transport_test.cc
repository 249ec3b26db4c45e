// The contract of transport.h, over every kind of link.
#include "comm/transport/transport.h"
#include "comm/transport/suspects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>

#include "absl/strings/str_cat.h"
#include "tests/comm/transport/messages.h"
#include "tests/comm/transport/ranks.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

class TransportTest : public ::testing::TestWithParam<Wire> {
 protected:
  Transports Make(int ranks, absl::Duration timeout = absl::Seconds(30)) {
    return MakeTransports(GetParam(), ranks, timeout);
  }
};

TEST_P(TransportTest, RankAndSize) {
  const Transports group = Make(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group[rank]->rank(), rank);
    EXPECT_EQ(group[rank]->size(), 3);
    EXPECT_TRUE(group[rank]->status().ok());
    EXPECT_TRUE(group[rank]->Run(0, TagOf(1), {}, {}).ok()) << "an empty list";
  }
}

TEST_P(TransportTest, PreservesMessageOrder) {
  const Transports group = Make(2);
  OnRanks(2, [&](int rank) {
    // All sizes around the size of the header, including zero.
    for (int i = 0; i < 200; ++i) {
      const Bytes sent = Pattern(i, i);
      if (rank == 0) {
        ASSERT_TRUE(Send(*group[0], 1, i, sent).ok());
      } else {
        Bytes got(sent.size());
        ASSERT_TRUE(Receive(*group[1], 0, i, got).ok());
        ASSERT_EQ(got, sent);
      }
    }
  });
}

// Messages larger than any buffer and of different sizes: a transport that executed sends before
// receives would deadlock.
TEST_P(TransportTest, LargeMessagesInRing) {
  const Transports group = Make(3);
  const size_t sizes[] = {24 << 20, 3, 16 << 20};
  OnRanks(3, [&](int rank) {
    const Bytes sent = Pattern(sizes[rank], rank);
    const int from = (rank + 2) % 3;
    Bytes got(sizes[from]);
    const absl::Status status = Exchange(*group[rank], (rank + 1) % 3, sent, from, got, 5);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(got == Pattern(got.size(), from));
  });
}

TEST_P(TransportTest, PollReportsAbort) {
  const Transports group = Make(3);
  EXPECT_EQ(group[0]->Poll(), absl::OkStatus());
  group[1]->Abort(absl::ResourceExhaustedError("out of memory"));
  for (const size_t rank : {0, 2}) {
    const absl::Time until = absl::Now() + absl::Seconds(30);
    while (group[rank]->Poll().ok() && absl::Now() < until) std::this_thread::yield();
    EXPECT_EQ(group[rank]->status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(group[rank]->status().message()), HasSubstr("out of memory"));
  }
}

TEST_P(TransportTest, WrongTagFailsGroup) {
  const Transports group = Make(3);
  const auto bytes = Pattern(8, 0);
  ASSERT_TRUE(Send(*group[0], 1, 17, bytes).ok());
  Bytes got(8);
  const CallTag expected{.collective = Collective::kAllReduce,
                         .algorithm = Algorithm::kRing,
                         .dtype = DType::kFloat32,
                         .members = 3,
                         .sequence = 18,
                         .elements = 2};
  const Transfer receive = ReceiveOf(0, got);
  const absl::Status status = group[1]->Run(0, expected, {&receive, 1}, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  const std::string both = absl::StrCat("rank 0 is at ", TagOf(17).ToString(),
                                        ", 8 bytes; rank 1 at ", expected.ToString(), ", 8 bytes");
  EXPECT_EQ(status.message(), both);
  // The first error is final.
  EXPECT_EQ(Send(*group[1], 0, 1, bytes), status);
  EXPECT_EQ(group[1]->status(), status);
  // The other ranks get the whole message, whichever peer they wait for.
  for (const int rank : {2, 0}) {
    const absl::Status other = Receive(*group[rank], 2 - rank, 1, got);
    EXPECT_EQ(other.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(other.message(), absl::StrCat("rank 1 aborted: ", both));
  }
}

TEST_P(TransportTest, ComparesAllTagFields) {
  const CallTag own{.collective = Collective::kAllReduce,
                    .algorithm = Algorithm::kRing,
                    .dtype = DType::kFloat32,
                    .members = 2,
                    .group = 5,
                    .sequence = 3,
                    .elements = 2};
  std::vector<CallTag> others(7, own);
  others[0].collective = Collective::kBroadcast;
  others[1].algorithm = Algorithm::kButterfly;
  others[2].dtype = DType::kFloat16;
  others[3].members = 3;
  others[4].group = 6;
  others[5].sequence = 4;
  others[6].elements = uint64_t{1} << 40;
  for (const CallTag& other : others) {
    const Transports group = Make(2);
    Bytes bytes = Pattern(8, 0);
    const Transfer send = SendOf(1, bytes);
    ASSERT_TRUE(group[0]->Run(1, other, {&send, 1}, {}).ok());
    const Transfer receive = ReceiveOf(0, bytes);
    const absl::Status status = group[1]->Run(1, own, {&receive, 1}, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(other.ToString()));
    EXPECT_THAT(std::string(status.message()), HasSubstr(own.ToString()));
  }
}

TEST_P(TransportTest, WrongLengthFailsGroup) {
  for (const size_t expected : {7, 9, 0}) {
    const Transports group = Make(2);
    ASSERT_TRUE(Send(*group[0], 1, 1, Pattern(8, 0)).ok());
    Bytes got(expected);
    const absl::Status status = Receive(*group[1], 0, 1, got);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("8 bytes; rank 1"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(", ", expected, " bytes")));
  }
}

TEST_P(TransportTest, ReceiveTimesOut) {
  const Transports group = Make(3, absl::Milliseconds(50));
  Bytes got(8);
  const absl::Time start = absl::Now();
  const absl::Status status = Receive(*group[0], 2, 1, got);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2"));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(50));
  EXPECT_EQ(Receive(*group[1], 2, 1, got).code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportTest, SendTimesOut) {
  const Transports group = Make(2, absl::Milliseconds(50));
  const auto bytes = Pattern(8 << 20, 0);
  absl::Status status;
  // The link buffers a bounded number of bytes; then the sender blocks.
  for (int i = 0; i < 100 && status.ok(); ++i) status = Send(*group[0], 1, 1, bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(TransportTest, AbortBeforeACall) {
  const Transports group = Make(2);
  group[0]->Abort(absl::CancelledError("stopping"));
  group[0]->Abort(absl::InternalError("a second reason"));
  EXPECT_EQ(Send(*group[0], 1, 1, Pattern(1, 0)), absl::CancelledError("stopping"));
}

// A rank may leave while others still exchange messages.
TEST_P(TransportTest, GoodbyeFailsOnlyDependentPeers) {
  Transports group = Make(3);
  const auto last = Pattern(100'000, 3);
  ASSERT_TRUE(Send(*group[0], 1, 1, last).ok());
  ASSERT_TRUE(Send(*group[0], 1, 2, {}).ok());
  group[0].reset();
  // Ranks 1 and 2 exchange messages while both can see that rank 0 has left.
  OnRanks(2, [&](int i) {
    const int rank = i + 1;
    Bytes got(5);
    for (uint32_t tag = 0; tag < 20; ++tag) {
      if (rank == 2) absl::SleepFor(absl::Milliseconds(1));
      const absl::Status status =
          Exchange(*group[rank], 3 - rank, Pattern(5, rank), 3 - rank, got, tag);
      ASSERT_TRUE(status.ok()) << status;
    }
  });
  // Messages that rank 0 sent before it left can still be received.
  Bytes got(last.size());
  ASSERT_TRUE(Receive(*group[1], 0, 1, got).ok());
  EXPECT_TRUE(got == last);
  ASSERT_TRUE(Receive(*group[1], 0, 2, {}).ok());
  const absl::Status status = Receive(*group[1], 0, 3, got);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 has left"));
}

void AddUint32(std::byte* sum, const std::byte* values, size_t bytes) {
  for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
    uint32_t a = 0;
    uint32_t b = 0;
    std::memcpy(&a, sum + i, sizeof a);
    std::memcpy(&b, values + i, sizeof b);
    a += b;
    std::memcpy(sum + i, &a, sizeof a);
  }
}
constexpr Combine kAddUint32{.add = AddUint32, .element = sizeof(uint32_t)};

// A ring all-reduce in place, in which every message depends on another: sums are forwarded while
// they arrive, and intervals are overwritten as soon as they have been sent.
std::vector<Transfer> RingOf(int rank, int ranks, std::span<uint32_t> data) {
  const auto interval = [&](int i) {
    const int k = (i % ranks + ranks) % ranks;
    const size_t begin = data.size() * k / ranks;
    return std::as_writable_bytes(data.subspan(begin, data.size() * (k + 1) / ranks - begin));
  };
  const int next = (rank + 1) % ranks;
  const int last = (rank + ranks - 1) % ranks;
  std::vector<Transfer> list;
  for (int step = 0; step < 2 * (ranks - 1); ++step) {
    const bool sums = step < ranks - 1;
    const int before = std::ssize(list);
    list.push_back({.kind = Transfer::Kind::kSend,
                    .peer = next,
                    .data = interval(rank - step),
                    .after = step == 0 ? Transfer::kNone : before - 1});
    // A received interval is added to the data, or it overwrites an interval that was sent ranks -
    // 1 steps before.
    list.push_back({.kind = sums ? Transfer::Kind::kReceiveSum : Transfer::Kind::kReceive,
                    .peer = last,
                    .data = interval(rank - step - 1),
                    .after = sums ? Transfer::kNone : 2 * (step - (ranks - 1))});
  }
  return list;
}

TEST_P(TransportTest, ForwardsAndOverwritesInPlace) {
  for (const int ranks : {2, 3, 5, 8}) {
    const Transports group = Make(ranks);
    for (const uint32_t elements : {0, 1, 7, 1001, 700'003}) {
      OnRanks(ranks, [&](int rank) {
        std::vector<uint32_t> data(elements);
        for (uint32_t round = 0; round < 3; ++round) {
          for (uint32_t i = 0; i < elements; ++i) data[i] = i * 7 + rank * 1000 + round;
          CallTag tag = TagOf(round);
          tag.elements = elements;
          const absl::Status status =
              group[rank]->Run(1, tag, RingOf(rank, ranks, data), kAddUint32);
          ASSERT_TRUE(status.ok()) << status;
          for (uint32_t i = 0; i < elements; ++i) {
            ASSERT_EQ(data[i], ranks * (i * 7 + round) + 1000 * ranks * (ranks - 1) / 2) << i;
          }
        }
      });
    }
  }
}

// A dissemination barrier requires that empty messages respect dependencies.
TEST_P(TransportTest, EmptyMessagesRespectDependencies) {
  constexpr int kRanks = 4;
  const Transports group = Make(kRanks);
  std::atomic<int> entered{0};
  OnRanks(kRanks, [&](int rank) {
    for (int round = 0; round < 50; ++round) {
      std::vector<Transfer> list;
      for (const int distance : {1, 2}) {
        list.push_back({.kind = Transfer::Kind::kSend,
                        .peer = (rank + distance) % kRanks,
                        .after = list.empty() ? Transfer::kNone : 1});
        list.push_back(
            {.kind = Transfer::Kind::kReceive, .peer = (rank + kRanks - distance) % kRanks});
      }
      ++entered;
      const absl::Status status = group[rank]->Run(0, TagOf(round), list, {});
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_GE(entered.load(), kRanks * (round + 1));
    }
  });
}

// Each receive depends on the next one in the list.
TEST_P(TransportTest, ChainedEmptyMessages) {
  constexpr int kRanks = 4;
  const Transports group = Make(kRanks);
  OnRanks(kRanks, [&](int rank) {
    for (uint32_t round = 0; round < 20; ++round) {
      std::vector<Transfer> list;
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer != rank) list.push_back({.kind = Transfer::Kind::kSend, .peer = peer});
      }
      for (int peer = kRanks - 1; peer >= 0; --peer) {
        if (peer == rank) continue;
        list.push_back(
            {.kind = Transfer::Kind::kReceive,
             .peer = peer,
             .after = list.size() == 5 ? Transfer::kNone : static_cast<int>(list.size()) + 1});
      }
      const absl::Time start = absl::Now();
      const absl::Status status = group[rank]->Run(0, TagOf(round), list, {});
      ASSERT_TRUE(status.ok()) << status;
      // Well before the timeout.
      EXPECT_LT(absl::Now() - start, absl::Seconds(10));
    }
  });
}

TEST_P(TransportTest, ManyMessageSizes) {
  const Transports group = Make(2);
  const size_t sizes[] = {0, 1, 63, 64, 65, 3, 70'000, 8, 0, 1 << 20, 5, 200'000};
  constexpr int kMessages = 3000;
  OnRanks(2, [&](int rank) {
    std::deque<Bytes> sent, got;
    std::vector<Transfer> list;
    for (int i = 0; i < kMessages; ++i) {
      const size_t size = i % 100 < 12 ? sizes[i % 100] : i % 37;
      sent.push_back(Pattern(size, i + rank));
      got.emplace_back(size);
      list.push_back(SendOf(1 - rank, sent.back()));
      list.push_back(ReceiveOf(1 - rank, got.back()));
    }
    const absl::Status status = group[rank]->Run(2, TagOf(1), list, {});
    ASSERT_TRUE(status.ok()) << status;
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(got[i] == Pattern(got[i].size(), i + 1 - rank)) << i;
    }
  });
}

TEST_P(TransportTest, ChannelsAreIndependent) {
  const Transports group = Make(2);
  // More than the link buffers; received only after the other channels are done.
  const auto large = Pattern(16 << 20, 1);
  Bytes got(large.size());
  std::thread sender([&] { EXPECT_TRUE(Send(*group[0], 1, 1, large, 1).ok()); });
  OnRanks(2, [&](int rank) {
    for (uint32_t i = 0; i < 200; ++i) {
      for (const int channel : {0, 2}) {
        Bytes other(1000);
        const absl::Status status =
            Exchange(*group[rank], 1 - rank, Pattern(1000, rank), 1 - rank, other, i, channel);
        ASSERT_TRUE(status.ok()) << status;
        ASSERT_EQ(other, Pattern(1000, 1 - rank));
      }
    }
  });
  EXPECT_TRUE(Receive(*group[1], 0, 1, got, 1).ok());
  sender.join();
  EXPECT_TRUE(got == large);
}

TEST_P(TransportTest, AbortWakesAllChannels) {
  const Transports group = Make(3);
  OnRanks(3 * Transport::kChannels + 1, [&](int thread) {
    if (thread == 3 * Transport::kChannels) {
      absl::SleepFor(absl::Milliseconds(20));
      group[0]->Abort(absl::AbortedError("the group is over"));
      return;
    }
    const int rank = thread / Transport::kChannels;
    Bytes got(8);
    const absl::Status status =
        Receive(*group[rank], (rank + 1) % 3, 1, got, thread % Transport::kChannels);
    EXPECT_EQ(status,
              rank == 0
                  ? absl::AbortedError("the group is over")
                  : WithSuspects(absl::UnavailableError("rank 0 aborted: the group is over"), {0}));
  });
}

TEST_P(TransportTest, AbortEndsBusyThread) {
  const Transports group = Make(3);
  std::atomic<int> moving{0};
  OnRanks(3, [&](int rank) {
    if (rank == 2) {
      while (moving < 2) std::this_thread::yield();
      group[2]->Abort(absl::AbortedError("enough"));
      return;
    }
    // Ranks 0 and 1 need no message of rank 2.
    Bytes got(1000);
    absl::Status status;
    for (uint32_t i = 0; status.ok(); ++i) {
      status = Exchange(*group[rank], 1 - rank, Pattern(1000, 0), 1 - rank, got, i, 1);
      if (i == 100) ++moving;
    }
    EXPECT_EQ(status, WithSuspects(absl::UnavailableError("rank 2 aborted: enough"), {2}));
  });
}

// The others know that they will be released, too, and still whom to suspect.
TEST_P(TransportTest, AReleaseIsKnownFromAFailure) {
  for (const bool released : {false, true}) {
    const Transports group = Make(3);
    group[0]->Abort(released ? absl::CancelledError("the run has ended")
                             : absl::AbortedError("the run has ended"));
    for (const int rank : {1, 2}) {
      Bytes got(8);
      const absl::Status status = Receive(*group[rank], 3 - rank, 1, got);
      EXPECT_EQ(IsOfRelease(status), released) << status;
      EXPECT_EQ(SuspectsOf(status), std::vector<int>{0});
    }
  }
}

TEST_P(TransportTest, TruncatesLongReasons) {
  const Transports group = Make(2);
  group[0]->Abort(absl::InternalError(std::string(100'000, 'x')));
  Bytes got(8);
  const absl::Status status = Receive(*group[1], 0, 1, got);
  EXPECT_EQ(status.message(), absl::StrCat("rank 0 aborted: ", std::string(1024, 'x')));
}

TEST_P(TransportTest, SendAfterGoodbyeFails) {
  Transports group = Make(2);
  group[1].reset();
  absl::Status status;
  const auto bytes = Pattern(100'000, 0);
  for (uint32_t i = 0; i < 1000 && status.ok(); ++i) status = Send(*group[0], 1, i, bytes);
  EXPECT_EQ(status, WithSuspects(absl::UnavailableError("rank 1 has left the group"), {1}));
}

// Sleeps and wakeups in varying order; a lost wakeup would end in a timeout.
TEST_P(TransportTest, NoLostWakeup) {
  constexpr uint32_t kRounds = 20'000;
  const Transports group = Make(2, absl::Seconds(20));
  OnRanks(2, [&](int rank) {
    std::byte byte{};
    uint32_t random = 12345 + rank;
    for (uint32_t i = 0; i < kRounds; ++i) {
      const absl::Status status =
          Exchange(*group[rank], 1 - rank, {&byte, 1}, 1 - rank, {&byte, 1}, i, 1);
      ASSERT_TRUE(status.ok()) << status;
      random = random * 1664525 + 1013904223;
      // Usually no pause; sometimes about as long as a thread spins before it sleeps.
      const uint32_t pause = (random >> 16) % 64;
      if (pause == 0) absl::SleepFor(absl::Microseconds(80));
      if (pause < 8) {
        const absl::Time until = absl::Now() + absl::Nanoseconds(random >> 17);
        while (absl::Now() < until) {
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Wires, TransportTest,
                         ::testing::Values(Wire::kThreads, Wire::kSharedMemory, Wire::kTcp),
                         [](const auto& info) { return WireName(info.param); });

}  // namespace
}  // namespace cadre
