// Operator placement as an integer program. placement_program.cc has the formulation.
//
// Thread-compatible, as IntegerProgram is.
#pragma once

#include <optional>

#include "plan/placement/bounds.h"
#include "plan/placement/schedule.h"

namespace cadre {

struct ProgramResult {
  // A schedule shorter than the known one; nullopt: none was found.
  std::optional<Schedule> schedule;
  // Whether `schedule` (or, if it is nullopt, the known one) is optimal.
  bool proven = false;
  // A lower bound on the makespan; 0: unknown.
  double lower_bound = 0;
};

// Searches for a schedule shorter than `known` by more than a millionth. Requires: known fits.
ProgramResult SolvePlacement(const PlacementProblem& problem, const TimeWindows& windows,
                             const Schedule& known, double seconds);

// An estimate of the program's size: pairs of operators times devices, plus edges times pairs of
// devices.
int64_t ProgramSize(const PlacementProblem& problem);

}  // namespace cadre
