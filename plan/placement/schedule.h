// Schedules, which state when and where each operator runs: heuristics that make them, and lower
// bounds on their makespan.
//
// Values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/placement/placement_problem.h"

namespace cadre {

// Schedules operators one by one (schedule_builder.h): of those whose predecessors are scheduled,
// the one with the smallest `priority` (then the smallest number). If the problem is in order, the
// priorities are ignored.
OperatorSchedule ScheduleByPriority(const PlacementProblem& problem, const std::vector<int>& device,
                                    const std::vector<double>& priority);

// Memory of the operators on each device.
std::vector<int64_t> MemoryOf(const PlacementProblem& problem, const std::vector<int>& device);
bool FitsMemory(const PlacementProblem& problem, const std::vector<int>& device);

// The best schedule that heuristics find for a graph of any size (list_scheduling.cc). Local search
// visits at most `max_visits` operators and edges, over all schedules. Requires: `packing` fits
// (plan/placement/packing.h).
OperatorSchedule ListSchedule(const PlacementProblem& problem, const std::vector<int>& packing,
                              int64_t max_visits);

// Bounds by operator, in seconds. Every operator counts with its minimum time; transfers count 0.
struct TimeWindows {
  // The earliest start in any schedule: the larger of the longest path to the operator and the
  // total work of its predecessors divided by the number of devices.
  std::vector<double> head;
  // The minimum time from the operator's start to the end of the schedule, computed in the same way
  // from its successors.
  std::vector<double> tail;
};
TimeWindows WindowsOf(const PlacementProblem& problem);

// A lower bound on the makespan: the larger of the longest path (heads plus tails) and the total
// work divided by the number of devices.
double LowerBound(const PlacementProblem& problem, const TimeWindows& windows);

// reaches[i][j]: whether there is a path from operator i to operator j.
std::vector<std::vector<bool>> Reaches(const PlacementProblem& problem);

}  // namespace cadre
