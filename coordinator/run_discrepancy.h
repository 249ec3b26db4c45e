// What a run's record keeps of how far its groups drift apart between averages.
//
// Thread-safe (pure functions).
#pragma once

#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// Adds a commit that has become the run's newest version. Rounds of one group, rounds of which
// a shard does not know the figures, and rounds in which the mean stood still add nothing.
void CountDiscrepancy(const v1::CommitRecord& commit, v1::RunRecord& run);

// For people. Requires: run.has_discrepancy().
v1::Discrepancy DiscrepancyStatus(const v1::RunRecord& run);

}  // namespace cadre
