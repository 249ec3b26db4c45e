// Graphs of a CUDA device, made by stream capture.
//
// Stream capture in CUDA follows events: a stream takes part once it waits for an event of a
// captured stream, and must be joined back before the capture ends. CaptureLog records which
// streams and events the work touched, so that a launch has the meaning that enqueuing the work
// would have had: events that the work waits for but does not record are waited for before the
// launch, streams that take part are ordered before and after it, and events that it records are
// recorded after it. The log separates events that were recorded before the capture from those of
// the capture: in CUDA an event that is recorded during a capture does not complete outside of it,
// and one that was recorded before cannot be awaited inside.
//
// Capture is thread-local: other threads (NCCL's, a transport's) may call CUDA meanwhile. Work that
// cannot be captured is not an error of the device: the log reports it once, and the caller
// enqueues the work itself in every step.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_machine.h"
#include "glog/logging.h"

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
  // CUDA numbers these errors consecutively.
  return error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
}

absl::StatusOr<std::unique_ptr<DeviceGraph>> CudaDevice::CaptureGraph(
    const std::function<absl::Status()>& work) {
  CHECK(log_ == nullptr) << "a capture within a capture";
  capture_refusal_.clear();
  if (failed()) return status();
  if (options_.synchronous) {
    capture_refusal_ = "the host waits for every operation (CADRE_CUDA_SYNC)";
    return std::unique_ptr<DeviceGraph>();
  }
  const Stream origin = current_;
  // Other threads (NCCL's, the transport's) may use CUDA meanwhile.
  if (!Check(api_.begin_capture(stream(), cudaStreamCaptureModeThreadLocal),
             "beginning a capture")) {
    return status();
  }
  log_ = std::make_unique<CaptureLog>(origin);
  const absl::Status worked = work();
  current_ = origin;
  cudaGraph_t const graph = EndCapture();
  return MakeGraph(worked, graph);
}

cudaGraph_t CudaDevice::EndCapture() {
  for (const Stream stream : kAllStreams) {
    if (stream != current_ && log_->joined(stream)) JoinStream(stream, captured_marks_);
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t error = api_.end_capture(streams_[Index(current_)], &graph);
  if (!Check(error, "ending a capture") && graph != nullptr) {
    api_.graph_destroy(graph);
    graph = nullptr;
  }
  return graph;
}

absl::StatusOr<std::unique_ptr<DeviceGraph>> CudaDevice::MakeGraph(const absl::Status& worked,
                                                                   cudaGraph_t graph) {
  CaptureLog log = std::move(*log_);
  log_.reset();
  cudaGraphExec_t ready = nullptr;
  cudaError_t error = cudaSuccess;
  if (graph != nullptr) {
    if (worked.ok() && !log.refused() && !failed()) {
      // Kernels keep the priority of their streams.
      error = api_.graph_instantiate(&ready, graph, cudaGraphInstantiateFlagUseNodePriority);
    }
    api_.graph_destroy(graph);
  }
  if (LosesDevice(error)) Check(error, "instantiating a graph");
  if (failed()) {
    if (ready != nullptr) api_.graph_exec_destroy(ready);
    return status();
  }
  if (error != cudaSuccess) {
    api_.last_error();
    log.Refuse(absl::StrCat("instantiation: ", api_.error_text(error)));
  }
  if (ready == nullptr) {
    capture_refusal_ = log.refused() ? log.refusal()
                       : worked.ok() ? "the graph is empty"
                                     : std::string(worked.message());
    LOG(WARNING) << name()
                 << ": work is not captured and will be enqueued each time: " << capture_refusal_;
    return std::unique_ptr<DeviceGraph>();
  }
  return std::make_unique<CudaGraph>(api_, ready, std::move(log), [this] {
    return !RefusedWhileCapturing("destroying a graph") && Settle();
  });
}

void CudaDevice::LaunchGraph(DeviceGraph& graph) {
  if (failed() || RefusedWhileCapturing("launching another graph")) return;
  const auto& graph_state = static_cast<const CudaGraph&>(graph);
  const CaptureLog& log = graph_state.log();
  const auto takes_part = [&log](Stream stream) { return log.joined(stream); };
  const cudaStream_t stream = this->stream();
  JoinAll(takes_part);
  for (const CaptureLog::Event& event : log.awaited()) {
    if (!event->recorded) continue;
    Check(api_.stream_wait_event(stream, event->happened, 0), "waiting for an event");
  }
  if (failed() || !Check(api_.graph_launch(graph_state.graph(), stream), "launching a graph"))
    return;
  ForkAll(takes_part);
  for (const CaptureLog::Event& event : log.recorded()) {
    event->recorded = Check(api_.event_record(event->happened, stream), "recording an event");
  }
}

}  // namespace cadre
