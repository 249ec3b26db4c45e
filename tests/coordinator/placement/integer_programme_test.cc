#include "coordinator/placement/integer_programme.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>
#include <vector>

namespace cadre {
namespace {

TEST(IntegerProgrammeTest, AKnapsack) {
  // Worth 10, 13, 7 for 5, 7, 4 of 11: the first and the last but one do not fit together.
  IntegerProgramme programme;
  const int a = programme.AddBinary(-10);
  const int b = programme.AddBinary(-13);
  const int c = programme.AddBinary(-7);
  programme.AddRow({{a, 5}, {b, 7}, {c, 4}}, '<', 11);
  EXPECT_EQ(programme.variables(), 3);
  EXPECT_EQ(programme.rows(), 1);
  const auto answer = programme.Minimise({});
  ASSERT_EQ(answer.outcome, IntegerProgramme::Outcome::kOptimal);
  EXPECT_NEAR(answer.bound, -20, 1e-6);
  EXPECT_NEAR(answer.values[0], 0, 1e-6);
  EXPECT_NEAR(answer.values[1], 1, 1e-6);
  EXPECT_NEAR(answer.values[2], 1, 1e-6);
}

TEST(IntegerProgrammeTest, NothingFulfilsAllRows) {
  IntegerProgramme programme;
  const int x = programme.AddBinary(1);
  const int y = programme.AddVariable(0, 10);
  programme.AddRow({{x, 2}, {y, 1}}, '>', 13);
  EXPECT_EQ(programme.Minimise({}).outcome, IntegerProgramme::Outcome::kInfeasible);
  // Fractions would do; whole numbers do not.
  IntegerProgramme whole;
  const int p = whole.AddBinary();
  const int q = whole.AddBinary();
  whole.AddRow({{p, 2}, {q, 2}}, '=', 1);
  EXPECT_EQ(whole.Minimise({}).outcome, IntegerProgramme::Outcome::kInfeasible);
}

TEST(IntegerProgrammeTest, BinariesBesideOtherNumbers) {
  // A fixed cost of 3 buys 4 units; the rest costs 1 each.
  IntegerProgramme programme;
  const int x = programme.AddVariable(0, 8, 1);
  const int buy = programme.AddBinary(3);
  programme.AddRow({{x, 1}, {buy, 4}}, '>', 5.5);
  const auto answer = programme.Minimise({});
  ASSERT_EQ(answer.outcome, IntegerProgramme::Outcome::kOptimal);
  EXPECT_NEAR(answer.values[0], 1.5, 1e-6);
  EXPECT_NEAR(answer.values[1], 1, 1e-6);
}

// So many loads on so many machines that it cannot be done in a moment.
TEST(IntegerProgrammeTest, OutOfTime) {
  IntegerProgramme programme;
  std::mt19937_64 random(3);
  const int most = programme.AddVariable(0, 1e6, 1);
  std::vector<IntegerProgramme::Terms> loads(7, {{most, -1}});
  double sum = 0;
  for (int i = 0; i < 60; ++i) {
    IntegerProgramme::Terms one;
    const double load = 1000 + static_cast<double>(random() % 9000);
    sum += load;
    for (auto& terms : loads) {
      const int placed = programme.AddBinary();
      one.push_back({placed, 1});
      terms.push_back({placed, load});
    }
    programme.AddRow(one, '=', 1);
  }
  for (const auto& terms : loads) programme.AddRow(terms, '<', 0);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const auto answer = programme.Minimise({.seconds = 0.05});
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(answer.outcome, IntegerProgramme::Outcome::kStopped);
  EXPECT_LE(answer.bound, std::ceil(sum / 7) + 1);
}

}  // namespace
}  // namespace cadre
