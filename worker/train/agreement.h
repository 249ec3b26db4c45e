// One outcome for a group: work that a rank does alone (on files, say) ends the same on all of
// them.
//
// Thread-compatible, as the communicator.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

namespace cadre {

// A collective. OK if every member came with OK; otherwise the status of the first that did not,
// with "rank <i>: " before its message where there are several (cut where it is very long).
// Errors of the communicator come as they are.
absl::Status Agree(const absl::Status& mine, Communicator& group);

// A collective. The text of member 0, whatever the others come with.
// Requires: at most kMostSharedText bytes. Errors: those of the communicator.
inline constexpr size_t kMostSharedText = size_t{256} << 20;
absl::StatusOr<std::string> TextOfFirst(const std::string& mine, Communicator& group);

}  // namespace cadre
