// What an error of NCCL means for whoever called.
//
//   Unavailable         a peer or the network is gone, or the device: others may do
//   FailedPrecondition  NCCL refuses what it is to connect, such as one GPU for two ranks: nothing
//                       that a retry would mend
//   Internal            a call that NCCL does not take: a bug
//
// Thread-safe (pure functions).
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensor/dtype.h"
#include "worker/transport/nccl/nccl_api.h"

namespace cadre {

// `what`, for people, was tried; `comm` may be null. Requires: neither success nor in progress.
absl::Status NcclStatus(const NcclApi& api, ncclResult_t result, ncclComm_t comm,
                        absl::string_view what);
// The same while communicators are made, when what NCCL does not take is the machines' set-up.
absl::Status NcclInitStatus(const NcclApi& api, ncclResult_t result, ncclComm_t comm,
                            absl::string_view what);

ncclDataType_t NcclType(DType type);

}  // namespace cadre
