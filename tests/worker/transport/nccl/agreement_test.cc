// Ranks that mean different things are found before NCCL would wait for ever, and those that mean
// the same ask only once.
#include "worker/transport/nccl/nccl_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/worker/transport/ranks.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

class NcclAgreementTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;

  NcclAgreementTest() : hosts_(MakeThreadTransports(kRanks, absl::Seconds(30))) {}

  // What each rank's check says; `sizes[rank]` is what it sends to the next and expects from the
  // one before.
  std::vector<absl::Status> Check(std::array<size_t, kRanks> sends,
                                  std::array<size_t, kRanks> receives,
                                  std::array<Algorithm, kRanks> algorithms) {
    std::vector<absl::Status> said(kRanks);
    OnRanks(kRanks, [&](int rank) {
      const auto i = static_cast<size_t>(rank);
      std::vector<std::byte> memory(1000);
      const std::vector<Transfer> transfers = {
          {Transfer::Kind::kSend, (rank + 1) % kRanks, std::span(memory).first(sends[i])},
          {Transfer::Kind::kReceive, (rank + kRanks - 1) % kRanks,
           std::span(memory).last(receives[i])}};
      const CallTag tag = {.collective = Collective::kAllReduce,
                           .algorithm = algorithms[i],
                           .members = kRanks,
                           .elements = 100};
      said[i] = agreements_[i].Check(Transport::kMoves, tag, transfers);
      if (!said[i].ok()) hosts_[i]->Abort(said[i]);
    });
    return said;
  }

  Transports hosts_;
  std::array<NcclAgreement, kRanks> agreements_ = {
      NcclAgreement(*hosts_[0]), NcclAgreement(*hosts_[1]), NcclAgreement(*hosts_[2])};
};

constexpr Algorithm kRing = Algorithm::kRing;

TEST_F(NcclAgreementTest, EqualPlansCompareOnce) {
  for (const absl::Status& said : Check({8, 8, 8}, {8, 8, 8}, {kRing, kRing, kRing})) {
    EXPECT_EQ(said, absl::OkStatus());
  }
  // The same call again: nobody is asked, so one rank alone need not wait.
  std::vector<std::byte> memory(1000);
  const std::vector<Transfer> transfers = {
      {Transfer::Kind::kSend, 1, std::span(memory).first(8)},
      {Transfer::Kind::kReceive, 2, std::span(memory).last(8)}};
  CallTag tag = {.collective = Collective::kAllReduce,
                 .algorithm = kRing,
                 .members = kRanks,
                 .sequence = 9,
                 .elements = 100};
  EXPECT_EQ(agreements_[0].Check(Transport::kMoves, tag, transfers), absl::OkStatus());
}

// A call that is new to one pair of ranks and old to another: only the first compares, and what
// comes later finds all in step.
TEST_F(NcclAgreementTest, KnownCallsArePerPair) {
  std::vector<std::byte> memory(1000);
  // Rank 0 sends to both others.
  const auto scatter = [&](int rank, size_t to_first, size_t to_second) {
    std::vector<Transfer> transfers;
    if (rank == 0) {
      transfers.push_back({Transfer::Kind::kSend, 1, std::span(memory).first(to_first)});
      transfers.push_back({Transfer::Kind::kSend, 2, std::span(memory).last(to_second)});
    } else {
      transfers.push_back(
          {Transfer::Kind::kReceive, 0, std::span(memory).first(rank == 1 ? to_first : to_second)});
    }
    const CallTag tag = {.collective = Collective::kAllToAll, .members = kRanks};
    return agreements_[rank].Check(Transport::kMoves, tag, transfers);
  };
  for (const auto& [first, second] :
       std::vector<std::pair<size_t, size_t>>{{8, 8}, {8, 16}, {24, 16}, {24, 8}, {32, 32}}) {
    std::vector<absl::Status> said(kRanks);
    OnRanks(kRanks, [&, first = first, second = second](int rank) {
      said[rank] = scatter(rank, first, second);
    });
    for (const absl::Status& each : said) EXPECT_EQ(each, absl::OkStatus()) << first << second;
  }
}

TEST_F(NcclAgreementTest, DifferentLengths) {
  const auto said = Check({8, 8, 8}, {8, 16, 8}, {kRing, kRing, kRing});
  // Both see it; whoever is first tells the other.
  for (const size_t rank : {0, 1}) {
    EXPECT_FALSE(said[rank].ok());
    EXPECT_THAT(
        std::string(said[rank].message()),
        ::testing::AllOf(::testing::AnyOf(HasSubstr("ranks 1 and 0"), HasSubstr("ranks 0 and 1")),
                         HasSubstr("different plans")));
  }
  EXPECT_TRUE(absl::IsInternal(said[0]) || absl::IsInternal(said[1]));
}

TEST_F(NcclAgreementTest, DifferentCalls) {
  const auto said = Check({8, 8, 8}, {8, 8, 8}, {kRing, Algorithm::kButterfly, kRing});
  int named = 0;
  for (const absl::Status& each : said) {
    EXPECT_FALSE(each.ok());
    const std::string text(each.message());
    named += text.find("ring") != std::string::npos && text.find("butterfly") != std::string::npos;
  }
  EXPECT_GT(named, 0);
}

TEST_F(NcclAgreementTest, ComparesNativeIntervals) {
  const std::vector<int> members = {0, 1, 2};
  std::vector<absl::Status> said(kRanks);
  std::vector<std::byte> memory(24);
  const auto check = [&](int rank, int64_t border) {
    const std::vector<std::pair<int64_t, int64_t>> intervals = {{0, border}, {border, 4}, {4, 6}};
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
  OnRanks(kRanks, [&](int rank) { said[rank] = check(rank, 2); });
  for (const absl::Status& each : said) EXPECT_EQ(each, absl::OkStatus());
  OnRanks(kRanks, [&](int rank) {
    const auto i = static_cast<size_t>(rank);
    said[i] = check(rank, rank == 2 ? 3 : 1);
    if (!said[i].ok()) hosts_[i]->Abort(said[i]);
  });
  int found = 0;
  for (const absl::Status& each : said) {
    EXPECT_FALSE(each.ok());
    EXPECT_THAT(std::string(each.message()), HasSubstr("different plans"));
    found += absl::IsInternal(each);
  }
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace cadre
