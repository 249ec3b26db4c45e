// The parts of bench_allreduce that decide whether its numbers can be believed: exact data, sizes,
// medians, who takes part, and what a line says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "bench/allreduce/contest.h"
#include "bench/allreduce/exact_data.h"
#include "bench/allreduce/referee.h"
#include "bench/allreduce/sizes.h"
#include "worker/comm/reduce.h"

namespace cadre::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// --- exact data ---

class ExactDataTest : public testing::TestWithParam<DType> {
 protected:
  static constexpr size_t kElements = 30'000;

  std::vector<std::byte> PartOf(int rank, int ranks) const {
    std::vector<std::byte> part(kElements * SizeOf(GetParam()));
    FillExact(GetParam(), rank, ranks, part);
    return part;
  }
  std::vector<std::byte> Sum(const std::vector<int>& order) const {
    const int ranks = static_cast<int>(order.size());
    std::vector<std::byte> sum = PartOf(order[0], ranks);
    for (size_t i = 1; i < order.size(); ++i) {
      ReferenceSumOf(GetParam()).add(sum.data(), PartOf(order[i], ranks).data(), sum.size());
    }
    return sum;
  }
};

TEST_P(ExactDataTest, SumsInAnyOrderAreRight) {
  for (const std::vector<int>& order :
       {std::vector<int>{0}, {0, 1}, {1, 0}, {2, 0, 1}, {4, 3, 2, 1, 0}}) {
    EXPECT_EQ(CountErrors(GetParam(), std::ssize(order), Sum(order)), 0);
  }
}

TEST_P(ExactDataTest, SumsOverTheMostRanksAreRight) {
  std::vector<int> order;
  for (int rank = kMaxExactRanks - 1; rank >= 0; --rank) order.push_back(rank);
  EXPECT_EQ(CountErrors(GetParam(), kMaxExactRanks, Sum(order)), 0);
}

TEST_P(ExactDataTest, OneWrongBitIsOneError) {
  std::vector<std::byte> sum = Sum({0, 1, 2});
  sum[12'345 * SizeOf(GetParam())] ^= std::byte{1};
  EXPECT_EQ(CountErrors(GetParam(), 3, sum), 1);
}

TEST_P(ExactDataTest, LeftOutAddedTwiceOrElsewhereIsSeen) {
  EXPECT_GT(CountErrors(GetParam(), 2, PartOf(0, 2)), static_cast<int64_t>(kElements / 2));
  std::vector<std::byte> twice = PartOf(0, 2);
  ReferenceSumOf(GetParam()).add(twice.data(), PartOf(0, 2).data(), twice.size());
  EXPECT_GT(CountErrors(GetParam(), 2, twice), static_cast<int64_t>(kElements / 2));
  const size_t element = SizeOf(GetParam());
  std::vector<std::byte> moved = Sum({0, 1});
  std::memmove(moved.data(), moved.data() + 1024 * element, 1024 * element);
  EXPECT_GT(CountErrors(GetParam(), 2, moved), 512);
}

TEST_P(ExactDataTest, NothingHasNoErrors) { EXPECT_EQ(CountErrors(GetParam(), 2, {}), 0); }

INSTANTIATE_TEST_SUITE_P(Types, ExactDataTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const testing::TestParamInfo<DType>& info) {
                           return std::string(DTypeName(info.param));
                         });

TEST(ExactData, AreWholeNumbers) {
  std::vector<float> part(1000);
  FillExact(DType::kFloat32, 1, 2, std::as_writable_bytes(std::span(part)));
  EXPECT_THAT(part, testing::Each(testing::AllOf(testing::Ge(0), testing::Le(128))));
  EXPECT_THAT(part, testing::Contains(testing::Gt(100)));
}

// --- sizes ---

TEST(Sizes, AreReadAsPeopleWriteThem) {
  EXPECT_EQ(*ParseBytes("300"), 300);
  EXPECT_EQ(*ParseBytes("1K"), 1024);
  EXPECT_EQ(*ParseBytes("256M"), int64_t{256} << 20);
  EXPECT_EQ(*ParseBytes("16G"), int64_t{16} << 30);
}

TEST(Sizes, OtherTextIsRefused) {
  for (const char* text :
       {"", "K", "0", "-1", "1T", "1.5K", "17G", "99999999999999999999", "1KK"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseBytes(text).status())) << text;
  }
}

TEST(Sizes, GoByTheFactorInWholeElements) {
  EXPECT_THAT(*Sizes(1024, 8192, 2, 4), ElementsAre(1024, 2048, 4096, 8192));
  EXPECT_THAT(*Sizes(1024, 9000, 4, 4), ElementsAre(1024, 4096));
  EXPECT_THAT(*Sizes(7, 30, 3, 4), ElementsAre(4, 20));
}

TEST(Sizes, AnEmptyRowIsRefused) {
  EXPECT_FALSE(Sizes(2048, 1024, 2, 4).ok());
  EXPECT_FALSE(Sizes(2, 1024, 2, 4).ok());
  EXPECT_FALSE(Sizes(1024, 2048, 1, 4).ok());
}

