// What a run uses of the rest of the coordinator.
#pragma once

#include "coordinator/cluster/cluster.h"
#include "coordinator/events/options.h"
#include "coordinator/run/group_planner.h"

namespace cadre {

// Members, messages, records, counters and the time of the call; plans; limits. Borrowed.
struct RunContext {
  Cluster& cluster;
  GroupPlanner& planner;
  const CoordinatorOptions& options;
};

}  // namespace cadre
