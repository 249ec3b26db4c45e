// What no schedule can beat.
//
// Pure functions; thread-safe.
#pragma once

#include <vector>

#include "coordinator/placement/placement_problem.h"

namespace cadre {

// By operator, in seconds. Every operator is counted with its least time, every tensor as if it
// stayed on its device.
struct TimeWindows {
  // No schedule starts it earlier: the longest way to it, and what all operators before it take on
  // all devices together.
  std::vector<double> head;
  // From its start to the end of all; the same, backwards.
  std::vector<double> tail;
};
TimeWindows WindowsOf(const PlacementProblem& problem);

// The greatest of: the longest way through the graph, with heads and tails as above, and all work
// spread evenly over the devices.
double LowerBound(const PlacementProblem& problem, const TimeWindows& windows);

// Whether there is a way from the first operator to the second: reaches[i][j].
std::vector<std::vector<bool>> Reaches(const PlacementProblem& problem);

}  // namespace cadre
