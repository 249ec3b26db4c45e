// Formulas of whole numbers, such as "2 * width + 1".
//
// Thread-safe (pure function).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

// The value of a formula of whole numbers, names ([a-z_]+), + - * / and parentheses. Every result
// on the way is exact: a division that leaves a remainder has no value.
// Errors: InvalidArgument for what is no formula, for names that `values` lacks, for divisions
// without a value, and for results that int64_t does not hold.
absl::StatusOr<int64_t> Evaluate(absl::string_view formula,
                                 const std::map<std::string, int64_t>& values);

}  // namespace cadre
