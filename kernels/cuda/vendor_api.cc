// The functions are looked up one by one, so that the error for a library that is too old names the
// first function that it lacks.
//
// Libraries return their own codes even if the CUDA runtime caused the failure, and those codes do
// not show whether the device is lost. So LibraryError asks the device first.
#include "kernels/cuda/vendor_api.h"

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "device/cuda/cuda_machine.h"

namespace cadre {
namespace {

// "cuDNN 9.19.0".
std::string NameAndVersion(absl::string_view name, size_t version) {
  return absl::StrCat(name, " ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace

absl::StatusOr<CublasLtApi> LoadCublasLt(const LibrarySearch& search) {
  CADRE_ASSIGN_OR_RETURN(const LoadedLibrary library, LoadLibrary(CublasLtLibrary(), search));
  CublasLtApi api;
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtCreate", api.create));
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtDestroy", api.destroy));
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtGetVersion", api.version));
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtGetStatusString", api.status_text));
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtMatmul", api.multiply));
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtMatmulAlgoGetHeuristic", api.suggest));
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtMatmulDescCreate", api.description_create));
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtMatmulDescDestroy", api.description_destroy));
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtMatmulDescSetAttribute", api.description_set));
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtMatrixLayoutCreate", api.layout_create));
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtMatrixLayoutDestroy", api.layout_destroy));
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtMatrixLayoutSetAttribute", api.layout_set));
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtMatmulPreferenceCreate", api.preference_create));
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtMatmulPreferenceDestroy", api.preference_destroy));
  CADRE_RETURN_IF_ERROR(library.Find("cublasLtMatmulPreferenceSetAttribute", api.preference_set));
  return api;
}

std::string CublasLtVersion(const CublasLtApi& api) {
  return NameAndVersion("cuBLASLt", api.version());
}

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

std::string CudnnVersion(const CudnnApi& api) { return NameAndVersion("cuDNN", api.version()); }

absl::Status LibraryError(CudaDevice& device, absl::string_view what, absl::string_view text,
                          LibraryFault fault) {
  const std::string message = absl::StrCat(what, ": ", text);
  const cudaError_t cause = device.CauseOfLibraryError();
  if (cause != cudaSuccess) return CudaStatus(device.api(), cause, message);
  switch (fault) {
    case LibraryFault::kOutOfMemory:
      return absl::ResourceExhaustedError(message);
    case LibraryFault::kNoPlan:
      return WithReason(absl::FailedPreconditionError(message), kReasonNoPlan);
    case LibraryFault::kOther:
      break;
  }
  return absl::InternalError(message);
}

}  // namespace cadre
