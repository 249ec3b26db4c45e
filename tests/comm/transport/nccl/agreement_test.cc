// Ranks that make different calls are detected before NCCL would block; ranks that make equal calls
// compare each kind once.
#include "comm/transport/nccl/nccl_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "tests/comm/transport/ranks.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

class NcclAgreementTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;

  // Calls `check` on all ranks; a rank that fails aborts its host transport.
  std::vector<absl::Status> CheckOnRanks(const std::function<absl::Status(int rank)>& check) {
    return StatusesOnRanks(kRanks, [&](int rank) {
      const absl::Status status = check(rank);
      if (!status.ok()) hosts_[rank]->Abort(status);
      return status;
    });
  }

  // A call in which the rank sends `sent` bytes to the next rank and receives `received` bytes from
  // the previous one.
  absl::Status CheckShift(int rank, size_t sent, size_t received, Algorithm algorithm,
                          uint32_t sequence = 0) {
    std::vector<std::byte> memory(1000);
    const std::vector<Transfer> transfers = {
        {Transfer::Kind::kSend, (rank + 1) % kRanks, std::span(memory).first(sent)},
        {Transfer::Kind::kReceive, (rank + kRanks - 1) % kRanks, std::span(memory).last(received)}};
    const CallTag tag = {.collective = Collective::kAllReduce,
                         .algorithm = algorithm,
                         .members = kRanks,
                         .sequence = sequence,
                         .elements = 100};
    return agreements_[rank].Check(Transport::kMoves, tag, transfers);
  }

  // All ranks fail, and at least one of them has detected the difference itself.
  static void ExpectDifference(const std::vector<absl::Status>& statuses) {
    int internal = 0;
    for (const absl::Status& status : statuses) {
      EXPECT_FALSE(status.ok());
      internal += absl::IsInternal(status);
    }
    EXPECT_GT(internal, 0);
  }

  const Transports hosts_ = MakeThreadTransports(kRanks, absl::Seconds(30));
  std::array<NcclAgreement, kRanks> agreements_ = {
      NcclAgreement(*hosts_[0]), NcclAgreement(*hosts_[1]), NcclAgreement(*hosts_[2])};
};

constexpr Algorithm kRing = Algorithm::kRing;

TEST_F(NcclAgreementTest, EqualPlansCompareOnce) {
  const auto statuses = CheckOnRanks([&](int rank) { return CheckShift(rank, 8, 8, kRing); });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, absl::OkStatus());
  // The same call again does not communicate, so one rank alone does not block.
  EXPECT_EQ(CheckShift(0, 8, 8, kRing, 9), absl::OkStatus());
}

// A call that is new to one pair of ranks and known to another: only the first pair compares.
TEST_F(NcclAgreementTest, KnownCallsArePerPair) {
  std::vector<std::byte> memory(1000);
  // Rank 0 sends to both others.
  for (const auto& [first, second] :
       std::vector<std::pair<size_t, size_t>>{{8, 8}, {8, 16}, {24, 16}, {24, 8}, {32, 32}}) {
    const std::array<size_t, kRanks> sizes = {0, first, second};
    const auto statuses = CheckOnRanks([&](int rank) {
      std::vector<Transfer> transfers;
      for (const int peer : {1, 2}) {
        const auto data = std::span(memory).first(sizes[rank == 0 ? peer : rank]);
        if (rank == 0) transfers.push_back({Transfer::Kind::kSend, peer, data});
        if (rank == peer) transfers.push_back({Transfer::Kind::kReceive, 0, data});
      }
      const CallTag tag = {.collective = Collective::kAllToAll, .members = kRanks};
      return agreements_[rank].Check(Transport::kMoves, tag, transfers);
    });
    for (const absl::Status& status : statuses) EXPECT_EQ(status, absl::OkStatus()) << first;
  }
}

TEST_F(NcclAgreementTest, DifferentLengths) {
  const auto statuses =
      CheckOnRanks([&](int rank) { return CheckShift(rank, 8, rank == 1 ? 16 : 8, kRing); });
  // Both ranks can detect it; the first one informs the other.
  for (const int rank : {0, 1}) {
    EXPECT_THAT(
        std::string(statuses[rank].message()),
        ::testing::AllOf(::testing::AnyOf(HasSubstr("ranks 1 and 0"), HasSubstr("ranks 0 and 1")),
                         HasSubstr("different plans")));
  }
  EXPECT_TRUE(absl::IsInternal(statuses[0]) || absl::IsInternal(statuses[1]));
}

TEST_F(NcclAgreementTest, DifferentCalls) {
  const auto statuses = CheckOnRanks(
      [&](int rank) { return CheckShift(rank, 8, 8, rank == 1 ? Algorithm::kButterfly : kRing); });
  ExpectDifference(statuses);
  EXPECT_THAT(statuses, ::testing::Contains(::testing::ResultOf(
                            [](const absl::Status& status) { return status.ToString(); },
                            ::testing::AllOf(HasSubstr("ring"), HasSubstr("butterfly")))));
}

TEST_F(NcclAgreementTest, ComparesNativeIntervals) {
  const std::vector<int> members = AllRanks(kRanks);
  std::vector<std::byte> memory(24);
  const auto check = [&](int rank, int64_t border) {
    const std::vector<Interval> intervals = {{0, border}, {border, 4}, {4, 6}};
    const NativeCall call = {.collective = Collective::kReduceScatter,
                             .members = members,
                             .index = rank,
                             .data = memory,
                             .intervals = intervals};
    const CallTag tag = {.collective = Collective::kReduceScatter,
                         .algorithm = Algorithm::kNative,
                         .members = kRanks,
                         .elements = 6};
    return agreements_[rank].Check(Transport::kBackground, tag, call);
  };
  for (const absl::Status& status : CheckOnRanks([&](int rank) { return check(rank, 2); })) {
    EXPECT_EQ(status, absl::OkStatus());
  }
  const auto statuses = CheckOnRanks([&](int rank) { return check(rank, rank == 2 ? 3 : 1); });
  ExpectDifference(statuses);
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("different plans"));
  }
}

}  // namespace
}  // namespace cadre
