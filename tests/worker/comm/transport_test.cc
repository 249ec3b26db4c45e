// The contract of transport.h, on every transport.
#include "worker/comm/transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/worker/comm/ranks.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> Pattern(size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((i * 131 + (i >> 8) + static_cast<size_t>(seed)) & 0xff);
  }
  return bytes;
}

class TransportTest : public ::testing::TestWithParam<Wire> {
 protected:
  Transports Make(int ranks, absl::Duration timeout = absl::Seconds(30)) {
    return MakeTransports(GetParam(), ranks, timeout);
  }
};

TEST_P(TransportTest, KnowsItsPlace) {
  const Transports group = Make(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group[static_cast<size_t>(rank)]->rank(), rank);
    EXPECT_EQ(group[static_cast<size_t>(rank)]->size(), 3);
    EXPECT_TRUE(group[static_cast<size_t>(rank)]->status().ok());
  }
}

TEST_P(TransportTest, KeepsTheOrderOfMessages) {
  const Transports group = Make(2);
  OnRanks(2, [&](int rank) {
    for (int i = 0; i < 200; ++i) {
      // All sizes around the header's, zero among them.
      const auto sent = Pattern(static_cast<size_t>(i), i);
      const auto tag = static_cast<uint64_t>(i);
      if (rank == 0) {
        ASSERT_TRUE(group[0]->Send(1, tag, sent).ok());
      } else {
        std::vector<std::byte> got(sent.size());
        ASSERT_TRUE(group[1]->Receive(0, tag, got).ok());
        ASSERT_EQ(got, sent);
      }
    }
  });
}

// Far more than any socket buffer: two plain sends would wait for one another for ever.
TEST_P(TransportTest, ExchangesLargeMessagesAroundARing) {
  constexpr size_t kBytes = 24 << 20;
  const Transports group = Make(3);
  OnRanks(3, [&](int rank) {
    const auto sent = Pattern(kBytes + static_cast<size_t>(rank), rank);
    const int from = (rank + 2) % 3;
    std::vector<std::byte> got(kBytes + static_cast<size_t>(from));
    const absl::Status status =
        group[static_cast<size_t>(rank)]->Exchange((rank + 1) % 3, sent, from, got, 5);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(got == Pattern(got.size(), from));
  });
}

TEST_P(TransportTest, ExchangesLargeMessagesBetweenTwo) {
  const Transports group = Make(2);
  OnRanks(2, [&](int rank) {
    // Very different sizes: one side is done long before the other.
    const size_t sizes[] = {16 << 20, 3};
    const auto sent = Pattern(sizes[rank], rank);
    std::vector<std::byte> got(sizes[1 - rank]);
    for (uint64_t tag = 0; tag < 3; ++tag) {
      const absl::Status status =
          group[static_cast<size_t>(rank)]->Exchange(1 - rank, sent, 1 - rank, got, tag);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(got == Pattern(got.size(), 1 - rank));
    }
  });
}

TEST_P(TransportTest, WrongTagKillsTheGroupAndNamesBoth) {
  const Transports group = Make(3);
  const auto bytes = Pattern(8, 0);
  ASSERT_TRUE(group[0]->Send(1, 0xabc, bytes).ok());
  std::vector<std::byte> got(8);
  const absl::Status status = group[1]->Receive(0, 0xdef, got);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("0000000000000abc"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("0000000000000def"));
  // The first error is the last word.
  EXPECT_EQ(group[1]->Send(0, 1, bytes), status);
  EXPECT_EQ(group[1]->status(), status);
  // A rank that had nothing to do with it learns of it, whomever it waits for.
  EXPECT_EQ(group[2]->Receive(0, 1, got).code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportTest, WrongLengthKillsTheGroupAndNamesBoth) {
  for (const size_t expected : {7, 9, 0}) {
    const Transports group = Make(2);
    ASSERT_TRUE(group[0]->Send(1, 1, Pattern(8, 0)).ok());
    std::vector<std::byte> got(expected);
    const absl::Status status = group[1]->Receive(0, 1, got);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("sent 8 bytes"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("expects ", expected)));
  }
}

TEST_P(TransportTest, TimesOutWhenNothingMoves) {
  const Transports group = Make(3, absl::Milliseconds(50));
  std::vector<std::byte> got(8);
  const absl::Time start = absl::Now();
  const absl::Status status = group[0]->Receive(2, 1, got);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2"));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(50));
  EXPECT_EQ(group[1]->Receive(2, 1, got).code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportTest, TimesOutWhenNobodyReceives) {
  const Transports group = Make(2, absl::Milliseconds(50));
  const auto bytes = Pattern(8 << 20, 0);
  absl::Status status;
  // A bounded number of bounded messages fits into the wire; then the sender waits.
  for (int i = 0; i < 100 && status.ok(); ++i) status = group[0]->Send(1, 1, bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(TransportTest, AbortWakesAWaitingCallAndTellsThePeers) {
  const Transports group = Make(3);
  OnRanks(4, [&](int thread) {
    std::vector<std::byte> got(8);
    if (thread == 3) {
      absl::SleepFor(absl::Milliseconds(20));
      group[0]->Abort(absl::AbortedError("the group is over"));
      return;
    }
    // Nobody sends anything. Rank 1 waits for rank 2, not for the one that aborts.
    const absl::Status status =
        group[static_cast<size_t>(thread)]->Receive(thread == 2 ? 1 : 2, 1, got);
    if (thread == 2) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    } else if (thread == 0) {
      EXPECT_EQ(status, absl::AbortedError("the group is over"));
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    }
  });
  EXPECT_EQ(group[0]->Send(1, 2, Pattern(1, 0)), absl::AbortedError("the group is over"));
}

TEST_P(TransportTest, AbortBeforeACall) {
  const Transports group = Make(2);
  group[0]->Abort(absl::CancelledError("stopping"));
  group[0]->Abort(absl::InternalError("a second reason"));
  EXPECT_EQ(group[0]->Send(1, 1, Pattern(1, 0)), absl::CancelledError("stopping"));
}

// A rank that is done may go, though others are still busy with one another.
TEST_P(TransportTest, LeavingDisturbsOnlyThoseThatNeedMore) {
  Transports group = Make(3);
  const auto last = Pattern(100'000, 3);
  ASSERT_TRUE(group[0]->Send(1, 1, last).ok());
  ASSERT_TRUE(group[0]->Send(1, 2, {}).ok());
  group[0].reset();
  // Ranks 1 and 2 wait for one another while rank 0's end is visible to both.
  OnRanks(2, [&](int i) {
    const int rank = i + 1;
    std::vector<std::byte> got(5);
    for (uint64_t tag = 0; tag < 20; ++tag) {
      if (rank == 2) absl::SleepFor(absl::Milliseconds(1));
      const absl::Status status = group[static_cast<size_t>(rank)]->Exchange(
          3 - rank, Pattern(5, rank), 3 - rank, got, tag);
      ASSERT_TRUE(status.ok()) << status;
    }
  });
  // What rank 0 sent before it went is still there.
  std::vector<std::byte> got(last.size());
  ASSERT_TRUE(group[1]->Receive(0, 1, got).ok());
  EXPECT_TRUE(got == last);
  ASSERT_TRUE(group[1]->Receive(0, 2, {}).ok());
  const absl::Status status = group[1]->Receive(0, 3, got);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 has left"));
}

INSTANTIATE_TEST_SUITE_P(Wires, TransportTest, ::testing::Values(Wire::kThreads, Wire::kTcp),
                         [](const auto& info) { return WireName(info.param); });

}  // namespace
}  // namespace cadre
