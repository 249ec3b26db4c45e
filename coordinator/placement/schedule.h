// When each operator runs, and where.
//
// Values and pure functions; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/placement/placement_problem.h"

namespace cadre {

// By operator.
struct Schedule {
  std::vector<int> device;
  std::vector<double> start;
  // When the last operator ends; the first starts at 0.
  double makespan = 0;
};

// Every operator starts as soon as its tensors are there and those before it on its device are
// done. Of the operators whose tensors come from operators that are scheduled already, the one of
// least `priority` is next, and of equals the one that the graph names first.
Schedule ScheduleByPriority(const PlacementProblem& problem, const std::vector<int>& device,
                            const std::vector<double>& priority);

// Memory that operators take on each device.
std::vector<int64_t> MemoryOf(const PlacementProblem& problem, const std::vector<int>& device);
bool FitsMemory(const PlacementProblem& problem, const std::vector<int>& device);

// Errors: Internal, saying which operator starts before its tensors are there, overlaps with
// another or ends after the makespan, or which device is too full; allows for rounding.
absl::Status CheckSchedule(const PlacementProblem& problem, const Schedule& schedule);

}  // namespace cadre
