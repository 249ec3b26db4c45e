// A sum of terms over discrete variables, of which elimination.h finds the minimum, and the order
// in which it eliminates the variables.
//
// Values and pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
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

double SumOf(const SumProblem& problem, std::span<const int> choice);
int64_t BytesOf(const SumProblem& problem, std::span<const int> choice);
// The minimum bytes of all choices.
int64_t MinBytes(const SumProblem& problem);
// Entries of a term with this scope.
int64_t EntriesOf(const SumProblem& problem, std::span<const int> scope);

}  // namespace cadre
