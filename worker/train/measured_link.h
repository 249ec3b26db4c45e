// From what a group has measured of its links (worker/comm) to what plans are chosen by (spec),
// which know nothing of one another.
//
// Thread-safe (a pure function).
#pragma once

#include "spec/collective_cost.h"
#include "worker/comm/link_probe.h"

namespace cadre {

// What was measured among so many ranks.
LinkProfile ProfileOf(const LinkMeasure& measure, int ranks);

}  // namespace cadre
