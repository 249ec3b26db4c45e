// Names of files that are numbered: "train-{000..015}.tar" stands for sixteen.
//
// Thread-safe (pure function).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cadre {

// The names that a pattern stands for, in order; a pattern without a range is a name. Numbers have
// as many digits as the first one is written with, or more where they need them.
// Errors: InvalidArgument for braces that hold no range, a range that runs backwards or is longer
// than a million, and for a second one.
absl::StatusOr<std::vector<std::string>> ExpandShardNames(const std::string& pattern);

}  // namespace cadre
