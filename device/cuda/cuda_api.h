// The functions of the CUDA runtime that Cadre uses, as a table of pointers: to the real runtime
// (cuda_runtime.cc), or to a test's emulation on the host.
//
// A value; thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace cadre {

struct CudaApi {
  cudaError_t (*driver_version)(int* version) = nullptr;
  cudaError_t (*runtime_version)(int* version) = nullptr;
  cudaError_t (*device_count)(int* count) = nullptr;
  cudaError_t (*set_device)(int device) = nullptr;
  cudaError_t (*properties)(cudaDeviceProp* properties, int device) = nullptr;
  cudaError_t (*memory_info)(size_t* free, size_t* total) = nullptr;

  cudaError_t (*malloc)(void** memory, size_t bytes) = nullptr;
  cudaError_t (*free)(void* memory) = nullptr;
  cudaError_t (*host_alloc)(void** memory, size_t bytes, unsigned flags) = nullptr;
  cudaError_t (*free_host)(void* memory) = nullptr;
  cudaError_t (*copy_async)(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) = nullptr;
  cudaError_t (*set_async)(void* memory, int value, size_t bytes, cudaStream_t stream) = nullptr;

  cudaError_t (*stream_create)(cudaStream_t* stream, unsigned flags, int priority) = nullptr;
  cudaError_t (*stream_destroy)(cudaStream_t stream) = nullptr;
  cudaError_t (*stream_wait_event)(cudaStream_t stream, cudaEvent_t event,
                                   unsigned flags) = nullptr;
  cudaError_t (*event_create)(cudaEvent_t* event, unsigned flags) = nullptr;
  cudaError_t (*event_destroy)(cudaEvent_t event) = nullptr;
  cudaError_t (*event_record)(cudaEvent_t event, cudaStream_t stream) = nullptr;
  cudaError_t (*event_query)(cudaEvent_t event) = nullptr;
  cudaError_t (*event_elapsed)(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) = nullptr;

  // Loads all kernels that the program contains, on the current device.
  cudaError_t (*load_kernels)() = nullptr;
  // `on_host` runs the kernel on the host; it is empty in a build for real devices (launch.h).
  cudaError_t (*launch)(const void* kernel, dim3 grid, dim3 block, void** arguments,
                        cudaStream_t stream, const std::function<void()>& on_host) = nullptr;

  cudaError_t (*begin_capture)(cudaStream_t stream, cudaStreamCaptureMode mode) = nullptr;
  cudaError_t (*end_capture)(cudaStream_t stream, cudaGraph_t* graph) = nullptr;
  cudaError_t (*graph_instantiate)(cudaGraphExec_t* made, cudaGraph_t graph,
                                   unsigned long long flags) = nullptr;  // NOLINT: as CUDA has it
  cudaError_t (*graph_launch)(cudaGraphExec_t graph, cudaStream_t stream) = nullptr;
  cudaError_t (*graph_exec_destroy)(cudaGraphExec_t graph) = nullptr;
  cudaError_t (*graph_destroy)(cudaGraph_t graph) = nullptr;

  cudaError_t (*last_error)() = nullptr;
  const char* (*error_name)(cudaError_t error) = nullptr;
  const char* (*error_text)(cudaError_t error) = nullptr;
};

// The table of the CUDA runtime that the program is linked with.
const CudaApi& RealCudaApi();

// Number of kernels in the program, which RealCudaApi().load_kernels loads.
size_t LinkedKernels();

}  // namespace cadre
