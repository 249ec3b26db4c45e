// Captures and graphs of an emulated machine.
#include <algorithm>
#include <utility>

#include "tests/emulator/emulated_machine.h"

namespace cadre::emulated {

cudaError_t Machine::ForbidInCapture() {
  absl::MutexLock lock(&mutex_);
  cudaError_t error = cudaSuccess;
  for (const auto& capture : captures_) {
    const bool concerned = capture->mode == cudaStreamCaptureModeGlobal ||
                           (capture->mode == cudaStreamCaptureModeThreadLocal &&
                            capture->thread == std::this_thread::get_id());
    if (!concerned) continue;
    capture->invalidated = true;
    error = cudaErrorStreamCaptureUnsupported;
  }
  return error;
}

cudaError_t Machine::WaitInCapture(StreamState& stream, const EventState& event) {
  if (event.capture == nullptr) {
    stream.capture->invalidated = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (event.capture->ended) {
    if (stream.capture != nullptr) stream.capture->invalidated = true;
    return cudaErrorCapturedEvent;
  }
  if (event.capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  if (stream.capture == nullptr) {
    stream.capture = event.capture;
    stream.tail = event.tail;
    stream.capture->branches.push_back(&stream);
    return cudaSuccess;
  }
  if (stream.capture != event.capture) {
    stream.capture->invalidated = true;
    event.capture->invalidated = true;
    return cudaErrorStreamCaptureMerge;
  }
  for (const int node : event.tail) {
    if (std::find(stream.tail.begin(), stream.tail.end(), node) == stream.tail.end()) {
      stream.tail.push_back(node);
    }
  }
  return cudaSuccess;
}

cudaError_t Machine::BeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Entry entry = Enter("begin_capture");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  absl::MutexLock lock(&mutex_);
  if (!Lives(stream)) return Leave(cudaErrorInvalidResourceHandle);
  auto* state = reinterpret_cast<StreamState*>(stream);
  if (state->capture != nullptr) return Leave(cudaErrorIllegalState);
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->branches = {state};
  state->capture = capture;
  state->tail.clear();
  captures_.push_back(std::move(capture));
  return cudaSuccess;
}

bool Machine::AllJoined(const Capture& capture, const std::vector<int>& tail) {
  std::vector<bool> reached(capture.nodes.size(), false);
  std::vector<int> open = tail;
  while (!open.empty()) {
    const auto node = static_cast<size_t>(open.back());
    open.pop_back();
    if (reached[node]) continue;
    reached[node] = true;
    open.insert(open.end(), capture.nodes[node].after.begin(), capture.nodes[node].after.end());
  }
  return std::find(reached.begin(), reached.end(), false) == reached.end();
}

void Machine::End(Capture& capture) {
  capture.ended = true;
  for (StreamState* stream : std::exchange(capture.branches, {})) {
    stream->tail.clear();
    // The last stream releases the capture, unless an event refers to it.
    const std::shared_ptr<Capture> keep = std::move(stream->capture);
    stream->capture = nullptr;
    captures_.erase(std::remove(captures_.begin(), captures_.end(), keep), captures_.end());
  }
}

cudaError_t Machine::EndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  // A capture ends even if the device has failed.
  const Entry entry = Enter("end_capture");
  *graph = nullptr;
  absl::MutexLock lock(&mutex_);
  if (!Lives(stream)) return Leave(cudaErrorInvalidResourceHandle);
  auto* state = reinterpret_cast<StreamState*>(stream);
  const std::shared_ptr<Capture> capture = state->capture;
  if (capture == nullptr) return Leave(cudaErrorIllegalState);
  if (capture->branches.front() != state) {
    capture->invalidated = true;
    return Leave(cudaErrorStreamCaptureUnmatched);
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return Leave(cudaErrorStreamCaptureWrongThread);
  }
  const bool joined = AllJoined(*capture, state->tail);
  End(*capture);
  if (entry.error != cudaSuccess) return Leave(entry.error);
  if (capture->invalidated) return Leave(cudaErrorStreamCaptureInvalidated);
  if (!joined) return Leave(cudaErrorStreamCaptureUnjoined);
  auto made = std::make_unique<GraphState>();
  made->nodes = std::move(capture->nodes);
  *graph = reinterpret_cast<cudaGraph_t>(made.get());
  graphs_[made.get()] = std::move(made);
  return cudaSuccess;
}

cudaError_t Machine::GraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                                      unsigned long long /*flags*/) {  // NOLINT
  const Entry entry = Enter("graph_instantiate");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  std::vector<GraphNode> nodes;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = graphs_.find(graph);
    if (found == graphs_.end()) return Leave(cudaErrorInvalidValue);
    nodes = found->second->nodes;
  }
  auto exec = std::make_unique<GraphExecState>();
  exec->player =
      std::make_shared<GraphPlayer>(std::move(nodes), mode_ == EmulatedCuda::Mode::kThreads);
  *made = reinterpret_cast<cudaGraphExec_t>(exec.get());
  absl::MutexLock lock(&mutex_);
  execs_[exec.get()] = std::move(exec);
  return cudaSuccess;
}

cudaError_t Machine::GraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  const Entry entry = Enter("graph_launch", Kind::kWork);
  if (entry.error != cudaSuccess) return Leave(entry.error);
  auto* state = reinterpret_cast<StreamState*>(stream);
  std::shared_ptr<GraphPlayer> player;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = execs_.find(graph);
    if (!Lives(stream) || found == execs_.end()) return Leave(cudaErrorInvalidResourceHandle);
    if (state->capture != nullptr) {
      state->capture->invalidated = true;
      return Leave(cudaErrorStreamCaptureUnsupported);
    }
    player = found->second->player;
  }
  return Leave(Submit(state, [player, later = entry.later] {
    return later == cudaSuccess ? player->Play() : later;
  }));
}

cudaError_t Machine::GraphExecDestroy(cudaGraphExec_t graph) {
  const Entry entry = Enter("graph_exec_destroy");
  std::unique_ptr<GraphExecState> gone;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = execs_.find(graph);
    if (found == execs_.end()) return Leave(cudaErrorInvalidValue);
    gone = std::move(found->second);
    execs_.erase(found);
  }
  return Leave(entry.error);
}

cudaError_t Machine::GraphDestroy(cudaGraph_t graph) {
  const Entry entry = Enter("graph_destroy");
  std::unique_ptr<GraphState> gone;
  absl::MutexLock lock(&mutex_);
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) return Leave(cudaErrorInvalidValue);
  gone = std::move(found->second);
  graphs_.erase(found);
  return Leave(entry.error);
}

}  // namespace cadre::emulated
