// Ranges of tensors as intervals of the parameter order.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "proto/cadre/v1/plan.pb.h"
#include "server/client/shard_span.h"
#include "server/decision.h"

namespace cadre {

// Converts ranges to positions, in the same order, without empty ones. `tensor_begin`: as in
// RunTerms. Refuses ranges outside their tensor or outside `owned`, and too many ranges.
Decision<std::vector<FlatSpan>> Flatten(
    const std::vector<uint64_t>& tensor_begin, FlatSpan owned,
    const google::protobuf::RepeatedPtrField<v1::Range>& ranges);

// A position that is in two spans, if any.
std::optional<uint64_t> Overlap(std::vector<FlatSpan> spans);

// Number of elements in all spans.
uint64_t Elements(const std::vector<FlatSpan>& spans);

}  // namespace cadre
