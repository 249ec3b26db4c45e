// Tests the parts of bench_allreduce on which the validity of its numbers depends: exact data,
// sizes, the compared variants, the fields of a line, and the measuring loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "bench/allreduce/comparison.h"
#include "bench/allreduce/exact_data.h"
#include "tensor/reduce.h"

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

TEST_P(ExactDataTest, SumIsExactInAnyOrder) {
  for (const std::vector<int>& order :
       {std::vector<int>{0}, {0, 1}, {1, 0}, {2, 0, 1}, {4, 3, 2, 1, 0}}) {
    EXPECT_EQ(CountErrors(GetParam(), std::ssize(order), Sum(order)), 0);
  }
}

TEST_P(ExactDataTest, SumIsExactOverMaxRanks) {
  std::vector<int> order;
  for (int rank = kMaxExactRanks - 1; rank >= 0; --rank) order.push_back(rank);
  EXPECT_EQ(CountErrors(GetParam(), kMaxExactRanks, Sum(order)), 0);
}

TEST_P(ExactDataTest, OneWrongBitIsOneError) {
  std::vector<std::byte> sum = Sum({0, 1, 2});
  sum[12'345 * SizeOf(GetParam())] ^= std::byte{1};
  EXPECT_EQ(CountErrors(GetParam(), 3, sum), 1);
}

TEST_P(ExactDataTest, MissingDoubledAndMovedAddendsAreErrors) {
  EXPECT_GT(CountErrors(GetParam(), 2, PartOf(0, 2)), static_cast<int64_t>(kElements / 2));
  std::vector<std::byte> twice = PartOf(0, 2);
  ReferenceSumOf(GetParam()).add(twice.data(), PartOf(0, 2).data(), twice.size());
  EXPECT_GT(CountErrors(GetParam(), 2, twice), static_cast<int64_t>(kElements / 2));
  const size_t element = SizeOf(GetParam());
  std::vector<std::byte> moved = Sum({0, 1});
  std::memmove(moved.data(), moved.data() + 1024 * element, 1024 * element);
  EXPECT_GT(CountErrors(GetParam(), 2, moved), 512);
}

TEST_P(ExactDataTest, EmptyDataHasNoErrors) { EXPECT_EQ(CountErrors(GetParam(), 2, {}), 0); }

INSTANTIATE_TEST_SUITE_P(Types, ExactDataTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const testing::TestParamInfo<DType>& info) {
                           return std::string(DTypeName(info.param));
                         });

TEST(ExactData, ConsistsOfIntegers) {
  std::vector<float> part(1000);
  FillExact(DType::kFloat32, 1, 2, std::as_writable_bytes(std::span(part)));
  EXPECT_THAT(part, testing::Each(testing::AllOf(testing::Ge(0), testing::Le(128))));
  EXPECT_THAT(part, testing::Contains(testing::Gt(100)));
}

// --- sizes ---

TEST(Sizes, ParseUnits) {
  EXPECT_EQ(*ParseBytes("300"), 300);
  EXPECT_EQ(*ParseBytes("1K"), 1024);
  EXPECT_EQ(*ParseBytes("256M"), int64_t{256} << 20);
  EXPECT_EQ(*ParseBytes("16G"), int64_t{16} << 30);
}

TEST(Sizes, RejectOtherText) {
  for (const char* text :
       {"", "K", "0", "-1", "1T", "1.5K", "17G", "99999999999999999999", "1KK"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseBytes(text).status())) << text;
  }
}

TEST(Sizes, GrowByFactorInWholeElements) {
  EXPECT_THAT(*Sizes(1024, 8192, 2, 4), ElementsAre(1024, 2048, 4096, 8192));
  EXPECT_THAT(*Sizes(1024, 9000, 4, 4), ElementsAre(1024, 4096));
  EXPECT_THAT(*Sizes(7, 30, 3, 4), ElementsAre(4, 20));
}

TEST(Sizes, RejectEmptySequence) {
  const auto rejection = [](int64_t min, int64_t max, int64_t factor) {
    return std::string(Sizes(min, max, factor, /*element_bytes=*/4).status().message());
  };
  EXPECT_THAT(rejection(2048, 1024, 2), HasSubstr("--min is more than --max"));
  EXPECT_THAT(rejection(2, 1024, 2), HasSubstr("--min is less than an element"));
  EXPECT_THAT(rejection(1024, 2048, 1), HasSubstr("--factor"));
}

// --- comparison ---

TEST(Comparison, CombinesTransportsAndAlgorithms) {
  const auto comparison =
      MakeComparison({.transports = {"shm", "tcp"}, .algorithms = {"auto", "ring"}});
  EXPECT_THAT(comparison->variants, ElementsAre(Variant{"shm", "auto"}, Variant{"shm", "ring"},
                                                Variant{"tcp", "auto"}, Variant{"tcp", "ring"}));
  EXPECT_EQ(comparison->rows.size(), 4U);
  EXPECT_TRUE(comparison->gloo.empty());
}

TEST(Comparison, MeasuresSharedVariantsOnce) {
  const auto comparison = MakeComparison(
      {.transports = {"tcp", "socket"}, .algorithms = {"ring"}, .compare = {"socket"}});
  EXPECT_THAT(comparison->variants, ElementsAre(Variant{"tcp", "ring"}, Variant{"socket", "copy"}));
  EXPECT_THAT(comparison->socket, ElementsAre(1U));
}

