// Operator placement as an integer program (Pal et al. 2019), solved by COIN-OR CBC.
//
//   const PlacementProgram program({.seconds = 60});
//   const auto placement = PlaceGraph(problem, {.solver = &program});
//
// Thread-compatible; one call at a time in a process, like IntegerProgram.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/placement/placement_solver.h"

namespace cadre {

struct PlacementProgramOptions {
  // Time limit; results are deterministic unless it is reached. Above 0.
  double seconds = 10;
  // Larger problems are refused: pairs of operators times devices, plus edges times pairs of
  // devices.
  int64_t max_size = 4'000;
};

class PlacementProgram : public PlacementSolver {
 public:
  explicit PlacementProgram(PlacementProgramOptions options = {}) : options_(options) {}

  absl::StatusOr<std::vector<int>> Pack(const PlacementProblem& problem) const override;
  std::optional<Result> Improve(const PlacementProblem& problem, const TimeWindows& windows,
                                const OperatorSchedule& known) const override;

 private:
  PlacementProgramOptions options_;
};

}  // namespace cadre
