// Events with the state that graphs need, the log of a stream capture, and the resulting graph.
//
// CaptureLog records the streams that the work uses, the events that the work records, the events
// that it waits for but does not record, and whether it did something that cannot be captured.
//
// Thread-compatible; used by the capturing thread.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "device/cuda/cuda_api.h"
#include "device/device.h"

namespace cadre {

// The driver's events of one DeviceEvent. Captures use a separate one: work outside of the capture
// cannot wait for a captured event, and a failed capture must not change what was recorded before.
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
  // Whether `happened` was recorded.
  bool recorded = false;
};

class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(std::shared_ptr<CudaEventState> state) : state_(std::move(state)) {}
  const std::shared_ptr<CudaEventState>& state() const { return state_; }

 private:
  // Shared with graphs, whose launches wait for the event and record it.
  std::shared_ptr<CudaEventState> state_;
};

class CaptureLog {
 public:
  // Shared, because the event's owner may destroy it before the graph.
  using Event = std::shared_ptr<CudaEventState>;

  explicit CaptureLog(Stream origin) : origin_(origin) { Join(origin); }

  Stream origin() const { return origin_; }
  // Adds `stream` to the capture. True if it is new, so that the caller must fork it.
  bool Join(Stream stream);
  bool joined(Stream stream) const { return joined_[static_cast<size_t>(stream)]; }

  // Notes that the work records the event.
  void RecordInside(const Event& event);
  // Notes that the work waits for the event. True if the event was recorded in the capture;
  // otherwise every launch waits for it first.
  bool WaitInside(const Event& event);
  const std::vector<Event>& recorded() const { return recorded_; }
  const std::vector<Event>& awaited() const { return awaited_; }

  // Notes that the work did `what`, which cannot be captured. The first such reason is kept.
  void Refuse(absl::string_view what);
  bool refused() const { return !refusal_.empty(); }
  // Empty if nothing was refused.
  const std::string& refusal() const { return refusal_; }

 private:
  const Stream origin_;
  std::array<bool, kDeviceStreams> joined_ = {};
  std::vector<Event> recorded_;
  std::vector<Event> awaited_;
  std::string refusal_;
};

class CudaGraph final : public DeviceGraph {
 public:
  // Takes ownership of the graph. The destructor calls `before_end` first.
  CudaGraph(const CudaApi& api, cudaGraphExec_t graph, CaptureLog log,
            std::function<bool()> before_end);
  // Does not destroy the graph if before_end returns false, because the graph may still be running.
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  cudaGraphExec_t graph() const { return graph_; }
  const CaptureLog& log() const { return log_; }

 private:
  const CudaApi& api_;
  const cudaGraphExec_t graph_;
  const CaptureLog log_;
  const std::function<bool()> before_end_;
};

// True for errors that end a capture but leave the device usable.
bool IsCaptureError(cudaError_t error);

}  // namespace cadre
