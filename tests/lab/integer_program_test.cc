#include "lab/integer_program.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace cadre {
namespace {

TEST(IntegerProgramTest, Knapsack) {
  // Values 10, 13, 7 with sizes 5, 7, 4 and capacity 11: the first two do not fit together.
  IntegerProgram program;
  const int a = program.AddBinary(-10);
  const int b = program.AddBinary(-13);
  const int c = program.AddBinary(-7);
  program.AddRow({{a, 5}, {b, 7}, {c, 4}}, '<', 11);
  const auto answer = program.Minimise(10);
  ASSERT_EQ(answer.outcome, IntegerProgram::Outcome::kOptimal);
  EXPECT_NEAR(answer.bound, -20, 1e-6);
  EXPECT_NEAR(answer.values[0], 0, 1e-6);
  EXPECT_NEAR(answer.values[1], 1, 1e-6);
  EXPECT_NEAR(answer.values[2], 1, 1e-6);
}

TEST(IntegerProgramTest, Infeasible) {
  IntegerProgram program;
  const int x = program.AddBinary(1);
  const int y = program.AddVariable(0, 10);
  program.AddRow({{x, 2}, {y, 1}}, '>', 13);
  EXPECT_EQ(program.Minimise(10).outcome, IntegerProgram::Outcome::kInfeasible);
  // Only fractions satisfy this row.
  IntegerProgram whole;
  const int p = whole.AddBinary();
  const int q = whole.AddBinary();
  whole.AddRow({{p, 2}, {q, 2}}, '=', 1);
  EXPECT_EQ(whole.Minimise(10).outcome, IntegerProgram::Outcome::kInfeasible);
}

TEST(IntegerProgramTest, MixedIntegers) {
  // A fixed cost of 3 covers 4 units; further units cost 1 each.
  IntegerProgram program;
  const int x = program.AddVariable(0, 8, 1);
  const int buy = program.AddBinary(3);
  program.AddRow({{x, 1}, {buy, 4}}, '>', 5.5);
  const auto answer = program.Minimise(10);
  ASSERT_EQ(answer.outcome, IntegerProgram::Outcome::kOptimal);
  EXPECT_NEAR(answer.values[0], 1.5, 1e-6);
  EXPECT_NEAR(answer.values[1], 1, 1e-6);
}

// Balancing 60 loads over 7 devices takes much longer than the limit.
TEST(IntegerProgramTest, TimeLimit) {
  IntegerProgram program;
  std::mt19937_64 random(3);
  const int max_load = program.AddVariable(0, 1e6, 1);
  std::vector<IntegerProgram::Terms> loads(7, {{max_load, -1}});
  double sum = 0;
  for (int i = 0; i < 60; ++i) {
    IntegerProgram::Terms one;
    const double load = 1000 + random() % 9000;
    sum += load;
    for (auto& terms : loads) {
      const int placed = program.AddBinary();
      one.push_back({placed, 1});
      terms.push_back({placed, load});
    }
    program.AddRow(one, '=', 1);
  }
  for (const auto& terms : loads) program.AddRow(terms, '<', 0);
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const auto answer = program.Minimise(0.05);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(answer.outcome, IntegerProgram::Outcome::kStopped);
  EXPECT_LE(answer.bound, std::ceil(sum / 7) + 1);
}

}  // namespace
}  // namespace cadre
