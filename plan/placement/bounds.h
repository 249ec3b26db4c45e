// Lower bounds on schedules.
//
// Pure functions; thread-safe.
#pragma once

#include <vector>

#include "plan/placement/placement_problem.h"

namespace cadre {

// By operator, in seconds, with every operator at its minimum time and without transfers.
struct TimeWindows {
  // The earliest start in any schedule: the larger of the longest path to the operator and the
  // total work of its predecessors divided by the number of devices.
  std::vector<double> head;
  // The minimum time from its start to the end of the schedule; computed likewise from its
  // successors.
  std::vector<double> tail;
};
TimeWindows WindowsOf(const PlacementProblem& problem);

// The larger of the longest path (heads plus tails) and all work spread evenly over the devices.
double LowerBound(const PlacementProblem& problem, const TimeWindows& windows);

// reaches[i][j]: whether there is a path from operator i to operator j.
std::vector<std::vector<bool>> Reaches(const PlacementProblem& problem);

}  // namespace cadre
