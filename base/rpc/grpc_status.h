// Converts a gRPC status to an absl::Status and back; both use the same numbers for the codes.
//
// Thread-safe (pure functions).
#pragma once

#include <grpcpp/support/status.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

// A retry delay is converted as well (google.rpc.RetryInfo); other details are lost.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// ResourceExhausted: the callee has too much to do; the caller may try again after the delay.
absl::Status BusyError(absl::string_view message,
                       absl::Duration retry_after = absl::Milliseconds(250));
// Unavailable: the callee serves no calls at present, and has not begun this one; another server
// may, or the same one after the delay.
absl::Status NotServingError(absl::string_view message,
                             absl::Duration retry_after = absl::Milliseconds(250));
// The delay in a BusyError or NotServingError.
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

}  // namespace cadre
