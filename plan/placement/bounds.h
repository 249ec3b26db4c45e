// Lower bounds on schedules.
//
// Pure functions; thread-safe.
#pragma once

#include <vector>

#include "plan/placement/placement_problem.h"

namespace cadre {

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
