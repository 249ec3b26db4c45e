// Simulates a placement in one pass over the operators, in a topological order that the priorities
// determine. CheckSchedule verifies a schedule by its definition, independent of how it was made.
#include "plan/placement/schedule.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// Tolerance for the rounding of sums of thousands of times, relative to the makespan.
constexpr double kScheduleRounding = 1e-9;

double Finish(const PlacementProblem& problem, const Schedule& schedule, int i) {
  return schedule.start[i] + problem.Seconds(i, schedule.device[i]);
}

}  // namespace

// Takes the operator of the smallest priority among those whose predecessors have been scheduled.
// It starts when its inputs have arrived and its device is free. O((ops + edges) log ops).
Schedule ScheduleByPriority(const PlacementProblem& problem, const std::vector<int>& device,
                            const std::vector<double>& priority) {
  Schedule schedule{.device = device, .start = std::vector<double>(device.size(), 0)};
  std::vector<double> free_at(problem.devices.size(), 0);
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
    const int on = device[i];
    double& start = schedule.start[i];
    start = std::max(start, free_at[on]);
    const double finish = start + problem.Seconds(i, on);
    free_at[on] = finish;
    schedule.makespan = std::max(schedule.makespan, finish);
    for (const int e : problem.out[i]) {
      const int to = problem.edge(e).to;
      schedule.start[to] =
          std::max(schedule.start[to], finish + problem.TransferSeconds(e, on, device[to]));
      if (--waits[to] == 0) ready.push({priority[to], to});
    }
  }
  return schedule;
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

absl::Status CheckSchedule(const PlacementProblem& problem, const Schedule& schedule) {
  const double slack = kScheduleRounding * schedule.makespan;
  for (int e = 0; e < std::ssize(problem.edges); ++e) {
    const PlacementProblem::Edge& edge = problem.edge(e);
    const double arrives =
        Finish(problem, schedule, edge.from) +
        problem.TransferSeconds(e, schedule.device[edge.from], schedule.device[edge.to]);
    if (schedule.start[edge.to] + slack < arrives) {
      return absl::InternalError(absl::StrCat(problem.op(edge.to).name,
                                              " starts before the tensor of ",
                                              problem.op(edge.from).name, " has arrived"));
    }
  }
  std::vector<int> by_start(schedule.start.size());
  std::iota(by_start.begin(), by_start.end(), 0);
  std::sort(by_start.begin(), by_start.end(), [&](int a, int b) {
    return std::pair(schedule.start[a], Finish(problem, schedule, a)) <
           std::pair(schedule.start[b], Finish(problem, schedule, b));
  });
  std::vector<double> free_at(problem.devices.size(), 0);
  for (const int i : by_start) {
    double& free = free_at[schedule.device[i]];
    if (schedule.start[i] + slack < free) {
      return absl::InternalError(
          absl::StrCat(problem.op(i).name, " starts before its device is free"));
    }
    free = Finish(problem, schedule, i);
    if (free > schedule.makespan + slack) {
      return absl::InternalError(absl::StrCat(problem.op(i).name, " ends after the makespan"));
    }
  }
  if (!FitsMemory(problem, schedule.device)) {
    return absl::InternalError("a device holds more than its memory");
  }
  return absl::OkStatus();
}

}  // namespace cadre
