// The functions of cuDNN 9 that Cadre uses, as a table that is loaded at run time.
//
// A value; thread-safe.
#pragma once

#include <cudnn.h>

#include <string>

#include "absl/status/statusor.h"
#include "device/cuda/library_loader.h"

namespace cadre {

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

// Errors: LoadLibrary's; FailedPrecondition for a version before 9.
absl::StatusOr<CudnnApi> LoadCudnn(const LibrarySearch& search);

// "cuDNN 9.19.0".
std::string CudnnVersion(const CudnnApi& api);

}  // namespace cadre
