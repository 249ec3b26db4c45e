// The last version of a run as its aggregators hold it, for tests. Pure functions over a status.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre::testing {

// In flat order. Requires: the status has one run, which averaged through all of its aggregators.
absl::StatusOr<std::vector<float>> PullModel(const v1::StatusReply& status,
                                             const v1::RunSpec& spec);

// Infinite where a value is not finite. Requires: as many of one as of the other.
double LargestDifference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace cadre::testing
