#include "plan/search/sum_problem.h"

#include <algorithm>
#include <set>

namespace cadre {

EliminationOrder MinDegreeOrder(int variables, const std::vector<std::pair<int, int>>& pairs) {
  std::vector<std::set<int>> neighbours(variables);
  for (const auto& [a, b] : pairs) {
    if (a == b) continue;
    neighbours[a].insert(b);
    neighbours[b].insert(a);
  }
  EliminationOrder steps;
  std::set<std::pair<size_t, int>> open;
  for (int v = 0; v < variables; ++v) open.insert({neighbours[v].size(), v});
  while (!open.empty()) {
    const int v = open.begin()->second;
    open.erase(open.begin());
    const std::set<int> scope = std::move(neighbours[v]);
    for (const int n : scope) {
      open.erase({neighbours[n].size(), n});
      neighbours[n].erase(v);
      for (const int m : scope) {
        if (m != n) neighbours[n].insert(m);
      }
      open.insert({neighbours[n].size(), n});
    }
    steps.push_back({v, {scope.begin(), scope.end()}});
  }
  // The variable that is eliminated next varies fastest, so that its step reads terms sequentially.
  std::vector<int> when(variables);
  for (size_t s = 0; s < steps.size(); ++s) when[steps[s].variable] = s;
  for (EliminationStep& step : steps) {
    std::sort(step.scope.begin(), step.scope.end(),
              [&](int a, int b) { return when[a] > when[b]; });
  }
  return steps;
}

double SumOf(const SumProblem& problem, std::span<const int> choice) {
  double sum = 0;
  for (size_t v = 0; v < problem.unary.size(); ++v) sum += problem.unary[v][choice[v]];
  for (const SumProblem::Pair& pair : problem.pairs) {
    sum += (*pair.table)[choice[pair.a] * problem.options(pair.b) + choice[pair.b]];
  }
  return sum;
}

int64_t BytesOf(const SumProblem& problem, std::span<const int> choice) {
  int64_t bytes = 0;
  for (size_t v = 0; v < problem.bytes.size(); ++v) bytes += problem.bytes[v][choice[v]];
  return bytes;
}

int64_t MinBytes(const SumProblem& problem) {
  int64_t sum = 0;
  for (const std::vector<int64_t>& bytes : problem.bytes) {
    sum += *std::min_element(bytes.begin(), bytes.end());
  }
  return sum;
}

int64_t EntriesOf(const SumProblem& problem, std::span<const int> scope) {
  int64_t entries = 1;
  for (const int v : scope) entries *= problem.options(v);
  return entries;
}

}  // namespace cadre
