// An event of a CUDA device, with the state that graphs need.
//
// Private to CudaDevice and its graphs. Thread-compatible.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "device/cuda/cuda_api.h"
#include "device/device.h"

namespace cadre {

// The driver's events of one DeviceEvent. Captures use a separate one: a captured event cannot be
// waited for outside, and a failed capture must not change what was recorded before.
struct CudaEventState {
  explicit CudaEventState(const CudaApi& functions) : api(functions) {}
  ~CudaEventState() {
    if (happened != nullptr) api.event_destroy(happened);
    if (captured != nullptr) api.event_destroy(captured);
  }
  CudaEventState(const CudaEventState&) = delete;
  CudaEventState& operator=(const CudaEventState&) = delete;

  const CudaApi& api;
  cudaEvent_t happened = nullptr;
  cudaEvent_t captured = nullptr;
  // `happened` was recorded.
  bool recorded = false;
};

class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(std::shared_ptr<CudaEventState> state) : state_(std::move(state)) {}
  const std::shared_ptr<CudaEventState>& state() const { return state_; }

 private:
  // Shared with graphs, whose launches wait for it and record it.
  std::shared_ptr<CudaEventState> state_;
};

}  // namespace cadre
