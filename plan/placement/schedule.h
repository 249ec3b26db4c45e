// Schedules: when and where each operator runs.
//
// Values and pure functions; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "plan/placement/placement_problem.h"

namespace cadre {

// Devices and times by operator.
struct Schedule {
  std::vector<int> device;
  std::vector<double> start;
  // When the last operator ends; the first starts at 0.
  double makespan = 0;
};

// Schedules operators one by one: of those whose predecessors are scheduled, the one with the
// smallest `priority` (then the smallest number). It starts when its inputs have arrived and its
// device is free.
Schedule ScheduleByPriority(const PlacementProblem& problem, const std::vector<int>& device,
                            const std::vector<double>& priority);

// Memory of the operators on each device.
std::vector<int64_t> MemoryOf(const PlacementProblem& problem, const std::vector<int>& device);
bool FitsMemory(const PlacementProblem& problem, const std::vector<int>& device);

// Errors: Internal if, beyond rounding, an operator starts before its inputs have arrived, overlaps
// with another one or ends after the makespan, or if a device's memory is exceeded.
absl::Status CheckSchedule(const PlacementProblem& problem, const Schedule& schedule);

}  // namespace cadre
