// Schedules, which state when and where each operator runs: heuristics and the integer program that
// make them, and lower bounds on their makespan.
//
// Values and pure functions; thread-safe except for SolvePlacement, which is thread-compatible like
// IntegerProgram.
#pragma once

#include <cstdint>
#include <optional>
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

// The result of the integer program, which is solved as if messages did not wait for one another.
struct ProgramResult {
  // The schedule of its placement, if that is shorter than the known one.
  std::optional<OperatorSchedule> schedule;
  // Whether the program was solved within the time limit: no placement has a shorter schedule than
  // `lower_bound`.
  bool solved = false;
  // A lower bound on the makespan; 0: unknown.
  double lower_bound = 0;
};

// Searches for a schedule shorter than `known` by more than a millionth, by an integer program
// (placement_program.cc). Requires: `known` fits.
ProgramResult SolvePlacement(const PlacementProblem& problem, const TimeWindows& windows,
                             const OperatorSchedule& known, double seconds);

// An estimate of the program's size: pairs of operators times devices, plus edges times pairs of
// devices.
int64_t ProgramSize(const PlacementProblem& problem);

// reaches[i][j]: whether there is a path from operator i to operator j.
std::vector<std::vector<bool>> Reaches(const PlacementProblem& problem);

}  // namespace cadre
