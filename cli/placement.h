// The command `cadre plan --placement`: where the operators of a graph would run, and when.
//
// Thread-compatible.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cli/console.h"
#include "cli/options.h"
#include "coordinator/placement/placer.h"

namespace cadre {

struct PlacementOptions {
  // The operator graph's file.
  std::string graph;
  double solver_seconds = 10;
};

// Errors: InvalidArgument naming the flag that cannot be.
absl::Status CheckPlacementOptions(const PlacementOptions& options);

// Returns the exit code. Requires: CheckPlacementOptions is OK.
int ShowPlacement(const GlobalOptions& global, const PlacementOptions& options,
                  const Console& console);

// One line for each device, time from left to right: operators as boxes with their names where they
// fit, dots where the device waits.
std::string PlacementChart(const PlacementProblem& problem, const Schedule& schedule, int columns);

// One object; what scripts read.
std::string PlacementJson(const PlacementProblem& problem, const PlacedGraph& placement);

}  // namespace cadre
