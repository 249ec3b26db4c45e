#include "model/opaque.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre {
namespace {

std::string ToText(const v1::OpaqueModel& model, int i) {
  if (i >= model.parameter_size()) return "no parameter";
  const v1::OpaqueParameter& parameter = model.parameter(i);
  std::string text =
      absl::StrCat("'", parameter.name(), "' [", absl::StrJoin(parameter.shape(), ", "), "]");
  if (!parameter.frozen_digest().empty()) {
    absl::StrAppend(&text, ", frozen with digest ", parameter.frozen_digest());
  } else if (parameter.has_trained() && !parameter.trained()) {
    absl::StrAppend(&text, ", not trained");
  }
  return text;
}

}  // namespace

std::string ParametersDifference(const v1::OpaqueModel& run, const v1::OpaqueModel& program) {
  const int size = std::max(run.parameter_size(), program.parameter_size());
  for (int i = 0; i < size; ++i) {
    const std::string expected = ToText(run, i);
    const std::string given = ToText(program, i);
    if (expected == given) continue;
    return absl::StrCat("parameter ", i, " is ", expected, " in the run, but ", given,
                        " in this program");
  }
  return "";
}

}  // namespace cadre
