// The functions of cuBLASLt that Cadre uses, as a table that is loaded at run time.
//
// A value; thread-safe.
#pragma once

#include <cublasLt.h>

#include <string>

#include "absl/status/statusor.h"
#include "device/cuda/library_loader.h"

namespace cadre {

struct CublasLtApi {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtGetStatusString) status_text = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) suggest = nullptr;
  decltype(&cublasLtMatmulDescCreate) description_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) description_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) description_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
};

// Errors: LoadLibrary's.
absl::StatusOr<CublasLtApi> LoadCublasLt(const LibrarySearch& search);

// "cuBLASLt 13.1.0".
std::string CublasLtVersion(const CublasLtApi& api);

}  // namespace cadre
