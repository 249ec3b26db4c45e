// Ranges of tensors, as they arrive in messages, converted to intervals of the parameter order.
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

// Converts ranges to positions, in the same order, without empty ones. `tensor_begin`: as in
// RunTerms. Refuses ranges outside their tensor or outside `owned`, and too many ranges.
Decision<std::vector<Interval>> Flatten(
    const std::vector<int64_t>& tensor_begin, Interval owned,
    const google::protobuf::RepeatedPtrField<v1::Range>& ranges);

// A position that is in two spans, if any.
std::optional<int64_t> Overlap(std::vector<Interval> spans);

// Number of elements in all spans.
int64_t Elements(const std::vector<Interval>& spans);

}  // namespace cadre
