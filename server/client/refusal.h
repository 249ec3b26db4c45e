// Refusals of the protocol (v1::Refusal) as gRPC statuses, and back.
//
// The message of the status starts with the name of the refusal in lower case, such as
// "wrong_crc: chunk 3 of ...". The status code determines how the caller reacts:
//
//   stale_generation, unknown_member, out_of_order   Aborted             the rank is lost
//   closed_round, wrong_base, wrong_lineage          FailedPrecondition  the coordinator decides
//   protocol                                         FailedPrecondition  an incompatible build
//   wrong_crc, wrong_digest                          DataLoss            bytes were damaged
//   unknown_run                                      Unavailable         not open here yet: retry
//   busy (REFUSAL_UNSPECIFIED)                       Unavailable         being restored: retry
//   wrong_key                                        PermissionDenied    not a rank of the group
//   malformed, oversized                             InvalidArgument     the caller has a bug
//
// Thread-safe (pure functions).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// Name in lower case without prefix, such as "stale_generation"; "busy" for none.
std::string RefusalName(v1::Refusal refusal);

// Status with the message "<name>: <reason>".
absl::Status RefusalStatus(v1::Refusal refusal, absl::string_view reason);

// The refusal in `status`; REFUSAL_UNSPECIFIED if none.
v1::Refusal RefusalOf(const absl::Status& status);

}  // namespace cadre
