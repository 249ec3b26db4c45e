// A table of the NCCL functions that Cadre uses. They are the library's functions, or a test's.
//
// Errors of NCCL are converted to Status:
//   Unavailable         a peer, the network or the device is lost: other hosts may succeed
//   FailedPrecondition  NCCL rejects the configuration, such as one GPU for two ranks: no retry
//                       can succeed
//   Internal            an invalid call: a bug
//
// Thread-safe (a value and pure functions).
#pragma once

#include <nccl.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "device/cuda/library_loader.h"

namespace cadre {

struct NcclApi {
  decltype(&ncclGetVersion) version = nullptr;
  decltype(&ncclGetUniqueId) unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommSplit) split = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  // State of a non-blocking communicator: ncclSuccess, ncclInProgress or an error.
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclGetErrorString) error_text = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;

  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;

  decltype(&ncclCommRegister) register_memory = nullptr;
  decltype(&ncclCommDeregister) deregister_memory = nullptr;
};

// Errors: FailedPrecondition, stating which library is missing or too old, which paths were
// searched and how to install it.
absl::StatusOr<NcclApi> LoadNccl(const LibrarySearch& search);

// NCCL, which is loaded for the first group of several ranks: a rank alone does not need it.
//
// Thread-compatible.
class LazyNccl {
 public:
  explicit LazyNccl(LibrarySearch search) : search_(std::move(search)) {}
  // The table for a group of `ranks`; without functions if NCCL is not needed. Valid during the
  // object's lifetime. Errors: those of LoadNccl.
  absl::StatusOr<const NcclApi*> ForGroup(int ranks);

 private:
  const LibrarySearch search_;
  NcclApi api_;
  bool loaded_ = false;
};

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

}  // namespace cadre
