// The ranks that are likely to have caused an error of a group, and whether it is the release of a
// rank, attached to its status. They survive Annotate, but not the creation of another status.
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

// Marks the error of a rank whose peer was released from the group, for example because the run has
// ended: the rank itself will be released, too.
absl::Status WithRelease(absl::Status status);
bool IsOfRelease(const absl::Status& status);

}  // namespace cadre
