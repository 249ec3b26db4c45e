// Small collectives over the whole group: agreement on one status, for work that may fail on some
// ranks only, such as file access; and exchange of texts.
//
// Thread-compatible, as the communicator.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace cadre {

// The communicator of all ranks of the transport.
Communicator WholeGroup(Transport& transport, int channel = 0);

// A collective. OK if every member passes OK; otherwise the status of the first member that does
// not, with the prefix "rank <i>: " in groups of several (truncated if very long), and with that
// rank as its suspect (comm/transport/suspects.h). Errors of the communicator are returned
// unchanged.
absl::Status Agree(const absl::Status& mine, Communicator& group);

// A collective. Returns the text of member `root`; the texts of the others are ignored.
// Requires: at most kMaxSharedText bytes. Errors: those of the communicator.
inline constexpr size_t kMaxSharedText = size_t{256} << 20;
absl::StatusOr<std::string> BroadcastText(std::string text, Communicator& group, int root = 0);

// A collective. Returns the texts of all members, by index. Errors: those of the communicator.
absl::StatusOr<std::vector<std::string>> GatherTexts(const std::string& mine, Communicator& group);

}  // namespace cadre
