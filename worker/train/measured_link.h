// Converts link measurements (LinkMeasure, worker/comm) to the planner's type (LinkProfile,
// plan/cost). Neither of these rooms depends on the other.
//
// Thread-safe (a pure function).
#pragma once

#include "plan/cost/collective_cost.h"
#include "worker/comm/link_probe.h"

namespace cadre {

// The profile of a measurement among `ranks` ranks.
LinkProfile ProfileOf(const LinkMeasure& measure, int ranks);

}  // namespace cadre
