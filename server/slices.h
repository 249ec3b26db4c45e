// Ranges of tensors as spans of the flat parameter order.
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

// Ranges to flat spans in the same order, without empty ones. `tensor_begin` holds the flat
// position of every tensor, then the number of parameters. Refuses ranges that no tensor has or
// that are outside `owned`, and too many of them.
Decision<std::vector<FlatSpan>> Flatten(
    const std::vector<uint64_t>& tensor_begin, FlatSpan owned,
    const google::protobuf::RepeatedPtrField<v1::Range>& ranges);

// A position that two spans share, if there is one.
std::optional<uint64_t> Overlap(std::vector<FlatSpan> spans);

// Elements in all spans together.
uint64_t Elements(const std::vector<FlatSpan>& spans);

}  // namespace cadre
