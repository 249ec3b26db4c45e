#include "kernels/cuda/cudnn_library.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cadre {

absl::StatusOr<CudnnApi> LoadCudnn(const LibrarySearch& search) {
  CADRE_ASSIGN_OR_RETURN(const LoadedLibrary library, LoadLibrary(CudnnLibrary(), search));
  CudnnApi api;
  CADRE_RETURN_IF_ERROR(library.Find("cudnnGetVersion", api.version));
  if (api.version() < 90000) {
    return absl::FailedPreconditionError(absl::StrCat(library.path(), " is ", CudnnVersion(api),
                                                      "; cuDNN 9 is needed (nvidia-cudnn-cu13)"));
  }
  CADRE_RETURN_IF_ERROR(library.Find("cudnnCreate", api.create));
  CADRE_RETURN_IF_ERROR(library.Find("cudnnDestroy", api.destroy));
  CADRE_RETURN_IF_ERROR(library.Find("cudnnGetErrorString", api.error_text));
  CADRE_RETURN_IF_ERROR(library.Find("cudnnGetLastErrorString", api.last_error_text));
  CADRE_RETURN_IF_ERROR(library.Find("cudnnSetStream", api.set_stream));
  CADRE_RETURN_IF_ERROR(library.Find("cudnnGetStream", api.get_stream));
  CADRE_RETURN_IF_ERROR(library.Find("cudnnBackendCreateDescriptor", api.descriptor_create));
  CADRE_RETURN_IF_ERROR(library.Find("cudnnBackendDestroyDescriptor", api.descriptor_destroy));
  CADRE_RETURN_IF_ERROR(library.Find("cudnnBackendSetAttribute", api.set_attribute));
  CADRE_RETURN_IF_ERROR(library.Find("cudnnBackendGetAttribute", api.get_attribute));
  CADRE_RETURN_IF_ERROR(library.Find("cudnnBackendFinalize", api.finalize));
  CADRE_RETURN_IF_ERROR(library.Find("cudnnBackendExecute", api.execute));
  return api;
}

std::string CudnnVersion(const CudnnApi& api) {
  const size_t version = api.version();
  return absl::StrCat("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace cadre
