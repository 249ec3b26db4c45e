// Divides the test split of one evaluation into parts, which groups evaluate.
//
// The state is the durable EvaluationRecord. A part is assigned to a group if its field `given` is
// set, free otherwise. Thread-safe (pure functions).
//
// Invariant: the parts are disjoint, and their union is the test split.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// Assigns one part to each of `groups`. If `groups` is empty, there is one part, not assigned yet.
v1::EvaluationRecord CutTestSplit(uint32_t version, uint32_t step, uint64_t samples,
                                  const std::vector<uint32_t>& groups);

// The part that the group is evaluating; null if none.
const v1::EvaluationPart* AssignedPart(const v1::EvaluationRecord& evaluation, uint32_t group);

// Stores the group's result. Returns false if the part is not assigned to the group (any more).
bool RecordPart(v1::EvaluationRecord& evaluation, const v1::Evaluated& evaluated);

// The group has ended: its unfinished part becomes free. Returns whether it had one.
bool FreePart(v1::EvaluationRecord& evaluation, uint32_t group);

// Assigns a free part to the group if there is one and the group has none. Returns whether it did.
bool AssignPart(v1::EvaluationRecord& evaluation, uint32_t group);

bool HasFreePart(const v1::EvaluationRecord& evaluation);
bool IsComplete(const v1::EvaluationRecord& evaluation);

// The result over the finished parts.
v1::EvaluationResult ResultOf(const v1::EvaluationRecord& evaluation);

}  // namespace cadre
