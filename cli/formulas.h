// The command `cadre formula`: evaluates the papers' formulas one by one, for given numbers.
//
//   cadre formula butterfly-limit ranks=8 alpha=50e-6 bandwidth=1.25e9
//
// Thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/render.h"

namespace cadre {

struct NamedNumber {
  std::string name;
  double value = 0;
};
using FormulaResults = std::vector<NamedNumber>;
std::string ToText(const FormulaResults& results);
Json ToJson(const FormulaResults& results);

// Evaluates the formula `name` for parameters such as "ranks=8"; the numbers of a list are
// separated by commas. Errors: InvalidArgument naming the formula or parameter that is unknown,
// missing, duplicate or out of range.
absl::StatusOr<FormulaResults> Evaluate(const std::string& name,
                                        const std::vector<std::string>& parameters);

}  // namespace cadre
