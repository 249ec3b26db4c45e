// The algorithms by which schedule.cc composes collectives, one file per family. Private to this
// folder.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <span>

#include "comm/schedule_step.h"

namespace cadre {

// ring_schedule.cc
Schedule RingReduceScatter(int index, std::span<const Interval> intervals);
Schedule RingAllGather(int index, std::span<const Interval> intervals);
Schedule RingAllReduce(int index, std::span<const Interval> intervals);

// recursive_schedule.cc
Schedule ButterflyReduceScatter(int index, std::span<const Interval> intervals);
Schedule ButterflyAllReduce(int index, int members, int64_t elements);
Schedule HalvingReduceScatter(int index, std::span<const Interval> intervals);
Schedule DoublingAllGather(int index, std::span<const Interval> intervals);
Schedule HalvingDoublingAllReduce(int index, int members, int64_t elements);

}  // namespace cadre
