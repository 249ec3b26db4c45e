// Heuristic schedules for graphs of any size. list_scheduling.cc explains them.
//
// Pure functions; thread-safe. Deterministic.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/placement/schedule.h"

namespace cadre {

struct ListSchedulingOptions {
  // Operators and edges that local search may visit, over all schedules; ten million take about a
  // second.
  int64_t max_work = 20'000'000;
};

// The best schedule found. Requires: `packing` fits (plan/placement/packing.h).
Schedule ListSchedule(const PlacementProblem& problem, const std::vector<int>& packing,
                      const ListSchedulingOptions& options = {});

}  // namespace cadre
