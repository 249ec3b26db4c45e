// A problem with fewer options of some variables, so that every term of its elimination fits into
// max_states. Of a term that would have more entries, the scope's variable with the most options
// loses the option with the largest optimistic cost (its own plus the smallest entry of each of its
// pairs), until it fits. The solution is then not exact and has no lower bound.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/search/sum_problem.h"

namespace cadre {

class ReducedProblem {
 public:
  // The problem is borrowed.
  ReducedProblem(const SumProblem& problem, const EliminationOrder& order, int64_t max_states);

  const SumProblem& problem() const { return changed_ ? reduced_ : full_; }
  // Turns a solution of problem() into one of the full problem.
  void Restore(SumSolution& solution) const;

 private:
  int64_t Entries(const std::vector<int>& scope) const;
  double OptimisticCost(int v, int option) const;
  void DropWorstOption(const std::vector<int>& scope);
  void Build();

  const SumProblem& full_;
  std::vector<std::vector<int>> kept_;
  bool changed_ = false;
  SumProblem reduced_;
  std::vector<std::vector<double>> tables_;
};

}  // namespace cadre
