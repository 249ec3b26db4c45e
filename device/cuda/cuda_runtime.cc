// The table of the real runtime, which is linked statically: programs start on machines without a
// driver, and the runtime then reports cudaErrorInsufficientDriver or cudaErrorNoDevice.
//
// The code that nvcc adds to every file with kernels calls __cudaRegisterFunction for each of them
// before main. The linker redirects those calls to the function below (--wrap, an option of this
// library), so that the list of kernels is complete whatever a program links.
#include <cuda_runtime_api.h>

#include <vector>

#include "device/cuda/cuda_api.h"

namespace cadre {
namespace {

// The host's stubs of all kernels, by which the runtime knows them.
std::vector<const void*>& Kernels() {
  static auto* const kernels = new std::vector<const void*>;
  return *kernels;
}

}  // namespace
}  // namespace cadre

// NOLINTBEGIN: the names and types are CUDA's and the linker's.
extern "C" {

void __real___cudaRegisterFunction(void** module, const char* stub, char* device_stub,
                                   const char* name, int thread_limit, uint3* thread, uint3* block,
                                   dim3* block_size, dim3* grid_size, int* warp_size);

void __wrap___cudaRegisterFunction(void** module, const char* stub, char* device_stub,
                                   const char* name, int thread_limit, uint3* thread, uint3* block,
                                   dim3* block_size, dim3* grid_size, int* warp_size) {
  cadre::Kernels().push_back(stub);
  __real___cudaRegisterFunction(module, stub, device_stub, name, thread_limit, thread, block,
                                block_size, grid_size, warp_size);
}

}  // extern "C"
// NOLINTEND

namespace cadre {
namespace {

// A kernel is loaded when its attributes are requested (CUDA programming guide, "Lazy Loading").
cudaError_t LoadKernels() {
  for (const void* kernel : Kernels()) {
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t Launch(const void* kernel, dim3 grid, dim3 block, void** arguments, cudaStream_t stream,
                   const std::function<void()>& /*on_host*/) {
  return cudaLaunchKernel(kernel, grid, block, arguments, /*sharedMem=*/0, stream);
}

constexpr CudaApi kRuntime = {
    .driver_version = cudaDriverGetVersion,
    .runtime_version = cudaRuntimeGetVersion,
    .device_count = cudaGetDeviceCount,
    .set_device = cudaSetDevice,
    .properties = cudaGetDeviceProperties,
    .memory_info = cudaMemGetInfo,
    .malloc = cudaMalloc,
    .free = cudaFree,
    .host_alloc = cudaHostAlloc,
    .free_host = cudaFreeHost,
    .copy_async = cudaMemcpyAsync,
    .set_async = cudaMemsetAsync,
    .stream_create = cudaStreamCreateWithPriority,
    .stream_destroy = cudaStreamDestroy,
    .stream_wait_event = cudaStreamWaitEvent,
    .event_create = cudaEventCreateWithFlags,
    .event_destroy = cudaEventDestroy,
    .event_record = cudaEventRecord,
    .event_query = cudaEventQuery,
    .event_elapsed = cudaEventElapsedTime,
    .load_kernels = LoadKernels,
    .launch = Launch,
    .begin_capture = cudaStreamBeginCapture,
    .end_capture = cudaStreamEndCapture,
    .graph_instantiate = cudaGraphInstantiate,
    .graph_launch = cudaGraphLaunch,
    .graph_exec_destroy = cudaGraphExecDestroy,
    .graph_destroy = cudaGraphDestroy,
    .last_error = cudaGetLastError,
    .error_name = cudaGetErrorName,
    .error_text = cudaGetErrorString,
};

}  // namespace

const CudaApi& RealCudaApi() { return kRuntime; }

size_t LinkedKernels() { return Kernels().size(); }

}  // namespace cadre
