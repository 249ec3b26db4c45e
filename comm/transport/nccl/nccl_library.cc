#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/transport/nccl/nccl_api.h"
#include "device/cuda/library_loader.h"

namespace cadre {
namespace {

// The first version in which splitting, registered buffers and non-blocking communicators work
// together.
constexpr int kMinVersion = 22200;

// Decodes NCCL_VERSION_CODE: 22809 is 2.28.9.
std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::Status CheckVersion(const NcclApi& api, const std::string& path) {
  int version = 0;
  if (ncclResult_t result = api.version(&version); result != ncclSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL (", path, ") does not report its version: ", api.error_text(result)));
  }
  // Versions before 2.9 were encoded differently, as smaller numbers.
  if (version < kMinVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL (", path, ") is version ", VersionText(version), "; at least ",
                     VersionText(kMinVersion), " is needed: ", NcclLibrary().how_to_get));
  }
  return absl::OkStatus();
}

absl::Status FindFunctions(const LoadedLibrary& library, NcclApi& api) {
  CADRE_RETURN_IF_ERROR(library.Find("ncclGetVersion", api.version));
  CADRE_RETURN_IF_ERROR(library.Find("ncclGetErrorString", api.error_text));
  // Before the other functions, so that the error for an old library names its version.
  CADRE_RETURN_IF_ERROR(CheckVersion(api, library.path()));
  CADRE_RETURN_IF_ERROR(library.Find("ncclGetUniqueId", api.unique_id));
  CADRE_RETURN_IF_ERROR(library.Find("ncclCommInitRankConfig", api.init));
  CADRE_RETURN_IF_ERROR(library.Find("ncclCommSplit", api.split));
  CADRE_RETURN_IF_ERROR(library.Find("ncclCommFinalize", api.finalize));
  CADRE_RETURN_IF_ERROR(library.Find("ncclCommDestroy", api.destroy));
  CADRE_RETURN_IF_ERROR(library.Find("ncclCommAbort", api.abort));
  CADRE_RETURN_IF_ERROR(library.Find("ncclCommGetAsyncError", api.async_error));
  CADRE_RETURN_IF_ERROR(library.Find("ncclGetLastError", api.last_error));
  CADRE_RETURN_IF_ERROR(library.Find("ncclCommRegister", api.register_memory));
  CADRE_RETURN_IF_ERROR(library.Find("ncclCommDeregister", api.deregister_memory));
  CADRE_RETURN_IF_ERROR(library.Find("ncclGroupStart", api.group_start));
  CADRE_RETURN_IF_ERROR(library.Find("ncclGroupEnd", api.group_end));
  CADRE_RETURN_IF_ERROR(library.Find("ncclSend", api.send));
  CADRE_RETURN_IF_ERROR(library.Find("ncclRecv", api.receive));
  CADRE_RETURN_IF_ERROR(library.Find("ncclAllReduce", api.all_reduce));
  CADRE_RETURN_IF_ERROR(library.Find("ncclReduce", api.reduce));
  CADRE_RETURN_IF_ERROR(library.Find("ncclReduceScatter", api.reduce_scatter));
  CADRE_RETURN_IF_ERROR(library.Find("ncclAllGather", api.all_gather));
  return library.Find("ncclBroadcast", api.broadcast);
}

}  // namespace

absl::StatusOr<NcclApi> LoadNccl(const LibrarySearch& search) {
  CADRE_ASSIGN_OR_RETURN(const LoadedLibrary library, LoadLibrary(NcclLibrary(), search));
  NcclApi api;
  CADRE_RETURN_IF_ERROR(FindFunctions(library, api));
  return api;
}

absl::StatusOr<const NcclApi*> LazyNccl::ForGroup(int ranks) {
  if (ranks > 1 && !loaded_) {
    absl::StatusOr<NcclApi> api = LoadNccl(search_);
    if (!api.ok()) {
      return Annotate(api.status(),
                      absl::StrCat("a group of ", ranks, " ranks on GPUs needs NCCL"));
    }
    api_ = *api;
    loaded_ = true;
  }
  return &api_;
}

}  // namespace cadre
