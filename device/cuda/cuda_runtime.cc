// The table of the real runtime, which is linked statically: programs start on machines without a
// driver, and the runtime then reports cudaErrorInsufficientDriver or cudaErrorNoDevice.
#include <cuda_runtime_api.h>

#include "device/cuda/cuda_api.h"

namespace cadre {
namespace {

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

}  // namespace cadre
