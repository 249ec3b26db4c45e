// Names in error texts come from files and other programs. They are escaped, and truncated so that
// the text remains readable.
#include "model/problem.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"

namespace cadre {

absl::Status StatusOf(const std::vector<Problem>& problems) {
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(
      problems, "\n",
      [](std::string* out, const Problem& problem) { absl::StrAppend(out, problem.ToString()); }));
}

std::string Quoted(absl::string_view name) {
  constexpr size_t kMaxCharacters = 120;
  const bool cut = name.size() > kMaxCharacters;
  return absl::StrCat("'", absl::CHexEscape(name.substr(0, kMaxCharacters)), cut ? "...'" : "'");
}

}  // namespace cadre
