#include "plan/search/reduced_problem.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace cadre {

ReducedProblem::ReducedProblem(const SumProblem& problem, const EliminationOrder& order,
                               int64_t max_states)
    : full_(problem) {
  const bool fits = std::all_of(order.begin(), order.end(), [&](const auto& s) {
    return EntriesOf(problem, s.scope) <= max_states;
  });
  if (fits) return;
  for (int v = 0; v < problem.size(); ++v) {
    kept_.emplace_back(problem.options(v));
    std::iota(kept_.back().begin(), kept_.back().end(), 0);
  }
  for (const EliminationStep& step : order) {
    while (Entries(step.scope) > max_states) DropWorstOption(step.scope);
  }
  if (changed_) Build();
}

void ReducedProblem::Restore(SumSolution& solution) const {
  if (!changed_) return;
  solution.exact = false;
  for (size_t v = 0; v < kept_.size(); ++v) {
    solution.choice[v] = kept_[v][solution.choice[v]];
  }
}

int64_t ReducedProblem::Entries(const std::vector<int>& scope) const {
  int64_t entries = 1;
  for (const int v : scope) entries *= kept_[v].size();
  return entries;
}

double ReducedProblem::OptimisticCost(int v, int option) const {
  double sum = full_.unary[v][option];
  for (const SumProblem::Pair& pair : full_.pairs) {
    if (pair.a != v && pair.b != v) continue;
    const int other = pair.a == v ? pair.b : pair.a;
    double minimum = std::numeric_limits<double>::infinity();
    for (size_t o = 0; o < full_.options(other); ++o) {
      const size_t at =
          pair.a == v ? option * full_.options(other) + o : o * full_.options(v) + option;
      minimum = std::min(minimum, (*pair.table)[at]);
    }
    sum += minimum;
  }
  return sum;
}

void ReducedProblem::DropWorstOption(const std::vector<int>& scope) {
  changed_ = true;
  const int v = *std::max_element(scope.begin(), scope.end(),
                                  [&](int a, int b) { return kept_[a].size() < kept_[b].size(); });
  std::vector<int>& kept = kept_[v];
  CHECK_GT(kept.size(), 1U);
  // The option of minimum memory stays, so that a feasible problem stays feasible.
  const auto min_bytes = full_.bytes.empty()
                             ? kept.end()
                             : std::min_element(kept.begin(), kept.end(), [&](int a, int b) {
                                 return full_.bytes[v][a] < full_.bytes[v][b];
                               });
  auto worst = kept.end();
  double max_cost = -std::numeric_limits<double>::infinity();
  for (auto o = kept.begin(); o != kept.end(); ++o) {
    const double cost = OptimisticCost(v, *o);
    if (o == min_bytes || cost < max_cost) continue;
    max_cost = cost;
    worst = o;
  }
  kept.erase(worst);
}

void ReducedProblem::Build() {
  for (int v = 0; v < full_.size(); ++v) {
    reduced_.unary.emplace_back();
    for (const int o : kept_[v]) reduced_.unary.back().push_back(full_.unary[v][o]);
    if (full_.bytes.empty()) continue;
    reduced_.bytes.emplace_back();
    for (const int o : kept_[v]) reduced_.bytes.back().push_back(full_.bytes[v][o]);
  }
  tables_.reserve(full_.pairs.size());
  for (const SumProblem::Pair& pair : full_.pairs) {
    tables_.emplace_back();
    for (const int a : kept_[pair.a]) {
      for (const int b : kept_[pair.b]) {
        tables_.back().push_back((*pair.table)[a * full_.options(pair.b) + b]);
      }
    }
    reduced_.pairs.push_back({pair.a, pair.b, &tables_.back()});
  }
}

}  // namespace cadre
