// A cuDNN that computes nothing: it accepts every description and offers as many engines as a test
// says. Its functions have no object, so the state is a global variable.
#pragma once

#include <cudnn.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>

#include "kernels/cuda/vendor_api.h"

namespace cadre {

struct FakeCudnnState {
  // What the heuristics return, and what an execution returns.
  int64_t engines = 1;
  cudnnStatus_t execution = CUDNN_STATUS_SUCCESS;
  int64_t workspace = 1000;
  // Is called by every execution.
  std::function<void()> on_execute = [] {};
  // Counts of calls, and of objects that exist.
  int queries = 0, executions = 0, handles = 0, descriptors = 0;
};
inline FakeCudnnState fake_cudnn;

// Attributes that were not set are empty lists, or zeros; descriptors that the caller passes stay
// as they are.
inline cudnnStatus_t GetFakeAttribute(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t name,
                                      cudnnBackendAttributeType_t type, int64_t requested,
                                      int64_t* count, void* elements) {
  int64_t found = 0;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    found = fake_cudnn.engines;
    if (elements == nullptr) ++fake_cudnn.queries;
  }
  if (type == CUDNN_TYPE_INT64 && elements != nullptr) {
    const bool workspace = name == CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE ||
                           name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE;
    const int64_t value = workspace ? fake_cudnn.workspace : 0;
    std::fill_n(static_cast<int64_t*>(elements), requested, value);
    found = requested;
  }
  if (type == CUDNN_TYPE_INT32 && elements != nullptr) {
    std::fill_n(static_cast<int32_t*>(elements), requested, 0);
    found = requested;
  }
  if (count != nullptr) *count = found;
  return CUDNN_STATUS_SUCCESS;
}

inline CudnnApi FakeCudnn() {
  CudnnApi api;
  api.create = [](cudnnHandle_t* handle) {
    ++fake_cudnn.handles;
    *handle = reinterpret_cast<cudnnHandle_t>(&fake_cudnn);
    return CUDNN_STATUS_SUCCESS;
  };
  api.destroy = [](cudnnHandle_t) {
    --fake_cudnn.handles;
    return CUDNN_STATUS_SUCCESS;
  };
  api.version = []() -> size_t { return CUDNN_VERSION; };
  api.error_text = [](cudnnStatus_t) { return "it did not work"; };
  api.last_error_text = [](char* text, size_t size) { std::strncpy(text, "no engine fits", size); };
  api.set_stream = [](cudnnHandle_t, cudaStream_t) { return CUDNN_STATUS_SUCCESS; };
  api.get_stream = [](cudnnHandle_t, cudaStream_t* stream) {
    *stream = nullptr;
    return CUDNN_STATUS_SUCCESS;
  };
  api.descriptor_create = [](cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t* made) {
    ++fake_cudnn.descriptors;
    *made = reinterpret_cast<cudnnBackendDescriptor_t>(&fake_cudnn);
    return CUDNN_STATUS_SUCCESS;
  };
  api.descriptor_destroy = [](cudnnBackendDescriptor_t) {
    --fake_cudnn.descriptors;
    return CUDNN_STATUS_SUCCESS;
  };
  api.set_attribute = [](cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                         cudnnBackendAttributeType_t, int64_t,
                         const void*) { return CUDNN_STATUS_SUCCESS; };
  api.get_attribute = &GetFakeAttribute;
  api.finalize = [](cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; };
  api.execute = [](cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) {
    ++fake_cudnn.executions;
    fake_cudnn.on_execute();
    return fake_cudnn.execution;
  };
  return api;
}

}  // namespace cadre
