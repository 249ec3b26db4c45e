#include "coordinator/placement/bounds.h"

#include <algorithm>

namespace cadre {
namespace {

// What all before (or behind) an operator take is a sum over sets; beyond so many operators the
// sets are not worth their memory, and the longest way alone is the bound.
constexpr int kMostSets = 2'000;

}  // namespace

std::vector<std::vector<bool>> Reaches(const PlacementProblem& problem) {
  const auto n = static_cast<size_t>(problem.size());
  std::vector<std::vector<bool>> reaches(n, std::vector<bool>(n, false));
  for (auto it = problem.order.rbegin(); it != problem.order.rend(); ++it) {
    std::vector<bool>& row = reaches[static_cast<size_t>(*it)];
    for (const int e : problem.out[static_cast<size_t>(*it)]) {
      const auto to = static_cast<size_t>(problem.edge(e).to);
      row[to] = true;
      for (size_t j = 0; j < n; ++j) {
        if (reaches[to][j]) row[j] = true;
      }
    }
  }
  return reaches;
}

TimeWindows WindowsOf(const PlacementProblem& problem) {
  const auto n = static_cast<size_t>(problem.size());
  const double devices = problem.device_count();
  std::vector<double> before(n, 0);
  std::vector<double> behind(n, 0);
  if (problem.size() <= kMostSets) {
    const std::vector<std::vector<bool>> reaches = Reaches(problem);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        if (!reaches[i][j]) continue;
        before[j] += problem.ops[i].least;
        behind[i] += problem.ops[j].least;
      }
    }
  }
  TimeWindows windows{std::vector<double>(n, 0), std::vector<double>(n, 0)};
  for (const int i : problem.order) {
    double& head = windows.head[static_cast<size_t>(i)];
    head = before[static_cast<size_t>(i)] / devices;
    for (const int e : problem.in[static_cast<size_t>(i)]) {
      const int from = problem.edge(e).from;
      head = std::max(head, windows.head[static_cast<size_t>(from)] + problem.op(from).least);
    }
  }
  for (auto it = problem.order.rbegin(); it != problem.order.rend(); ++it) {
    double& tail = windows.tail[static_cast<size_t>(*it)];
    tail = behind[static_cast<size_t>(*it)] / devices;
    for (const int e : problem.out[static_cast<size_t>(*it)]) {
      tail = std::max(tail, windows.tail[static_cast<size_t>(problem.edge(e).to)]);
    }
    tail += problem.op(*it).least;
  }
  return windows;
}

double LowerBound(const PlacementProblem& problem, const TimeWindows& windows) {
  double work = 0;
  double longest = 0;
  for (size_t i = 0; i < windows.head.size(); ++i) {
    work += problem.ops[i].least;
    longest = std::max(longest, windows.head[i] + windows.tail[i]);
  }
  return std::max(longest, work / problem.device_count());
}

}  // namespace cadre
