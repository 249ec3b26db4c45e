// Schedules that are good and soon found, for graphs of any size.
//
// Operators are taken by upward rank, the longest way to the end by mean times (as in HEFT:
// Topcuoglu, Hariri, Wu 2002). Each goes where it ends first, among the devices that leave room for
// all still to come, also into gaps. Then placements are improved operator by operator while that
// helps. All on one device is among what is tried.
//
// Pure functions; thread-safe. Deterministic.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/placement/schedule.h"

namespace cadre {

struct ListSchedulingOptions {
  // Operators and edges that improving may look at, all schedules together: so many seconds times
  // some ten million.
  int64_t most_work = 20'000'000;
};

// The best found. Requires: `packing` fits (coordinator/placement/packing.h).
Schedule ListSchedule(const PlacementProblem& problem, const std::vector<int>& packing,
                      const ListSchedulingOptions& options = {});

// A schedule of this placement, operators by upward rank, also into gaps.
Schedule SchedulePlacement(const PlacementProblem& problem, const std::vector<int>& device);

}  // namespace cadre
