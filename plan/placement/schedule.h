// Schedules: when and where each operator runs.
//
// Values and pure functions; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "plan/placement/placement_problem.h"

namespace cadre {

// By operator.
struct Schedule {
  std::vector<int> device;
  std::vector<double> start;
  // When the last operator ends; the first starts at 0.
  double makespan = 0;
};

// Schedules operators in order of `priority` (smallest first, then by number) among those whose
// predecessors are scheduled. Each starts when its inputs have arrived and its device is free.
Schedule ScheduleByPriority(const PlacementProblem& problem, const std::vector<int>& device,
                            const std::vector<double>& priority);

// Memory of the operators on each device.
std::vector<int64_t> MemoryOf(const PlacementProblem& problem, const std::vector<int>& device);
bool FitsMemory(const PlacementProblem& problem, const std::vector<int>& device);

// Errors: Internal, if an operator starts before its inputs have arrived, overlaps with another one
// or ends after the makespan, or if a device's memory is exceeded, within rounding.
absl::Status CheckSchedule(const PlacementProblem& problem, const Schedule& schedule);

}  // namespace cadre
