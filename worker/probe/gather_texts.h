// Texts of any length from every member to every member.
//
// Thread-compatible, as the communicator.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

namespace cadre {

// A collective. What every member came with, by member. Errors: the communicator's.
absl::StatusOr<std::vector<std::string>> GatherTexts(const std::string& own, Communicator& all);

}  // namespace cadre
