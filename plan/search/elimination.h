// Minimises a sum of terms over discrete variables; every term depends on one or two variables. A
// plan's cost is such a sum: layers are variables, the ways to split a layer are its options, and
// the moves between layers are terms of two variables. elimination.cc explains the algorithms.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "plan/search/sum_problem.h"

namespace cadre {

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

}  // namespace cadre
