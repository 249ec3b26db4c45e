#include "worker/transport/call_tag.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace cadre {

std::string CallTag::ToString() const {
  std::string text(CollectiveName(collective));
  if (algorithm != Algorithm::kNone && algorithm != Algorithm::kOnly) {
    absl::StrAppend(&text, " by ", AlgorithmName(algorithm));
  }
  absl::StrAppend(&text, ", number ", sequence, ", of ", elements, " ", DTypeName(dtype), " among ",
                  members, absl::StrFormat(" (group %x)", group));
  return text;
}

}  // namespace cadre
