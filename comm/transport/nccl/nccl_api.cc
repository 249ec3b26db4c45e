#include "comm/transport/nccl/nccl_api.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

absl::StatusCode CodeOf(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
    case ncclSystemError:
    case ncclUnhandledCudaError:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

// "all-reduce by ring ...: NCCL: remote process exited or there was a network error (details)".
std::string TextOf(const NcclApi& api, ncclResult_t result, ncclComm_t comm,
                   absl::string_view what) {
  std::string text = absl::StrCat(what, ": NCCL: ", api.error_text(result));
  const char* const last = comm == nullptr ? nullptr : api.last_error(comm);
  const absl::string_view details = last == nullptr ? "" : absl::StripAsciiWhitespace(last);
  if (!details.empty()) absl::StrAppend(&text, " (", details, ")");
  return text;
}

}  // namespace

absl::Status NcclStatus(const NcclApi& api, ncclResult_t result, ncclComm_t comm,
                        absl::string_view what) {
  return absl::Status(CodeOf(result), TextOf(api, result, comm, what));
}

absl::Status NcclInitStatus(const NcclApi& api, ncclResult_t result, ncclComm_t comm,
                            absl::string_view what) {
  if (result != ncclInvalidUsage) return NcclStatus(api, result, comm, what);
  return absl::FailedPreconditionError(TextOf(api, result, comm, what));
}

}  // namespace cadre
