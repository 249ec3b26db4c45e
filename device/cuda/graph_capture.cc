// CUDA's rules for captures and the meaning of our events differ: an event that is recorded during
// a capture does not complete outside of it, and one that was recorded before cannot be awaited
// inside. So the log separates the two: every launch first waits for the events recorded before,
// and afterwards records the events of the capture (cuda_device_graph.cc).
#include "device/cuda/graph_capture.h"

#include <algorithm>
#include <utility>

namespace cadre {
namespace {

bool Holds(const std::vector<CaptureLog::Event>& events, const CaptureLog::Event& event) {
  return std::find(events.begin(), events.end(), event) != events.end();
}

}  // namespace

bool CaptureLog::Join(Stream stream) {
  return !std::exchange(joined_[static_cast<size_t>(stream)], true);
}

void CaptureLog::RecordInside(const Event& event) {
  if (!Holds(recorded_, event)) recorded_.push_back(event);
}

bool CaptureLog::WaitInside(const Event& event) {
  if (Holds(recorded_, event)) return true;
  if (!Holds(awaited_, event)) awaited_.push_back(event);
  return false;
}

void CaptureLog::Refuse(absl::string_view what) {
  if (refusal_.empty()) refusal_ = std::string(what);
}

CudaGraph::CudaGraph(const CudaApi& api, cudaGraphExec_t graph, CaptureLog log,
                     std::function<bool()> before_end)
    : api_(api), graph_(graph), log_(std::move(log)), before_end_(std::move(before_end)) {}

CudaGraph::~CudaGraph() {
  if (before_end_()) api_.graph_exec_destroy(graph_);
}

bool IsCaptureError(cudaError_t error) {
  switch (error) {
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorCapturedEvent:
    case cudaErrorStreamCaptureWrongThread:
      return true;
    default:
      return false;
  }
}

}  // namespace cadre
