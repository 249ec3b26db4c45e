// Names of numbered files: "train-{000..015}.tar" is a pattern for sixteen names.
//
// Thread-safe (pure function).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cadre {

// The names of a pattern in order; a pattern without a range is a single name. Numbers are padded
// with zeros to the width of the first one. Errors: InvalidArgument for braces without a range,
// descending ranges, more than a million names, and more than one range.
absl::StatusOr<std::vector<std::string>> ExpandShardNames(const std::string& pattern);

}  // namespace cadre
