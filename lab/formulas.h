// The papers' formulas, evaluated one by one for given numbers.
//
//   Evaluate("butterfly-limit", {"ranks=8", "alpha=50e-6", "bandwidth=1.25e9"})
//
// Thread-compatible.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace cadre {

// How a formula is called, such as "ranks=X alpha=X [gamma=X]", and the paper that it is from.
struct FormulaUsage {
  std::string name;
  std::string parameters;
  std::string source;
};
std::vector<FormulaUsage> Formulas();

// Results by name, in the order of their output.
using FormulaResults = std::vector<std::pair<std::string, double>>;

// Evaluates the formula `name` for parameters such as "ranks=8"; the numbers of a list are
// separated by commas. Errors: InvalidArgument naming the formula or parameter that is unknown,
// missing, duplicate or out of range.
absl::StatusOr<FormulaResults> Evaluate(const std::string& name,
                                        const std::vector<std::string>& parameters);

}  // namespace cadre
