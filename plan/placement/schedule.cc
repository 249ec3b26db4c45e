// There are two bounds on the start of an operator: the longest path to it, and the total work of
// its predecessors, which all devices together must complete first. The first is strong for deep
// graphs, the second for wide ones. Both are valid for any placement, because every operator counts
// with its minimum time.
#include "plan/placement/schedule.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "plan/placement/schedule_builder.h"

namespace cadre {
namespace {

// The work of all predecessors (or successors) needs the transitive closure; beyond so many
// operators only the longest path is used.
constexpr int kMaxClosure = 2'000;

}  // namespace

OperatorSchedule ScheduleByPriority(const PlacementProblem& problem, const std::vector<int>& device,
                                    const std::vector<double>& priority) {
  ScheduleBuilder builder(problem, /*uses_gaps=*/!problem.in_order);
  if (problem.in_order) {
    for (const int i : problem.order) builder.Place(i, device[i]);
    return builder.Take();
  }
  std::vector<size_t> waits;
  using Ready = std::pair<double, int>;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  for (int i = 0; i < problem.size(); ++i) {
    waits.push_back(problem.in[i].size());
    if (waits.back() == 0) ready.push({priority[i], i});
  }
  while (!ready.empty()) {
    const int i = ready.top().second;
    ready.pop();
    builder.Place(i, device[i]);
    for (const int e : problem.out[i]) {
      const int to = problem.edge(e).to;
      if (--waits[to] == 0) ready.push({priority[to], to});
    }
  }
  return builder.Take();
}

std::vector<int64_t> MemoryOf(const PlacementProblem& problem, const std::vector<int>& device) {
  std::vector<int64_t> bytes(problem.devices.size(), 0);
  for (int i = 0; i < problem.size(); ++i) {
    bytes[device[i]] += problem.op(i).memory_bytes;
  }
  return bytes;
}

bool FitsMemory(const PlacementProblem& problem, const std::vector<int>& device) {
  const std::vector<int64_t> bytes = MemoryOf(problem, device);
  for (int d = 0; d < problem.device_count(); ++d) {
    if (problem.limited(d) && bytes[d] > problem.devices[d].memory_bytes) return false;
  }
  return true;
}

std::vector<std::vector<bool>> Reaches(const PlacementProblem& problem) {
  const size_t n = problem.size();
  std::vector<std::vector<bool>> reaches(n, std::vector<bool>(n, false));
  for (auto it = problem.order.rbegin(); it != problem.order.rend(); ++it) {
    std::vector<bool>& row = reaches[*it];
    for (const int e : problem.out[*it]) {
      const int to = problem.edge(e).to;
      row[to] = true;
      for (size_t j = 0; j < n; ++j) {
        if (reaches[to][j]) row[j] = true;
      }
    }
  }
  return reaches;
}

TimeWindows WindowsOf(const PlacementProblem& problem) {
  const size_t n = problem.size();
  const double devices = problem.device_count();
  std::vector<double> before(n, 0);
  std::vector<double> after(n, 0);
  if (problem.size() <= kMaxClosure) {
    const std::vector<std::vector<bool>> reaches = Reaches(problem);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        if (!reaches[i][j]) continue;
        before[j] += problem.ops[i].min_seconds;
        after[i] += problem.ops[j].min_seconds;
      }
    }
  }
  TimeWindows windows{std::vector<double>(n, 0), std::vector<double>(n, 0)};
  for (const int i : problem.order) {
    double& head = windows.head[i];
    head = before[i] / devices;
    for (const int e : problem.in[i]) {
      const int from = problem.edge(e).from;
      head = std::max(head, windows.head[from] + problem.op(from).min_seconds);
    }
  }
  for (auto it = problem.order.rbegin(); it != problem.order.rend(); ++it) {
    double& tail = windows.tail[*it];
    tail = after[*it] / devices;
    for (const int e : problem.out[*it]) {
      tail = std::max(tail, windows.tail[problem.edge(e).to]);
    }
    tail += problem.op(*it).min_seconds;
  }
  return windows;
}

double LowerBound(const PlacementProblem& problem, const TimeWindows& windows) {
  double work = 0;
  double longest = 0;
  for (size_t i = 0; i < windows.head.size(); ++i) {
    work += problem.ops[i].min_seconds;
    longest = std::max(longest, windows.head[i] + windows.tail[i]);
  }
  return std::max(longest, work / problem.device_count());
}

}  // namespace cadre
