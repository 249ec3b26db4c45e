// What is known of a recording while it is made, and what is kept of it.
//
// RecordingBook is pure bookkeeping: which lanes take part, which events the work records and which
// of those that it waits for it does not, and whether it did what a recording cannot keep.
// CudaRecording owns the graph.
//
// Thread-compatible: the thread that records.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "device/cuda/cuda_event.h"
#include "device/device.h"

namespace cadre {

class RecordingBook {
 public:
  // Shared: recordings keep events that their owners may destroy first.
  using Event = std::shared_ptr<CudaEventState>;

  explicit RecordingBook(Lane origin) : origin_(origin) { Join(origin); }

  Lane origin() const { return origin_; }
  // True when `lane` takes part from now on, and did not before: it has to be led in.
  bool Join(Lane lane);
  bool joined(Lane lane) const { return joined_[static_cast<size_t>(lane)]; }

  // The work records the event, from now on inside.
  void RecordInside(const Event& event);
  // The work waits for the event: true where it was recorded inside; otherwise it is noted to be
  // waited for before each play.
  bool WaitInside(const Event& event);
  const std::vector<Event>& recorded() const { return recorded_; }
  const std::vector<Event>& awaited() const { return awaited_; }

  // The work did what a recording cannot keep. The first one is remembered.
  void Refuse(absl::string_view what);
  bool refused() const { return !refusal_.empty(); }
  // Empty: nothing was refused.
  const std::string& refusal() const { return refusal_; }

 private:
  const Lane origin_;
  std::array<bool, kDeviceLanes> joined_ = {};
  std::vector<Event> recorded_;
  std::vector<Event> awaited_;
  std::string refusal_;
};

class CudaRecording final : public DeviceRecording {
 public:
  // Takes the graph. `before_end` is called before it is destroyed.
  CudaRecording(const CudaApi& api, cudaGraphExec_t graph, RecordingBook book,
                std::function<bool()> before_end);
  // Leaves the graph alone where before_end says false: it may still be under way.
  ~CudaRecording() override;
  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;

  cudaGraphExec_t graph() const { return graph_; }
  const RecordingBook& book() const { return book_; }

 private:
  const CudaApi& api_;
  const cudaGraphExec_t graph_;
  const RecordingBook book_;
  const std::function<bool()> before_end_;
};

// True for errors that say that work cannot be captured, after which the device is as good as
// before.
bool IsCaptureError(cudaError_t error);

}  // namespace cadre
