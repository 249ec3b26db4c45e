// gRPC status to absl::Status and back; the codes are the same numbers by design.
//
// Thread-safe (pure functions).
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace cadre {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace cadre
