// Converts a rank's trace to the message that responds to TraceSteps.
//
// Thread-safe (pure function).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/trace.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// Maximum bytes of one event in a message; longer names are truncated.
inline constexpr size_t kMaxTraceEventBytes = 160;

// The earliest `max_events` intervals, by begin. The others are added to `dropped`, the number of
// intervals that did not fit the trace. The caller sets place and request. Guarantees: names are
// valid UTF-8, and no event is longer than kMaxTraceEventBytes.
v1::Traced TracedFrom(std::vector<TraceInterval> intervals, uint64_t dropped, size_t max_events);

}  // namespace cadre
