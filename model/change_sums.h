// Sums over parts of a model by which the changes of groups are compared (v1::ChangeSums).
//
// Thread-safe (pure functions).
#pragma once

#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// Sums of no positions. Their number of values does not change any more.
v1::ChangeSums NoChanges(int groups);
// Sums that are not known.
v1::ChangeSums UnknownChanges(int groups);
// Adds `more` to `sums`, where what is infinite remains so: its contribution is not finite. Returns
// false, without a result, unless both are of equally many groups.
bool AddChanges(const v1::ChangeSums& more, v1::ChangeSums& sums);

}  // namespace cadre
