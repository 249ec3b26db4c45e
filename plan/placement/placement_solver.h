// Finds packings and schedules that first fit and list scheduling miss, by an integer program for
// instance. Thread rules are those of the implementation.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/placement/schedule.h"

namespace cadre {

class PlacementSolver {
 public:
  struct Result {
    // A schedule that is shorter than the known one, if one was found.
    std::optional<OperatorSchedule> schedule;
    // Whether the search ended before its time limit: no placement has a shorter schedule than
    // `lower_bound`.
    bool solved = false;
    // A lower bound on the makespan; 0: unknown.
    double lower_bound = 0;
  };

  virtual ~PlacementSolver() = default;

  // A device for every operator so that all operators fit. Errors: ResourceExhausted if there is no
  // packing; DeadlineExceeded if none was found in time.
  virtual absl::StatusOr<std::vector<int>> Pack(const PlacementProblem& problem) const = 0;

  // Searches for a schedule shorter than `known` by more than a millionth, as if messages did not
  // wait for one another; nullopt if the problem is too large. Requires: `known` fits.
  virtual std::optional<Result> Improve(const PlacementProblem& problem, const TimeWindows& windows,
                                        const OperatorSchedule& known) const = 0;
};

}  // namespace cadre
