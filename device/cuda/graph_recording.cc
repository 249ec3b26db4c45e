#include "device/cuda/graph_recording.h"

#include <algorithm>
#include <utility>

namespace cadre {
namespace {

bool Holds(const std::vector<RecordingBook::Event>& events, const RecordingBook::Event& event) {
  return std::find(events.begin(), events.end(), event) != events.end();
}

}  // namespace

bool RecordingBook::Join(Lane lane) {
  return !std::exchange(joined_[static_cast<size_t>(lane)], true);
}

void RecordingBook::RecordInside(const Event& event) {
  if (!Holds(recorded_, event)) recorded_.push_back(event);
}

bool RecordingBook::WaitInside(const Event& event) {
  if (Holds(recorded_, event)) return true;
  if (!Holds(awaited_, event)) awaited_.push_back(event);
  return false;
}

void RecordingBook::Refuse(absl::string_view what) {
  if (refusal_.empty()) refusal_ = std::string(what);
}

CudaRecording::CudaRecording(const CudaApi& api, cudaGraphExec_t graph, RecordingBook book,
                             std::function<bool()> before_end)
    : api_(api), graph_(graph), book_(std::move(book)), before_end_(std::move(before_end)) {}

CudaRecording::~CudaRecording() {
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
