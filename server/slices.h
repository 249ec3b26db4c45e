// Converts ranges of tensors, as they arrive in messages, to intervals of the parameter order.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "proto/cadre/v1/plan.pb.h"
#include "server/decision.h"
#include "tensor/interval.h"

namespace cadre {

// Converts ranges to intervals, in the same order, and drops empty ones. `tensor_begin` is that of
// RunTerms. Refuses ranges outside their tensor or outside `owned`, and too many ranges.
Decision<std::vector<Interval>> Flatten(
    const std::vector<int64_t>& tensor_begin, Interval owned,
    const google::protobuf::RepeatedPtrField<v1::Range>& ranges);

// Returns a position that lies in two spans, if there is one.
std::optional<int64_t> Overlap(std::vector<Interval> spans);

// Number of elements in all spans.
int64_t Elements(const std::vector<Interval>& spans);

}  // namespace cadre
