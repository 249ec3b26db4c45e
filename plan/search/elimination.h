// Minimises a sum of terms over discrete variables; every term depends on one or two variables. A
// plan's cost is such a sum: layers are variables, the ways to split a layer are its options, and
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

// A sum to minimise.
struct SumProblem {
  // Cost by variable and option; every variable has at least one option.
  std::vector<std::vector<double>> unary;
  // Memory by variable and option, of which MinimiseWithin limits the sum; empty: not used.
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

struct EliminationStep {
  int variable = 0;
  // The variable's neighbours at its elimination, which are all eliminated later. The term that
  // the step creates has one dimension per neighbour, in this order.
  std::vector<int> scope;
};
using EliminationOrder = std::vector<EliminationStep>;
// An order for a problem with these pairs: always a variable with the fewest neighbours is next.
EliminationOrder MinDegreeOrder(int variables, const std::vector<std::pair<int, int>>& pairs);

// A choice of options and its sum.
struct SumSolution {
  // Option of each variable.
  std::vector<int> choice;
  double sum = 0;
  int64_t bytes = 0;
  // Whether it is certain that no other choice (within the limit, if any) has a smaller sum.
  bool exact = true;
  // A lower bound on all sums.
  double bound = 0;
  // Number of table entries that were computed.
  int64_t states = 0;
};

// Returns the choice of minimum sum, or an approximation with `exact` false if the minimum would
// take a term of more than `max_states` entries. Requires: `order` was made from the problem's
// pairs.
SumSolution Minimise(const SumProblem& problem, const EliminationOrder& order, int64_t max_states);

// A limit on the bytes of a choice, and how much effort to spend on it.
struct ByteLimit {
  int64_t bytes = 0;
  // Solutions with a larger sum need not be found.
  double max_sum = std::numeric_limits<double>::infinity();
  // Pareto labels (elimination.cc) are computed only if entries and options have at most so many
  // combinations. At most `max_labels` labels per entry are kept.
  int64_t max_work = 100'000;
  size_t max_labels = 64;
  // Input: a guess of the multiplier (seconds per byte) at which the minimum sum fits; 0: none.
  // Output: the last multiplier tried.
  double price = 0;
};

// Returns the minimum sum of the choices whose bytes are within the limit; nullopt if there are
// none, or if all their sums exceed max_sum. Requires: `unlimited` is the result of Minimise.
std::optional<SumSolution> MinimiseWithin(const SumProblem& problem, const EliminationOrder& order,
                                          int64_t max_states, const SumSolution& unlimited,
                                          ByteLimit& limit);

double SumOf(const SumProblem& problem, std::span<const int> choice);
int64_t BytesOf(const SumProblem& problem, std::span<const int> choice);
// The minimum bytes of all choices.
int64_t MinBytes(const SumProblem& problem);

}  // namespace cadre
