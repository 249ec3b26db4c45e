// What Cadre uses of NCCL, as a table of functions: those of the library, loaded when asked for, or
// those of a test.
//
// A value; thread-safe.
#pragma once

#include <nccl.h>

#include "absl/status/statusor.h"
#include "device/cuda/library_loader.h"

namespace cadre {

struct NcclApi {
  ncclResult_t (*version)(int* version) = nullptr;
  ncclResult_t (*unique_id)(ncclUniqueId* id) = nullptr;
  ncclResult_t (*init)(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                       ncclConfig_t* config) = nullptr;
  ncclResult_t (*split)(ncclComm_t comm, int color, int key, ncclComm_t* made,
                        ncclConfig_t* config) = nullptr;
  ncclResult_t (*finalize)(ncclComm_t comm) = nullptr;
  ncclResult_t (*destroy)(ncclComm_t comm) = nullptr;
  ncclResult_t (*abort)(ncclComm_t comm) = nullptr;
  // What goes on in the background of a non-blocking communicator: ncclInProgress, or an error.
  ncclResult_t (*async_error)(ncclComm_t comm, ncclResult_t* error) = nullptr;
  const char* (*error_text)(ncclResult_t result) = nullptr;
  const char* (*last_error)(ncclComm_t comm) = nullptr;

  ncclResult_t (*group_start)() = nullptr;
  ncclResult_t (*group_end)() = nullptr;
  ncclResult_t (*send)(const void* from, size_t count, ncclDataType_t type, int peer,
                       ncclComm_t comm, cudaStream_t stream) = nullptr;
  ncclResult_t (*receive)(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                          cudaStream_t stream) = nullptr;
  ncclResult_t (*all_reduce)(const void* from, void* to, size_t count, ncclDataType_t type,
                             ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) = nullptr;
  ncclResult_t (*reduce)(const void* from, void* to, size_t count, ncclDataType_t type,
                         ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) = nullptr;
  ncclResult_t (*reduce_scatter)(const void* from, void* to, size_t count, ncclDataType_t type,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) = nullptr;
  ncclResult_t (*all_gather)(const void* from, void* to, size_t count, ncclDataType_t type,
                             ncclComm_t comm, cudaStream_t stream) = nullptr;
  ncclResult_t (*broadcast)(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                            ncclComm_t comm, cudaStream_t stream) = nullptr;

  ncclResult_t (*register_memory)(ncclComm_t comm, void* memory, size_t bytes,
                                  void** handle) = nullptr;
  ncclResult_t (*deregister_memory)(ncclComm_t comm, void* handle) = nullptr;
};

// Errors: FailedPrecondition, saying which library is missing or too old, where it was looked for
// and how to get it.
absl::StatusOr<NcclApi> LoadNccl(const LibrarySearch& search);

}  // namespace cadre
