// The ranks that are likely to have caused an error of a group, attached to its status. They
// survive Annotate, but not the creation of another status.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace cadre {

// Replaces the suspects of the status.
absl::Status WithSuspects(absl::Status status, const std::vector<int>& ranks);
// Empty if the status names none.
std::vector<int> SuspectsOf(const absl::Status& status);

}  // namespace cadre
