// The command `cadre plan --placement`: the device and the start of every operator of a graph.
//
// Thread-compatible.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cli/console.h"
#include "cli/options.h"
#include "cli/render.h"
#include "plan/placement/placer.h"

namespace cadre {

struct PlacementOptions {
  // The operator graph's file.
  std::string graph;
  double solver_seconds = 10;
};

// Errors: InvalidArgument naming the flag that is out of range.
absl::Status CheckPlacementOptions(const PlacementOptions& options);

// Returns the exit code. Requires: CheckPlacementOptions is OK.
int ShowPlacement(const GlobalOptions& global, const PlacementOptions& options,
                  const Console& console);

struct PlacementReport {
  PlacementProblem problem;
  PlacedGraph placement;
};
std::string ToText(const PlacementReport& report);
Json ToJson(const PlacementReport& report);

// One line per device, time from left to right: operators as boxes, with their names if they fit,
// dots where the device is idle.
std::string PlacementChart(const PlacementProblem& problem, const Schedule& schedule, int columns);

}  // namespace cadre
