// A script that waits for a cluster must distinguish "there is no such run" (3) and "try again" (4)
// from other failures (1); "this is not permitted" (5) needs an operator.
#include "cli/console.h"

#include "base/peer_text.h"

namespace cadre {
namespace {

constexpr absl::string_view kUsagePayload = "cadre/usage";

}  // namespace

absl::Status UsageError(absl::string_view message) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

bool IsUsageError(const absl::Status& status) {
  return status.GetPayload(kUsagePayload).has_value();
}

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnavailable;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kExitDenied;
    default:
      return kExitFailure;
  }
}

// The message is one line, so that scripts can log it as it is.
ExitCode Fail(const Console& console, const absl::Status& status) {
  console.err << "cadre: " << Escaped(status.message(), LineBreaks::kKeep) << std::endl;
  return ExitCodeOf(status);
}

}  // namespace cadre
