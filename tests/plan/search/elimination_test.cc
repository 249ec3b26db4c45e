#include "plan/search/elimination.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <random>
#include <vector>

namespace cadre {
namespace {

// A random sum in which any two variables may share a term.
struct OwnedSum {
  SumProblem problem;
  std::vector<std::vector<double>> tables;
  std::vector<std::pair<int, int>> pairs;

  EliminationOrder order() const { return MinDegreeOrder(problem.size(), pairs); }
};

OwnedSum RandomSum(std::mt19937& random, int variables, int every) {
  std::uniform_real_distribution<double> cost(0, 1);
  OwnedSum sum;
  for (int v = 0; v < variables; ++v) {
    auto& unary = sum.problem.unary.emplace_back(1 + random() % 4);
    auto& bytes = sum.problem.bytes.emplace_back(unary.size());
    for (double& each : unary) each = cost(random);
    for (int64_t& each : bytes) each = random() % 100;
  }
  for (int a = 0; a < variables; ++a) {
    for (int b = 0; b < variables; ++b) {
      if (a == b || random() % every != 0) continue;
      sum.pairs.emplace_back(a, b);
    }
  }
  for (const auto& [a, b] : sum.pairs) {
    sum.tables.emplace_back(sum.problem.options(a) * sum.problem.options(b));
    for (double& each : sum.tables.back()) each = cost(random);
  }
  for (size_t p = 0; p < sum.pairs.size(); ++p) {
    sum.problem.pairs.push_back({sum.pairs[p].first, sum.pairs[p].second, &sum.tables[p]});
  }
  return sum;
}

double MinSumWithin(const SumProblem& problem, int64_t limit) {
  std::vector<int> choice(problem.unary.size(), 0);
  double minimum = std::numeric_limits<double>::infinity();
  while (true) {
    if (BytesOf(problem, choice) <= limit) minimum = std::min(minimum, SumOf(problem, choice));
    size_t v = 0;
    while (v < choice.size() && ++choice[v] == std::ssize(problem.unary[v])) {
      choice[v++] = 0;
    }
    if (v == choice.size()) return minimum;
  }
}

constexpr int64_t kMany = 1 << 20;

std::optional<SumSolution> Within(const OwnedSum& sum, int64_t max_states, ByteLimit limit) {
  const EliminationOrder order = sum.order();
  const SumSolution free = Minimise(sum.problem, order, max_states);
  if (free.bytes <= limit.bytes) return free;
  return MinimiseWithin(sum.problem, order, max_states, free, limit);
}

TEST(EliminationTest, MinimumSum) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const OwnedSum sum = RandomSum(random, 2 + random() % 5, 1 + round % 6);
    const SumSolution solution = Minimise(sum.problem, sum.order(), kMany);
    EXPECT_TRUE(solution.exact);
    EXPECT_NEAR(solution.sum, MinSumWithin(sum.problem, kMany), 1e-12);
    EXPECT_EQ(solution.bytes, BytesOf(sum.problem, solution.choice));
  }
}

TEST(EliminationTest, MinimumSumWithinLimit) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const OwnedSum sum = RandomSum(random, 2 + random() % 5, 1 + round % 6);
    const int64_t minimum = MinBytes(sum.problem);
    for (const int64_t limit : {minimum, minimum + 10, minimum + 50}) {
      const auto solution = Within(sum, kMany, {.bytes = limit, .max_labels = 10'000});
      ASSERT_TRUE(solution.has_value());
      EXPECT_LE(solution->bytes, limit);
      EXPECT_NEAR(solution->sum, MinSumWithin(sum.problem, limit), 1e-12);
    }
    EXPECT_FALSE(Within(sum, kMany, {.bytes = minimum - 1}).has_value());
  }
}

// The relaxation alone finds a feasible choice and a lower bound.
TEST(EliminationTest, RelaxationBoundsMinimumSum) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    const OwnedSum sum = RandomSum(random, 2 + random() % 5, 1 + round % 6);
    const int64_t limit = MinBytes(sum.problem) + 40;
    const auto solution = Within(sum, kMany, {.bytes = limit, .max_work = 0});
    ASSERT_TRUE(solution.has_value());
    const double minimum = MinSumWithin(sum.problem, limit);
    EXPECT_LE(solution->bytes, limit);
    EXPECT_GE(solution->sum, minimum - 1e-12);
    EXPECT_LE(solution->bound, minimum + 1e-12);
    if (solution->exact) {
      EXPECT_NEAR(solution->sum, minimum, 1e-12);
    }
    const double max_sum = solution->bound - 1e-6;
    EXPECT_TRUE(
        solution->exact ||
        !Within(sum, kMany, {.bytes = limit, .max_sum = max_sum, .max_work = 0}).has_value());
  }
}

// With a limit of states or labels the result is an approximation, which is marked as not exact.
TEST(EliminationTest, ReportsInexactResults) {
  std::mt19937 random(3);
  int inexact = 0;
  for (int round = 0; round < 100; ++round) {
    const OwnedSum sum = RandomSum(random, 6, 1);
    const SumSolution solution = Minimise(sum.problem, sum.order(), 4);
    EXPECT_NEAR(solution.sum, SumOf(sum.problem, solution.choice), 1e-12);
    const double minimum = MinSumWithin(sum.problem, kMany);
    EXPECT_GE(solution.sum, minimum - 1e-12);
    if (solution.exact) {
      EXPECT_NEAR(solution.sum, minimum, 1e-12);
    }
    inexact += solution.exact ? 0 : 1;
    const int64_t limit = MinBytes(sum.problem) + 30;
    const auto within = Within(sum, 4, {.bytes = limit, .max_labels = 2});
    ASSERT_TRUE(within.has_value());
    EXPECT_LE(within->bytes, limit);
  }
  EXPECT_GT(inexact, 50);
}

TEST(EliminationTest, ChainHasScopesOfOne) {
  const EliminationOrder order = MinDegreeOrder(5, {{0, 1}, {1, 2}, {2, 3}, {3, 4}});
  ASSERT_EQ(order.size(), 5U);
  for (const EliminationStep& step : order) EXPECT_LE(step.scope.size(), 1U);
}

TEST(EliminationTest, BranchesHaveScopesOfTwo) {
  const EliminationOrder order =
      MinDegreeOrder(7, {{0, 1}, {0, 2}, {0, 3}, {0, 4}, {1, 5}, {2, 5}, {3, 5}, {4, 5}, {5, 6}});
  for (const EliminationStep& step : order) EXPECT_LE(step.scope.size(), 2U);
}

}  // namespace
}  // namespace cadre
