// Captures and graphs of an emulated machine.
#include <algorithm>
#include <utility>

#include "tests/emulator/emulated_stream_table.h"

namespace cadre::emulated {

cudaError_t StreamTable::ForbidInCapture() {
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

cudaError_t StreamTable::WaitInCapture(StreamState& stream, const EventState& event) {
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

cudaError_t StreamTable::BeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  absl::MutexLock lock(&mutex_);
  StreamState* const state = FindLocked(stream);
  if (state == nullptr) return cudaErrorInvalidResourceHandle;
  if (state->capture != nullptr) return cudaErrorIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->branches = {state};
  state->capture = capture;
  state->tail.clear();
  captures_.push_back(std::move(capture));
  return cudaSuccess;
}

bool StreamTable::AllJoined(const Capture& capture, const std::vector<int>& tail) {
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

void StreamTable::EndLocked(Capture& capture) {
  capture.ended = true;
  for (StreamState* stream : std::exchange(capture.branches, {})) {
    stream->tail.clear();
    // The last stream releases the capture, unless an event refers to it.
    const std::shared_ptr<Capture> keep = std::move(stream->capture);
    stream->capture = nullptr;
    captures_.erase(std::remove(captures_.begin(), captures_.end(), keep), captures_.end());
  }
}

cudaError_t StreamTable::EndCapture(EntryError error, cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  absl::MutexLock lock(&mutex_);
  StreamState* const state = FindLocked(stream);
  if (state == nullptr) return cudaErrorInvalidResourceHandle;
  const std::shared_ptr<Capture> capture = state->capture;
  if (capture == nullptr) return cudaErrorIllegalState;
  if (capture->branches.front() != state) {
    capture->invalidated = true;
    return cudaErrorStreamCaptureUnmatched;
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  const bool joined = AllJoined(*capture, state->tail);
  EndLocked(*capture);
  if (error.value != cudaSuccess) return error.value;
  if (capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  if (!joined) return cudaErrorStreamCaptureUnjoined;
  auto made = std::make_unique<GraphState>(std::move(capture->nodes));
  *graph = reinterpret_cast<cudaGraph_t>(made.get());
  graphs_[made.get()] = std::move(made);
  return cudaSuccess;
}

cudaError_t StreamTable::GraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                                          unsigned long long /*flags*/) {  // NOLINT
  std::vector<GraphNode> nodes;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = graphs_.find(graph);
    if (found == graphs_.end()) return cudaErrorInvalidValue;
    nodes = *found->second;
  }
  auto player = std::make_shared<GraphPlayer>(std::move(nodes), threads_);
  *made = reinterpret_cast<cudaGraphExec_t>(player.get());
  absl::MutexLock lock(&mutex_);
  execs_[player.get()] = std::move(player);
  return cudaSuccess;
}

cudaError_t StreamTable::GraphLaunch(LaterError later, cudaGraphExec_t graph, cudaStream_t stream) {
  StreamState* state = nullptr;
  std::shared_ptr<GraphPlayer> player;
  {
    absl::MutexLock lock(&mutex_);
    state = FindLocked(stream);
    const auto found = execs_.find(graph);
    if (state == nullptr || found == execs_.end()) return cudaErrorInvalidResourceHandle;
    if (state->capture != nullptr) {
      state->capture->invalidated = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    player = found->second;
  }
  return Submit(state, [player, error = later.value] {
    return error == cudaSuccess ? player->Play() : error;
  });
}

cudaError_t StreamTable::GraphExecDestroy(EntryError /*error*/, cudaGraphExec_t graph) {
  // Destroyed after the mutex is released, because the player waits for its threads.
  decltype(execs_)::node_type removed;
  absl::MutexLock lock(&mutex_);
  removed = execs_.extract(graph);
  return removed.empty() ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t StreamTable::GraphDestroy(EntryError /*error*/, cudaGraph_t graph) {
  absl::MutexLock lock(&mutex_);
  return graphs_.erase(graph) > 0 ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace cadre::emulated
