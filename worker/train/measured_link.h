// Converts link measurements (worker/comm) to the link profile of the planner (plan/cost), which
// are independent of each other.
//
// Thread-safe (a pure function).
#pragma once

#include "plan/cost/collective_cost.h"
#include "worker/comm/link_probe.h"

namespace cadre {

// The profile of a measurement among `ranks` ranks.
LinkProfile ProfileOf(const LinkMeasure& measure, int ranks);

}  // namespace cadre
