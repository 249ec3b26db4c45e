// Converts a gRPC status to an absl::Status and back; both use the same numbers for the codes.
//
// Thread-safe (pure functions).
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace cadre {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace cadre
