// The command `cadre formula`: the papers' formulas by name, with numbers that a person types. What
// `cadre plan` puts together for a model stands here piece by piece.
//
//   cadre formula butterfly-limit ranks=8 alpha=50e-6 bandwidth=1.25e9
//
// Thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/console.h"
#include "cli/options.h"

namespace cadre {

struct NamedNumber {
  std::string name;
  double value = 0;
};

// Evaluates the formula `name` with "parameter=number" words; lists are numbers with commas.
// Errors: InvalidArgument naming the formula or parameter that is not there, is missing, is given
// twice, or is no number that it can take.
absl::StatusOr<std::vector<NamedNumber>> Evaluate(const std::string& name,
                                                  const std::vector<std::string>& parameters);

// Every formula with its parameters and its source, a line each.
std::string FormulasText();

// Returns the exit code. Without words it lists the formulas.
int ShowFormula(const GlobalOptions& global, const std::vector<std::string>& words,
                const Console& console);

}  // namespace cadre