TEST(Comparison, RejectionNamesTheOption) {
  const auto rejection = [](const ComparisonOptions& options) {
    const absl::Status status = MakeComparison(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(rejection({.transports = {"shmem"}, .algorithms = {"ring"}}), HasSubstr("shmem"));
  EXPECT_THAT(rejection({.transports = {"shm"}, .algorithms = {"best"}}), HasSubstr("best"));
  EXPECT_THAT(rejection({.transports = {"shm"}, .algorithms = {}}), HasSubstr("--algorithm"));
  EXPECT_THAT(rejection({.ranks = 0, .transports = {"shm"}, .algorithms = {"ring"}}),
              HasSubstr("--ranks"));
  EXPECT_THAT(rejection({.ranks = 3, .transports = {"socket"}, .algorithms = {"ring"}}),
              HasSubstr("2 ranks"));
  EXPECT_THAT(rejection({.transports = {"shm"}, .algorithms = {"ring"}, .compare = {"mpi"}}),
              HasSubstr("mpi"));
}

Measurement Took(double seconds, const std::string& algorithm) {
  return {.algorithm = algorithm,
          .timing = {.seconds = seconds, .min_seconds = seconds / 2, .rounds = 3, .iterations = 5}};
}

TEST(Line, ComputesBandwidthAsNcclTests) {
  const Comparison comparison{.variants = {{"shm", "ring"}}, .rows = {{{"shm", "ring"}, {0}}}};
  const auto line = Line(comparison, comparison.rows[0], {Took(0.5, "ring")}, 4, DType::kFloat32,
                         1'000'000'000, true);
  EXPECT_DOUBLE_EQ(line.at("algbw"), 2);
  EXPECT_DOUBLE_EQ(line.at("busbw"), 3);
  EXPECT_DOUBLE_EQ(line.at("seconds"), 0.5);
  EXPECT_DOUBLE_EQ(line.at("min_seconds"), 0.25);
  EXPECT_EQ(line.at("errors"), 0);
  EXPECT_FALSE(line.contains("ratio_to_gloo"));
}

TEST(Line, ComparesWithFastestGloo) {
  const Comparison comparison{
      .variants = {{"tcp", "ring"}, {"gloo", "bcube"}, {"gloo", "new-ring"}},
      .rows = {{{"tcp", "ring"}, {0}}},
      .gloo = {1, 2}};
  const auto line =
      Line(comparison, comparison.rows[0], {Took(2, "ring"), Took(9, "bcube"), Took(6, "new-ring")},
           2, DType::kFloat32, 4, true);
  EXPECT_EQ(line.at("gloo_algorithm"), "new-ring");
  EXPECT_DOUBLE_EQ(line.at("ratio_to_gloo"), 3);
}

TEST(Line, ComparesAutoWithBestFixedAlgorithm) {
  const Comparison comparison{
      .variants = {{"tcp", "auto"}, {"tcp", "ring"}, {"tcp", "butterfly"}, {"shm", "ring"}},
      .rows = {{{"tcp", "auto"}, {0}}, {{"tcp", "ring"}, {1}}}};
  const std::vector<Measurement> measured = {Took(4.4, "ring"), Took(4, "ring"),
                                             Took(5, "butterfly"), Took(1, "ring")};
  const auto line = Line(comparison, comparison.rows[0], measured, 2, DType::kFloat32, 4, true);
  EXPECT_EQ(line.at("best_single"), "ring");
  EXPECT_DOUBLE_EQ(line.at("ratio_to_best"), 1.1);
  EXPECT_FALSE(Line(comparison, comparison.rows[1], measured, 2, DType::kFloat32, 4, true)
                   .contains("best_single"));
}

// --- harness ---

TEST(Harness, InterleavesVariantsAndReportsMediansInOrder) {
  std::string order;
  const auto variant = [&order](char name, double seconds) {
    return [&order, name, seconds](int iterations) -> absl::StatusOr<double> {
      order += name;
      return seconds * iterations;
    };
  };
  const auto timings = MeasureInterleaved({variant('a', 0.02), variant('b', 0.001)}, {.rounds = 3});
  EXPECT_EQ(order, "aabbabbaab");  // calibration of each; rounds ab, ba, ab
  EXPECT_DOUBLE_EQ((*timings)[0].seconds, 0.02);
  EXPECT_EQ((*timings)[0].iterations, 1);
  EXPECT_DOUBLE_EQ((*timings)[1].min_seconds, 0.001);
  EXPECT_EQ((*timings)[1].iterations, 5);
}

TEST(Harness, StopsAfterTheGivenTime) {
  const TimedRun slow = [](int) -> absl::StatusOr<double> { return 3.0; };
  EXPECT_EQ((*MeasureInterleaved({slow}, {.rounds = 5, .seconds = 2}))[0].rounds, 1);
}

TEST(Harness, ReturnsTheErrorOfAVariant) {
  const TimedRun broken = [](int) -> absl::StatusOr<double> { return absl::AbortedError("x"); };
  EXPECT_TRUE(absl::IsAborted(MeasureInterleaved({broken}, {}).status()));
}

}  // namespace
}  // namespace cadre::bench
