// Collectives as lists of messages: sender, receiver, interval of the data and dependencies. A
// transport executes them, the planner's costs count their steps and bytes, and tests execute them
// in memory in any permitted order.
//
// Data is an array of elements with the same layout on every member. A schedule is the list of one
// member. The schedule alone determines the order of additions, so sums have equal bits on all
// members and in every run.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/schedule_step.h"
#include "tensor/collective.h"
#include "tensor/interval.h"

namespace cadre {

// The schedule of member `index` of intervals.size() members. Afterwards interval `index` holds its
// sum; the rest of the data is unspecified. Requires: intervals do not overlap. kRing, kButterfly
// (recursive doubling of all data) or kHalvingDoubling (recursive halving).
Schedule ReduceScatterSchedule(Algorithm algorithm, int index, std::span<const Interval> intervals);
// Member i contributes interval i; afterwards every member has all intervals. kRing; kButterfly and
// kHalvingDoubling are both recursive doubling.
Schedule AllGatherSchedule(Algorithm algorithm, int index, std::span<const Interval> intervals);
// Afterwards every member has the sum of all data. kRing, kButterfly, kHalvingDoubling.
Schedule AllReduceSchedule(Algorithm algorithm, int index, int members, int64_t elements);
// A binomial tree.
Schedule BroadcastSchedule(int index, int members, int64_t elements, int root);
// The dissemination algorithm; messages are empty.
Schedule BarrierSchedule(int index, int members);

}  // namespace cadre
