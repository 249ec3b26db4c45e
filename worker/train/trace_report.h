// What a rank recorded of its steps, as the message that answers a TraceSteps.
//
// Thread-safe (pure function).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/trace.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// Bytes that one event takes in a message at most; longer names are cut.
inline constexpr size_t kMostTraceEventBytes = 160;

// The earliest `most_events` intervals, by begin; those left out are added to `dropped`, which
// counts what the trace had no room for. Place and request are the caller's to set.
// Guarantees: the message can be sent (names are text), and no event is longer than
// kMostTraceEventBytes.
v1::Traced TracedFrom(std::vector<TraceInterval> intervals, uint64_t dropped, size_t most_events);

}  // namespace cadre
