// Includes NVIDIA's cudnn-frontend such that its calls of cuDNN and of the CUDA runtime go through
// Cadre's function tables (vendor_api.h, cuda_api.h) instead of linked functions. Only the file
// that builds the frontend's graphs includes this header.
//
// The frontend calls free functions, so a CudnnCalls object that is alive on the calling thread
// selects the tables. Requires: such an object is alive during every use of the frontend, including
// the destruction of the frontend's objects.
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "device/cuda/cuda_api.h"
#include "kernels/cuda/vendor_api.h"

namespace cadre {

// Selects the tables for this thread during the object's lifetime.
class CudnnCalls {
 public:
  CudnnCalls(const CudnnApi& cudnn, const CudaApi& cuda, int ordinal)
      : cudnn_(cudnn), cuda_(cuda), ordinal_(ordinal), outer_(current) {
    current = this;
  }
  ~CudnnCalls() { current = outer_; }
  CudnnCalls(const CudnnCalls&) = delete;
  CudnnCalls& operator=(const CudnnCalls&) = delete;

  static const CudnnApi& Cudnn() { return current->cudnn_; }
  static cudaError_t Device(int* device) {
    *device = current->ordinal_;
    return cudaSuccess;
  }
  static cudaError_t Properties(cudaDeviceProp* properties, int device) {
    return current->cuda_.properties(properties, device);
  }
  static cudaError_t Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                          cudaStream_t stream) {
    return current->cuda_.copy_async(to, from, bytes, kind, stream);
  }
  static cudaError_t Set(void* memory, int value, size_t bytes, cudaStream_t stream) {
    return current->cuda_.set_async(memory, value, bytes, stream);
  }
  // For the frontend's autotuner, which is compiled but not used.
  template <typename... Arguments>
  static cudaError_t NotUsed(const Arguments&... /*arguments*/) {
    return cudaErrorNotSupported;
  }
  static const char* Text(cudaError_t error) { return current->cuda_.error_text(error); }

 private:
  static inline thread_local const CudnnCalls* current = nullptr;

  const CudnnApi& cudnn_;
  const CudaApi& cuda_;
  const int ordinal_;
  const CudnnCalls* const outer_;
};

}  // namespace cadre

// The toolkit's headers may have defined this macro.
#undef cudaGetDeviceProperties
#define cudaGetDevice ::cadre::CudnnCalls::Device
#define cudaGetDeviceProperties ::cadre::CudnnCalls::Properties
#define cudaDeviceSynchronize ::cadre::CudnnCalls::NotUsed
#define cudaEventCreate ::cadre::CudnnCalls::NotUsed
#define cudaEventDestroy ::cadre::CudnnCalls::NotUsed
#define cudaEventElapsedTime ::cadre::CudnnCalls::NotUsed
#define cudaEventRecord ::cadre::CudnnCalls::NotUsed
#define cudaEventSynchronize ::cadre::CudnnCalls::NotUsed
#define cudaMemcpyAsync ::cadre::CudnnCalls::Copy
#define cudaMemsetAsync ::cadre::CudnnCalls::Set
#define cudaGetErrorString ::cadre::CudnnCalls::Text
#define cudnnCreate ::cadre::CudnnCalls::Cudnn().create
#define cudnnDestroy ::cadre::CudnnCalls::Cudnn().destroy
#define cudnnGetVersion ::cadre::CudnnCalls::Cudnn().version
#define cudnnGetErrorString ::cadre::CudnnCalls::Cudnn().error_text
#define cudnnGetLastErrorString ::cadre::CudnnCalls::Cudnn().last_error_text
#define cudnnSetStream ::cadre::CudnnCalls::Cudnn().set_stream
#define cudnnGetStream ::cadre::CudnnCalls::Cudnn().get_stream
#define cudnnBackendCreateDescriptor ::cadre::CudnnCalls::Cudnn().descriptor_create
#define cudnnBackendDestroyDescriptor ::cadre::CudnnCalls::Cudnn().descriptor_destroy
#define cudnnBackendSetAttribute ::cadre::CudnnCalls::Cudnn().set_attribute
#define cudnnBackendGetAttribute ::cadre::CudnnCalls::Cudnn().get_attribute
#define cudnnBackendFinalize ::cadre::CudnnCalls::Cudnn().finalize
#define cudnnBackendExecute ::cadre::CudnnCalls::Cudnn().execute

#include <cudnn_frontend.h>  // NOLINT: after the above
