// Reads the last version of a run from the folders of its aggregators, and compares models.
//
// Thread-safe (functions without state).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre::testing {

// The values in parameter order. `folder` has the folders of the aggregators, by name. Requires:
// the status has one run, which has ended and uses all aggregators.
absl::StatusOr<std::vector<float>> ReadStoredModel(const std::string& folder,
                                                   const v1::StatusReply& status,
                                                   const v1::RunSpec& spec);

// The largest absolute difference; infinite if a value is not finite. Requires: equal sizes.
double LargestDifference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace cadre::testing
