// Minimises a sum of terms over discrete variables, where every term depends on one variable or on
// two. A plan's cost is such a sum: layers are variables, their ways to be split are options, and
// the moves between layers are terms of two variables. elimination.cc explains the algorithms.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace cadre {

struct SumProblem {
  // Cost by variable and option; every variable has at least one option.
  std::vector<std::vector<double>> unary;
  // A second quantity by variable and option, which may be limited; empty: there is none.
  std::vector<std::vector<int64_t>> bytes;
  struct Pair {
    int a = 0;
    int b = 0;
    // [option of a][option of b]; borrowed.
    const std::vector<double>* table = nullptr;
  };
  std::vector<Pair> pairs;

  int size() const { return std::ssize(unary); }
  size_t options(int v) const { return unary[v].size(); }
};

// The order in which variables are eliminated: always one with the fewest neighbours.
class EliminationOrder {
 public:
  struct Step {
    int variable = 0;
    // The variable's neighbours at its elimination, all eliminated later. Their order is that of
    // the dimensions of the term that the step creates.
    std::vector<int> scope;
  };
  EliminationOrder(int variables, const std::vector<std::pair<int, int>>& pairs);
  const std::vector<Step>& steps() const { return steps_; }

 private:
  std::vector<Step> steps_;
};

struct SumSolution {
  // Option of each variable.
  std::vector<int> choice;
  double sum = 0;
  int64_t bytes = 0;
  // No other choice (within the limit, if there is one) has a smaller sum.
  bool exact = true;
  // A lower bound on all sums.
  double bound = 0;
  // Table entries that were computed.
  int64_t states = 0;
};

// The choice of minimum sum; an approximation, with `exact` false, if a term of more than
// `max_states` entries would be needed. Requires: `order` was made from the problem's pairs.
SumSolution Minimise(const SumProblem& problem, const EliminationOrder& order, int64_t max_states);

struct ByteLimit {
  int64_t bytes = 0;
  // The caller has no use for larger sums.
  double max_sum = std::numeric_limits<double>::infinity();
  // Pareto labels are computed only if that takes at most so many combinations of an entry and an
  // option; and at most `max_labels` are kept of an entry.
  int64_t max_work = 100'000;
  size_t max_labels = 64;
  // In: a guess of the multiplier (seconds per byte) at which the minimum sum fits, 0 for none.
  // Out: the last multiplier tried.
  double price = 0;
};

// The minimum sum of the choices whose bytes are within the limit; nothing if there are none, or if
// all of them are above max_sum. Requires: `unlimited` is the result of Minimise.
std::optional<SumSolution> MinimiseWithin(const SumProblem& problem, const EliminationOrder& order,
                                          int64_t max_states, const SumSolution& unlimited,
                                          ByteLimit& limit);

double SumOf(const SumProblem& problem, std::span<const int> choice);
int64_t BytesOf(const SumProblem& problem, std::span<const int> choice);
// The bytes of the choice that needs the fewest.
int64_t MinBytes(const SumProblem& problem);

}  // namespace cadre
