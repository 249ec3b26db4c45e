// The command `cadre formula`: evaluates the papers' formulas one by one, for given numbers.
//
//   cadre formula butterfly-limit ranks=8 alpha=50e-6 bandwidth=1.25e9
//
// Thread-compatible.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace cadre {

// Results by name, in the order of their output.
using FormulaResults = std::vector<std::pair<std::string, double>>;

// Evaluates the formula `name` for parameters such as "ranks=8"; the numbers of a list are
// separated by commas. Errors: InvalidArgument naming the formula or parameter that is unknown,
// missing, duplicate or out of range.
absl::StatusOr<FormulaResults> Evaluate(const std::string& name,
                                        const std::vector<std::string>& parameters);

}  // namespace cadre