// --- contest ---

TEST(Contest, EveryTransportByEveryAlgorithm) {
  const absl::StatusOr<Contest> contest =
      PlanContest({.transports = {"shm", "tcp"}, .algorithms = {"auto", "ring"}});
  ASSERT_TRUE(contest.ok()) << contest.status();
  EXPECT_THAT(contest->contestants,
              ElementsAre(ContestantName{"shm", "auto"}, ContestantName{"shm", "ring"},
                          ContestantName{"tcp", "auto"}, ContestantName{"tcp", "ring"}));
  EXPECT_EQ(contest->competitors.size(), 4U);
  EXPECT_TRUE(contest->gloo.empty());
}

TEST(Contest, WhatIsComparedWithIsMeasuredOnce) {
  const absl::StatusOr<Contest> contest =
      PlanContest({.transports = {"tcp", "socket"}, .algorithms = {"ring"}, .compare = {"socket"}});
  ASSERT_TRUE(contest.ok()) << contest.status();
  EXPECT_THAT(contest->contestants,
              ElementsAre(ContestantName{"tcp", "ring"}, ContestantName{"socket", "copy"}));
  EXPECT_THAT(contest->socket, ElementsAre(1U));
}

TEST(Contest, WhatCannotBeIsRefusedByName) {
  const auto refusal = [](const ContestOptions& options) {
    const absl::Status status = PlanContest(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({.transports = {"shmem"}, .algorithms = {"ring"}}), HasSubstr("shmem"));
  EXPECT_THAT(refusal({.transports = {"shm"}, .algorithms = {"best"}}), HasSubstr("best"));
  EXPECT_THAT(refusal({.transports = {"shm"}, .algorithms = {}}), HasSubstr("--algorithm"));
  EXPECT_THAT(refusal({.ranks = 0, .transports = {"shm"}, .algorithms = {"ring"}}),
              HasSubstr("--ranks"));
  EXPECT_THAT(refusal({.ranks = 3, .transports = {"socket"}, .algorithms = {"ring"}}),
              HasSubstr("2 ranks"));
  EXPECT_THAT(refusal({.transports = {"shm"}, .algorithms = {"ring"}, .compare = {"mpi"}}),
              HasSubstr("mpi"));
}

Measurement Took(double seconds, const std::string& algorithm) {
  return {.algorithm = algorithm,
          .seconds = seconds,
          .min_seconds = seconds / 2,
          .rounds = 3,
          .iterations = 5};
}

TEST(Line, CountsAsNcclTestsDo) {
  const Contest contest{.contestants = {{"shm", "ring"}}, .competitors = {{{"shm", "ring"}, {0}}}};
  const auto line = Line(contest, contest.competitors[0], {Took(0.5, "ring")}, 4, DType::kFloat32,
                         1'000'000'000, true);
  EXPECT_DOUBLE_EQ(line.at("algbw"), 2);
  EXPECT_DOUBLE_EQ(line.at("busbw"), 3);
  EXPECT_DOUBLE_EQ(line.at("seconds"), 0.5);
  EXPECT_DOUBLE_EQ(line.at("min_seconds"), 0.25);
  EXPECT_EQ(line.at("errors"), 0);
  EXPECT_FALSE(line.contains("ratio_to_gloo"));
}

TEST(Line, ComparesWithTheFastestOfGloo) {
  const Contest contest{.contestants = {{"tcp", "ring"}, {"gloo", "bcube"}, {"gloo", "new-ring"}},
                        .competitors = {{{"tcp", "ring"}, {0}}},
                        .gloo = {1, 2}};
  const auto line =
      Line(contest, contest.competitors[0],
           {Took(2, "ring"), Took(9, "bcube"), Took(6, "new-ring")}, 2, DType::kFloat32, 4, true);
  EXPECT_EQ(line.at("gloo_algorithm"), "new-ring");
  EXPECT_DOUBLE_EQ(line.at("ratio_to_gloo"), 3);
}

TEST(Line, ComparesAutoWithTheBestSinglePolicyOfItsTransport) {
  const Contest contest{
      .contestants = {{"tcp", "auto"}, {"tcp", "ring"}, {"tcp", "butterfly"}, {"shm", "ring"}},
      .competitors = {{{"tcp", "auto"}, {0}}, {{"tcp", "ring"}, {1}}}};
  const std::vector<Measurement> measured = {Took(4.4, "ring"), Took(4, "ring"),
                                             Took(5, "butterfly"), Took(1, "ring")};
  const auto line = Line(contest, contest.competitors[0], measured, 2, DType::kFloat32, 4, true);
  EXPECT_EQ(line.at("best_single"), "ring");
  EXPECT_DOUBLE_EQ(line.at("ratio_to_best"), 1.1);
  EXPECT_FALSE(Line(contest, contest.competitors[1], measured, 2, DType::kFloat32, 4, true)
                   .contains("best_single"));
}

}  // namespace
}  // namespace cadre::bench
