// Recordings of a CUDA device: captures of streams, and graphs.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/cuda/cuda_device_lanes.h"
#include "device/cuda/cuda_event.h"
#include "glog/logging.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<DeviceRecording>> CudaDeviceOfLanes::RecordWork(
    const std::function<absl::Status()>& work) {
  CHECK(book_ == nullptr) << "a recording within a recording";
  if (failed()) return status();
  const Lane origin = lane_;
  // Of this thread alone: others (NCCL's, the transport's) may do what they like.
  if (!Check(api_.begin_capture(stream(), cudaStreamCaptureModeThreadLocal),
             "beginning a recording")) {
    return status();
  }
  book_ = std::make_unique<RecordingBook>(origin);
  const absl::Status worked = work();
  lane_ = origin;
  cudaGraph_t const graph = EndCapture();
  return KeepRecording(worked, graph);
}

cudaGraph_t CudaDeviceOfLanes::EndCapture() {
  for (const Lane lane : kAllLanes) {
    if (lane != lane_ && book_->joined(lane)) LeadHere(lane, captured_marks_);
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t error = api_.end_capture(streams_[Index(lane_)], &graph);
  if (!Check(error, "ending a recording") && graph != nullptr) {
    api_.graph_destroy(graph);
    graph = nullptr;
  }
  return graph;
}

absl::StatusOr<std::unique_ptr<DeviceRecording>> CudaDeviceOfLanes::KeepRecording(
    const absl::Status& worked, cudaGraph_t graph) {
  RecordingBook book = std::move(*book_);
  book_.reset();
  cudaGraphExec_t ready = nullptr;
  cudaError_t error = cudaSuccess;
  if (graph != nullptr) {
    if (worked.ok() && !book.refused() && !failed()) {
      // Kernels of lanes with priority keep it.
      error = api_.graph_instantiate(&ready, graph, cudaGraphInstantiateFlagUseNodePriority);
    }
    api_.graph_destroy(graph);
  }
  if (LosesDevice(error)) Check(error, "preparing a recording");
  if (failed()) {
    if (ready != nullptr) api_.graph_exec_destroy(ready);
    return status();
  }
  if (error != cudaSuccess) {
    api_.last_error();
    book.Refuse(absl::StrCat("preparing it: ", api_.error_text(error)));
  }
  if (ready == nullptr) {
    LOG(WARNING) << name() << ": work is not recorded, and will be enqueued anew each time: "
                 << (book.refused() ? book.refusal()
                     : worked.ok()  ? "nothing came of it"
                                    : std::string(worked.message()));
    return std::unique_ptr<DeviceRecording>();
  }
  return std::make_unique<CudaRecording>(api_, ready, std::move(book), [this] {
    return !RefusedWhileRecording("destroying a recording") && Settle();
  });
}

void CudaDeviceOfLanes::Play(DeviceRecording& recording) {
  if (failed() || RefusedWhileRecording("playing another recording")) return;
  const auto& played = static_cast<const CudaRecording&>(recording);
  const RecordingBook& book = played.book();
  const auto takes_part = [&book](Lane lane) { return book.joined(lane); };
  const cudaStream_t stream = this->stream();
  LeadFromAll(takes_part);
  for (const RecordingBook::Event& event : book.awaited()) {
    if (!event->recorded) continue;
    Check(api_.stream_wait_event(stream, event->happened, 0), "waiting for an event");
  }
  if (failed() || !Check(api_.graph_launch(played.graph(), stream), "playing a recording")) return;
  LeadToAll(takes_part);
  for (const RecordingBook::Event& event : book.recorded()) {
    event->recorded = Check(api_.event_record(event->happened, stream), "recording an event");
  }
}

}  // namespace cadre
