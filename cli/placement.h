// The placement of an operator graph as text and as JSON (cli/render.h).
//
// Thread-safe (pure functions).
#pragma once

#include <string>

#include "cli/render.h"
#include "plan/placement/placer.h"

namespace cadre {

struct PlacementReport {
  PlacementProblem problem;
  PlacedGraph placement;
};
std::string ToText(const PlacementReport& report);
Json ToJson(const PlacementReport& report);

// A chart with one line per device and time from left to right. Operators are boxes, with their
// names if they fit; dots mean that the device is idle.
std::string PlacementChart(const PlacementProblem& problem, const OperatorSchedule& schedule,
                           int columns);

}  // namespace cadre
