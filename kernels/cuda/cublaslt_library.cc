// The functions are looked up one by one, so that the error for a library that is too old names the
// first function that it lacks.
#include "kernels/cuda/cublaslt_library.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cadre {

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
  const size_t version = api.version();
  return absl::StrCat("cuBLASLt ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace cadre
