// Streams and events of an emulated machine.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "tests/emulator/emulated_stream_table.h"

namespace cadre::emulated {

StreamState* StreamTable::Find(cudaStream_t stream) const {
  absl::MutexLock lock(&mutex_);
  return FindLocked(stream);
}

StreamState* StreamTable::FindLocked(cudaStream_t stream) const {
  auto* const state = reinterpret_cast<StreamState*>(stream);
  return streams_.count(state) > 0 ? state : nullptr;
}

EventState* StreamTable::FindLocked(cudaEvent_t event) const {
  const auto found = events_.find(event);
  return found == events_.end() ? nullptr : found->second.get();
}

void StreamTable::Do(const StreamState& stream, const Work& work) {
  if (devices_.ErrorOf(stream.device) != cudaSuccess) return;
  stream.memory->Open();
  const cudaError_t error = work();
  stream.memory->Close();
  if (error != cudaSuccess) devices_.Break(error, stream.device);
}

cudaError_t StreamTable::Submit(StreamState* stream, Work work) {
  {
    absl::MutexLock lock(&mutex_);
    if (streams_.count(stream) == 0) return cudaErrorInvalidResourceHandle;
    if (Capture* capture = stream->capture.get(); capture != nullptr) {
      if (capture->invalidated) return cudaErrorStreamCaptureInvalidated;
      const auto branch = std::find(capture->branches.begin(), capture->branches.end(), stream);
      capture->nodes.push_back({.work = std::move(work),
                                .after = stream->tail,
                                .branch = static_cast<int>(branch - capture->branches.begin())});
      stream->tail = {static_cast<int>(capture->nodes.size()) - 1};
      return cudaSuccess;
    }
  }
  if (stream->queue == nullptr) {
    Do(*stream, work);
  } else {
    stream->queue->Push([this, stream, work = std::move(work)] { Do(*stream, work); });
  }
  return cudaSuccess;
}

void StreamTable::DrainDevice(int device) {
  std::vector<const StreamState*> streams;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& stream : all_streams_) {
      if (stream->device == device) streams.push_back(stream.get());
    }
  }
  for (const StreamState* stream : streams) {
    if (stream->queue != nullptr) stream->queue->Drain();
  }
}

void StreamTable::End() {
  std::vector<std::unique_ptr<StreamState>> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams.swap(all_streams_);
  }
  // Their queues wait for the pending work.
  streams.clear();
}

bool StreamTable::IsCaptured(const StreamState& stream) const {
  absl::MutexLock lock(&mutex_);
  return stream.capture != nullptr;
}

void StreamTable::Invalidate(const StreamState& stream) {
  absl::MutexLock lock(&mutex_);
  stream.capture->invalidated = true;
}

void StreamTable::Count(LiveObjects& live) const {
  absl::MutexLock lock(&mutex_);
  live.streams = streams_.size();
  live.events = events_.size();
  live.graphs = graphs_.size();
  live.graph_execs = execs_.size();
}

cudaError_t StreamTable::StreamCreate(cudaStream_t* stream, unsigned /*flags*/, int /*priority*/) {
  auto made = std::make_unique<StreamState>();
  made->table = this;
  made->device = devices_.current();
  made->memory = &devices_.memory(made->device);
  if (threads_) made->queue = std::make_unique<TaskQueue>();
  *stream = reinterpret_cast<cudaStream_t>(made.get());
  absl::MutexLock lock(&mutex_);
  streams_.insert(made.get());
  all_streams_.push_back(std::move(made));
  return cudaSuccess;
}

cudaError_t StreamTable::StreamDestroy(EntryError /*error*/, cudaStream_t stream) {
  absl::MutexLock lock(&mutex_);
  StreamState* const state = FindLocked(stream);
  if (state == nullptr) return cudaErrorInvalidResourceHandle;
  if (state->capture != nullptr) {
    state->capture->invalidated = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  streams_.erase(state);
  return cudaSuccess;
}

cudaError_t StreamTable::EventCreate(cudaEvent_t* event, unsigned flags) {
  auto made = std::make_unique<EventState>();
  made->device = devices_.current();
  made->timing = (flags & cudaEventDisableTiming) == 0;
  *event = reinterpret_cast<cudaEvent_t>(made.get());
  absl::MutexLock lock(&mutex_);
  events_[made.get()] = std::move(made);
  return cudaSuccess;
}

cudaError_t StreamTable::EventDestroy(EntryError /*error*/, cudaEvent_t event) {
  absl::MutexLock lock(&mutex_);
  if (events_.erase(event) == 0) return cudaErrorInvalidResourceHandle;
  return cudaSuccess;
}

cudaError_t StreamTable::EventRecord(cudaEvent_t event, cudaStream_t stream) {
  StreamState* state = nullptr;
  auto point = std::make_shared<Point>();
  {
    absl::MutexLock lock(&mutex_);
    state = FindLocked(stream);
    EventState* const recorded = FindLocked(event);
    if (state == nullptr || recorded == nullptr || state->device != recorded->device) {
      return cudaErrorInvalidResourceHandle;
    }
    if (state->capture != nullptr && state->capture->invalidated) {
      return cudaErrorStreamCaptureInvalidated;
    }
    recorded->capture = state->capture;
    recorded->tail = state->tail;
    if (state->capture != nullptr) return cudaSuccess;
    recorded->point = point;
  }
  // The event is recorded even on a failed device, so that waiting threads continue and get the
  // error.
  if (state->queue == nullptr) {
    point->Happen();
  } else {
    state->queue->Push([point] { point->Happen(); });
  }
  return cudaSuccess;
}

cudaError_t StreamTable::StreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  if (flags != 0) return cudaErrorInvalidValue;
  StreamState* state = nullptr;
  std::shared_ptr<Point> point;
  {
    absl::MutexLock lock(&mutex_);
    state = FindLocked(stream);
    const EventState* const awaited = FindLocked(event);
    if (state == nullptr || awaited == nullptr) return cudaErrorInvalidResourceHandle;
    if (state->capture != nullptr || awaited->capture != nullptr) {
      return WaitInCapture(*state, *awaited);
    }
    point = awaited->point;
  }
  if (point != nullptr && state->queue != nullptr) {
    state->queue->Push([point] { point->Wait(); });
  }
  return cudaSuccess;
}

cudaError_t StreamTable::EventQuery(cudaEvent_t event) {
  if (const cudaError_t error = ForbidInCapture(); error != cudaSuccess) return error;
  absl::MutexLock lock(&mutex_);
  const EventState* const found = FindLocked(event);
  if (found == nullptr) return cudaErrorInvalidResourceHandle;
  if (found->capture != nullptr) {
    found->capture->invalidated = true;
    return cudaErrorCapturedEvent;
  }
  const bool happened = found->point == nullptr || found->point->happened();
  return happened ? devices_.ErrorOf(found->device) : cudaErrorNotReady;
}

cudaError_t StreamTable::EventElapsed(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  absl::MutexLock lock(&mutex_);
  const EventState* const first = FindLocked(begin);
  const EventState* const last = FindLocked(end);
  for (const EventState* state : {first, last}) {
    if (state == nullptr || !state->timing || state->point == nullptr) {
      return cudaErrorInvalidResourceHandle;
    }
  }
  if (!first->point->happened() || !last->point->happened()) return cudaErrorNotReady;
  *milliseconds =
      std::chrono::duration<float, std::milli>(last->point->when() - first->point->when()).count();
  return cudaSuccess;
}

}  // namespace cadre::emulated
