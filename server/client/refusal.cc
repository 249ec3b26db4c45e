// The name travels inside the message of the status, before the first ": ", because a gRPC status
// has no field for it and several refusals share a code.
#include "server/client/refusal.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

absl::StatusCode CodeOf(v1::Refusal refusal) {
  switch (refusal) {
    case v1::REFUSAL_STALE_GENERATION:
    case v1::REFUSAL_UNKNOWN_MEMBER:
    case v1::REFUSAL_OUT_OF_ORDER:
      return absl::StatusCode::kAborted;
    case v1::REFUSAL_PROTOCOL:
    case v1::REFUSAL_CLOSED_ROUND:
    case v1::REFUSAL_WRONG_BASE:
    case v1::REFUSAL_WRONG_LINEAGE:
    case v1::REFUSAL_SCREENED:
      return absl::StatusCode::kFailedPrecondition;
    case v1::REFUSAL_WRONG_CRC:
    case v1::REFUSAL_WRONG_DIGEST:
      return absl::StatusCode::kDataLoss;
    case v1::REFUSAL_UNSPECIFIED:
    case v1::REFUSAL_UNKNOWN_RUN:
      return absl::StatusCode::kUnavailable;
    case v1::REFUSAL_WRONG_KEY:
    case v1::REFUSAL_WRONG_IDENTITY:
      return absl::StatusCode::kPermissionDenied;
    case v1::REFUSAL_MALFORMED:
    case v1::REFUSAL_OVERSIZED:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

std::string RefusalName(v1::Refusal refusal) {
  return refusal == v1::REFUSAL_UNSPECIFIED ? "busy" : EnumText(refusal);
}

absl::Status RefusalStatus(v1::Refusal refusal, absl::string_view reason) {
  return absl::Status(CodeOf(refusal), absl::StrCat(RefusalName(refusal), ": ", reason));
}

v1::Refusal RefusalOf(const absl::Status& status) {
  const std::string message(status.message());
  const size_t colon = message.find(": ");
  if (status.ok() || colon == std::string::npos) return v1::REFUSAL_UNSPECIFIED;
  v1::Refusal refusal;
  const std::string name =
      absl::StrCat("REFUSAL_", absl::AsciiStrToUpper(message.substr(0, colon)));
  return v1::Refusal_Parse(name, &refusal) ? refusal : v1::REFUSAL_UNSPECIFIED;
}

}  // namespace cadre
