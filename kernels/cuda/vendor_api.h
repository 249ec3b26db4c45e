// The functions of cuBLASLt and cuDNN 9 that Cadre uses, as tables of pointers that are loaded at
// run time; and the conversion of a failed call to a status.
//
// Thread-safe.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "device/cuda/cuda_device.h"
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

// Errors: those of LoadLibrary.
absl::StatusOr<CublasLtApi> LoadCublasLt(const LibrarySearch& search);

// "cuBLASLt 13.1.0".
std::string CublasLtVersion(const CublasLtApi& api);

struct CudnnApi {
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnGetVersion) version = nullptr;
  decltype(&cudnnGetErrorString) error_text = nullptr;
  decltype(&cudnnGetLastErrorString) last_error_text = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnGetStream) get_stream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) descriptor_create = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) descriptor_destroy = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
};

// Errors: those of LoadLibrary; FailedPrecondition for a version before 9.
absl::StatusOr<CudnnApi> LoadCudnn(const LibrarySearch& search);

// "cuDNN 9.19.0".
std::string CudnnVersion(const CudnnApi& api);

// The kinds of errors of a library that callers distinguish. kNoPlan: no algorithm of cuBLASLt, or
// execution plan of cuDNN, supports the operation.
enum class LibraryFault : uint8_t { kOther, kOutOfMemory, kNoPlan };

// The status of the failed call `what`, for which the library reported `text`. If the CUDA runtime
// has an error, that is the cause and determines the code; otherwise `fault` does: Internal,
// ResourceExhausted, or FailedPrecondition with kReasonNoPlan.
absl::Status LibraryError(CudaDevice& device, absl::string_view what, absl::string_view text,
                          LibraryFault fault);

}  // namespace cadre
