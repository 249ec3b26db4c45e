// The discrepancy between the groups of a run at averaging, as kept in the run's record.
//
// Thread-safe (pure functions).
#pragma once

#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// Adds a commit that became the run's newest version. Rounds of one group, rounds for which a shard
// has no values, and rounds without displacement of the mean add nothing.
void CountDiscrepancy(const v1::CommitRecord& commit, v1::RunRecord& run);

// For the status. Requires: run.has_discrepancy().
v1::Discrepancy DiscrepancyStatus(const v1::RunRecord& run);

}  // namespace cadre
