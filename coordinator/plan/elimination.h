// The least sum of a choice for each of some variables, where every term looks at one variable or
// at two: what a plan costs is such a sum, its variables being the layers and its pairs the moves
// between them.
//
// Variables are eliminated one by one: for every choice of those that it has a term with, the best
// choice of the variable is noted down, and the noted sums are a new term of its neighbours. With a
// chain this is the dynamic programme over it; a network with branches has terms of a few variables
// on its way. It is exact as long as no term has more than `most_states` entries. Beyond, the least
// promising options of the variables concerned are left out, and the answer says so.
//
// Under a limit on a second sum an entry holds every pair of sums that no other pair beats in both,
// if what a price on the second sum finds can be beaten at all.
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
  // Of each variable, by option; at least one each.
  std::vector<std::vector<double>> unary;
  // A second sum, which has only terms of one variable; empty: there is none.
  std::vector<std::vector<int64_t>> bytes;
  struct Pair {
    int a = 0;
    int b = 0;
    // [option of a][option of b]; lent.
    const std::vector<double>* table = nullptr;
  };
  std::vector<Pair> pairs;

  int size() const { return static_cast<int>(unary.size()); }
  size_t options(int v) const { return unary[static_cast<size_t>(v)].size(); }
};

// The order in which variables are eliminated: next is the one that has terms with fewest others.
class EliminationOrder {
 public:
  struct Step {
    int variable = 0;
    // Those that have a term with it, or got one; eliminated later.
    std::vector<int> scope;
  };
  EliminationOrder(int variables, const std::vector<std::pair<int, int>>& pairs);
  const std::vector<Step>& steps() const { return steps_; }

 private:
  std::vector<Step> steps_;
};

struct SumAnswer {
  // Option of each variable.
  std::vector<int> choice;
  double sum = 0;
  int64_t bytes = 0;
  bool exact = true;
  // No sum is less.
  double bound = 0;
  // Entries of all terms that were worked out.
  int64_t states = 0;
};

// Requires: the order is of the problem's pairs.
SumAnswer Minimise(const SumProblem& problem, const EliminationOrder& order, int64_t most_states);

struct ByteLimit {
  int64_t bytes = 0;
  // Sums above are of no interest.
  double worth = std::numeric_limits<double>::infinity();
  // A problem of more combinations of an entry and an option is not searched pair by pair; and an
  // entry holds at most `most_labels`.
  int64_t most_work = 100'000;
  size_t most_labels = 64;
  // Seconds a byte, near the price at which the least sum fits: a guess that saves work, 0 if there
  // is none; set to what was found.
  double price = 0;
};

// The least sum of those whose bytes are within the limit; nothing if there is none, or none that
// is worth it. First bytes are given a price, and the price is sought at which the least sum fits:
// what it costs there is no more than the answer (a Lagrangian bound). Where that leaves a gap, and
// the problem is small enough, pairs of sums close it; otherwise the answer is not exact, and
// `bound` says how far it may be from the least.
// Requires: `free` is the answer of Minimise.
std::optional<SumAnswer> MinimiseWithin(const SumProblem& problem, const EliminationOrder& order,
                                        int64_t most_states, const SumAnswer& free,
                                        ByteLimit& limit);

// The sum of a choice.
double SumOf(const SumProblem& problem, std::span<const int> choice);
int64_t BytesOf(const SumProblem& problem, std::span<const int> choice);
// The least second sum that there is. Requires: the problem has one.
int64_t LeastBytes(const SumProblem& problem);

}  // namespace cadre
