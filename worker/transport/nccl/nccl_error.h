// Converts NCCL's errors to Status, and element types to NCCL's types.
//
//   Unavailable         a peer, the network or the device is lost: other hosts may succeed
//   FailedPrecondition  NCCL rejects the configuration, such as one GPU for two ranks: no retry
//                       can succeed
//   Internal            an invalid call: a bug
//
// Thread-safe (pure functions).
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensor/dtype.h"
#include "worker/transport/nccl/nccl_api.h"

namespace cadre {

inline bool IsError(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

// `what` describes the attempt; `comm` may be null. Requires: `result` is an error.
absl::Status NcclStatus(const NcclApi& api, ncclResult_t result, ncclComm_t comm,
                        absl::string_view what);
// The same while a communicator is created, when an invalid call means an invalid configuration of
// the hosts.
absl::Status NcclInitStatus(const NcclApi& api, ncclResult_t result, ncclComm_t comm,
                            absl::string_view what);

ncclDataType_t NcclType(DType type);

}  // namespace cadre
