#include "server/file_format.h"

#include "absl/strings/str_cat.h"

namespace cadre {

absl::Status CheckFormat(absl::string_view path, uint32_t format, uint32_t newest) {
  if (format <= newest) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": format ", format, " was written by a newer Cadre; this version reads ",
                   "formats up to ", newest, ": run the newer one"));
}

}  // namespace cadre
