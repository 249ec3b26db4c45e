#include "model/opaque.h"

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

std::string ToText(const ParameterIndex& index, size_t i) {
  if (i >= index.parameters().size()) return "no parameter";
  const Parameter& parameter = index.parameters()[i];
  return absl::StrCat("'", parameter.name, "' ", parameter.shape.ToString(),
                      IsStatistic(parameter.role) ? ", not trained" : "");
}

}  // namespace

std::string ParametersDifference(const ParameterIndex& run, const ParameterIndex& program) {
  const size_t size = std::max(run.parameters().size(), program.parameters().size());
  for (size_t i = 0; i < size; ++i) {
    const std::string expected = ToText(run, i);
    const std::string given = ToText(program, i);
    if (expected == given) continue;
    return absl::StrCat("parameter ", i, " is ", expected, " in the run, but ", given,
                        " in this program");
  }
  return "";
}

}  // namespace cadre
