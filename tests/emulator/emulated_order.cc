// Streams and events of an emulated machine.
#include <chrono>
#include <memory>
#include <utility>

#include "tests/emulator/emulated_machine.h"

namespace cadre::emulated {

cudaError_t Machine::StreamCreate(cudaStream_t* stream, unsigned /*flags*/, int /*priority*/) {
  const Entry entry = Enter("stream_create");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  auto made = std::make_unique<StreamState>();
  made->machine = this;
  made->device = current_device();
  made->memory = &memory(made->device);
  if (mode_ == EmulatedCuda::Mode::kThreads) made->queue = std::make_unique<TaskQueue>();
  *stream = reinterpret_cast<cudaStream_t>(made.get());
  absl::MutexLock lock(&mutex_);
  streams_.insert(made.get());
  all_streams_.push_back(std::move(made));
  return cudaSuccess;
}

cudaError_t Machine::StreamDestroy(cudaStream_t stream) {
  const Entry entry = Enter("stream_destroy");
  absl::MutexLock lock(&mutex_);
  if (!Lives(stream)) return Leave(cudaErrorInvalidResourceHandle);
  auto* state = reinterpret_cast<StreamState*>(stream);
  if (state->capture != nullptr) {
    state->capture->invalidated = true;
    return Leave(cudaErrorStreamCaptureUnsupported);
  }
  streams_.erase(state);
  return Leave(entry.error);
}

cudaError_t Machine::StreamSynchronize(cudaStream_t stream) {
  const Entry entry = Enter("stream_synchronize");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  auto* state = reinterpret_cast<StreamState*>(stream);
  {
    absl::MutexLock lock(&mutex_);
    if (!Lives(stream)) return Leave(cudaErrorInvalidResourceHandle);
    if (state->capture != nullptr) {
      state->capture->invalidated = true;
      return Leave(cudaErrorStreamCaptureUnsupported);
    }
  }
  if (const cudaError_t error = ForbidInCapture(); error != cudaSuccess) return Leave(error);
  if (state->queue != nullptr) state->queue->Drain();
  return Leave(ErrorOf(state->device));
}

cudaError_t Machine::EventCreate(cudaEvent_t* event, unsigned flags) {
  const Entry entry = Enter("event_create");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  auto made = std::make_unique<EventState>();
  made->device = current_device();
  made->timing = (flags & cudaEventDisableTiming) == 0;
  *event = reinterpret_cast<cudaEvent_t>(made.get());
  absl::MutexLock lock(&mutex_);
  events_[made.get()] = std::move(made);
  return cudaSuccess;
}

cudaError_t Machine::EventDestroy(cudaEvent_t event) {
  const Entry entry = Enter("event_destroy");
  absl::MutexLock lock(&mutex_);
  if (events_.erase(event) == 0) return Leave(cudaErrorInvalidResourceHandle);
  return Leave(entry.error);
}

cudaError_t Machine::EventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Entry entry = Enter("event_record");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  auto* state = reinterpret_cast<StreamState*>(stream);
  auto* recorded = reinterpret_cast<EventState*>(event);
  auto point = std::make_shared<Point>();
  {
    absl::MutexLock lock(&mutex_);
    if (!Lives(stream) || !Lives(event)) return Leave(cudaErrorInvalidResourceHandle);
    if (state->device != recorded->device) return Leave(cudaErrorInvalidResourceHandle);
    if (state->capture != nullptr && state->capture->invalidated) {
      return Leave(cudaErrorStreamCaptureInvalidated);
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

cudaError_t Machine::StreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  const Entry entry = Enter("stream_wait_event");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  if (flags != 0) return Leave(cudaErrorInvalidValue);
  auto* state = reinterpret_cast<StreamState*>(stream);
  std::shared_ptr<Point> point;
  {
    absl::MutexLock lock(&mutex_);
    if (!Lives(stream) || !Lives(event)) return Leave(cudaErrorInvalidResourceHandle);
    const EventState& awaited = *reinterpret_cast<const EventState*>(event);
    if (state->capture != nullptr || awaited.capture != nullptr) {
      return Leave(WaitInCapture(*state, awaited));
    }
    point = awaited.point;
  }
  if (point != nullptr && state->queue != nullptr) {
    state->queue->Push([point] { point->Wait(); });
  }
  return cudaSuccess;
}

cudaError_t Machine::EventQuery(cudaEvent_t event) {
  const Entry entry = Enter("event_query");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  if (const cudaError_t error = ForbidInCapture(); error != cudaSuccess) return Leave(error);
  absl::MutexLock lock(&mutex_);
  if (!Lives(event)) return Leave(cudaErrorInvalidResourceHandle);
  const EventState& asked = *reinterpret_cast<const EventState*>(event);
  if (asked.capture != nullptr) {
    asked.capture->invalidated = true;
    return Leave(cudaErrorCapturedEvent);
  }
  const bool happened = asked.point == nullptr || asked.point->happened();
  return Leave(happened ? ErrorOf(asked.device) : cudaErrorNotReady);
}

cudaError_t Machine::EventSynchronize(cudaEvent_t event) {
  const Entry entry = Enter("event_synchronize");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  if (const cudaError_t error = ForbidInCapture(); error != cudaSuccess) return Leave(error);
  std::shared_ptr<Point> point;
  int device = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (!Lives(event)) return Leave(cudaErrorInvalidResourceHandle);
    const EventState& awaited = *reinterpret_cast<const EventState*>(event);
    if (awaited.capture != nullptr) {
      awaited.capture->invalidated = true;
      return Leave(cudaErrorCapturedEvent);
    }
    point = awaited.point;
    device = awaited.device;
  }
  if (point != nullptr) point->Wait();
  return Leave(ErrorOf(device));
}

cudaError_t Machine::EventElapsed(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const Entry entry = Enter("event_elapsed");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  absl::MutexLock lock(&mutex_);
  if (!Lives(begin) || !Lives(end)) return Leave(cudaErrorInvalidResourceHandle);
  const EventState& first = *reinterpret_cast<const EventState*>(begin);
  const EventState& last = *reinterpret_cast<const EventState*>(end);
  if (!first.timing || !last.timing || first.point == nullptr || last.point == nullptr) {
    return Leave(cudaErrorInvalidResourceHandle);
  }
  if (!first.point->happened() || !last.point->happened()) return Leave(cudaErrorNotReady);
  *milliseconds =
      std::chrono::duration<float, std::milli>(last.point->when() - first.point->when()).count();
  return cudaSuccess;
}

}  // namespace cadre::emulated
