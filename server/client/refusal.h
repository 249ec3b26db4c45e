// Refusals by name: how an aggregator says why it took nothing, and how a caller finds out.
//
// A refusal travels as a status whose message begins with the refusal's name in lower case:
// "wrong_crc: chunk 3 of ...". Its code says what the caller can do:
//
//   stale_generation, unknown_member, out_of_order  Aborted             the place is lost: re-plan
//   closed_round, wrong_base, wrong_lineage, schema FailedPrecondition  stop; ask the coordinator
//   wrong_crc, wrong_digest                         DataLoss            bytes were damaged
//   unknown_run                                     NotFound            not this aggregator's
//   malformed, oversized                            InvalidArgument     the caller's bug
//
// Thread-safe (pure functions).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// The name in lower case without prefix, such as "stale_generation"; "unspecified" for none.
std::string RefusalName(v1::Refusal refusal);

// The status that tells it: "<name>: <reason>".
absl::Status RefusalStatus(v1::Refusal refusal, absl::string_view reason);

// The refusal that `status` tells; REFUSAL_UNSPECIFIED if it tells none.
v1::Refusal RefusalOf(const absl::Status& status);

}  // namespace cadre
