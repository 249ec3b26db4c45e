// The test split of one evaluation, cut into parts that groups hand back.
//
// Functions over the durable EvaluationRecord. Thread-safe (pure functions).
//
// Invariant: parts do not overlap, and together they are the test split.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// One part for each of `groups`, given to it; one part given to nobody when `groups` is empty.
v1::EvaluationRecord CutTestSplit(uint32_t version, uint32_t step, uint64_t samples,
                                  const std::vector<uint32_t>& groups);

// The part that the group has and has not handed back; null if none.
const v1::EvaluationPart* PartOf(const v1::EvaluationRecord& evaluation, uint32_t group);

// Takes what a group hands back. False: it is not a part that the group has (any more).
bool TakePart(v1::EvaluationRecord& evaluation, const v1::Evaluated& evaluated);

// The group is gone: what it had is free again. True if it had something.
bool LosePart(v1::EvaluationRecord& evaluation, uint32_t group);

// Gives a free part to the group, if there is one and it has none.
bool GivePart(v1::EvaluationRecord& evaluation, uint32_t group);

bool HasFreePart(const v1::EvaluationRecord& evaluation);
bool IsComplete(const v1::EvaluationRecord& evaluation);

// What the parts handed back so far say.
v1::EvaluationResult ResultOf(const v1::EvaluationRecord& evaluation);

}  // namespace cadre
