// What follows for the commit of a round from its participants and their claims. Pure functions.
#pragma once

#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// The division of the samples from the next version on, whose step is `step`.
v1::SampleDivision NextDivision(const v1::RunRecord& run, uint32_t step);

// Fills in what the claims say (SumUp), and how the aggregators make the version. Requires: at
// least one participant.
void FillFromClaims(const v1::RunRecord& run, v1::CommitRecord& commit);

// The commit, of which nothing remains, becomes a copy of the newest version of the run.
void FillCopy(const v1::RunRecord& run, v1::CommitRecord& commit);

}  // namespace cadre
