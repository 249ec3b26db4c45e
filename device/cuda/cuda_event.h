// An event of a CUDA device, and what a recording needs of it.
//
// For CudaDevice and its recordings alone. Thread-compatible.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "device/cuda/cuda_api.h"
#include "device/device.h"

namespace cadre {

// The driver's events of one DeviceEvent. Inside a capture another one is used than outside: an
// event that was captured cannot be waited for outside, and a capture that fails must leave what
// was recorded before as it was.
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
  // Shared with recordings, which wait for it and record it whenever they are played.
  std::shared_ptr<CudaEventState> state_;
};

}  // namespace cadre
