#include "base/counted_noun.h"

#include "absl/strings/str_cat.h"

namespace cadre {

std::string Counted(int64_t count, absl::string_view noun, absl::string_view plural) {
  if (count == 1) return absl::StrCat("1 ", noun);
  return absl::StrCat(count, " ", plural.empty() ? absl::StrCat(noun, "s") : plural);
}

}  // namespace cadre
