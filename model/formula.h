// Integer formulas, such as "2 * width + 1".
//
// Thread-safe (pure function).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

// The value of a formula of integers, names ([a-z_]+), + - * / and parentheses.
// Errors: InvalidArgument for syntax errors, unknown names, divisions by zero or with a remainder,
// and overflow of int64_t.
absl::StatusOr<int64_t> Evaluate(absl::string_view formula,
                                 const std::map<std::string, int64_t>& values);

}  // namespace cadre
