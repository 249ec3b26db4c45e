// Streams and events of an emulated machine.
#include <chrono>
#include <memory>
#include <utility>

#include "tests/emulator/emulated_cuda.h"

namespace cadre::emulated {

cudaError_t EmulatedCuda::StreamCreate(cudaStream_t* stream, unsigned /*flags*/, int /*priority*/) {
  auto made = std::make_unique<StreamState>();
  made->machine = this;
  made->device = current_device();
  made->memory = &memory(made->device);
  if (mode_ == Mode::kThreads) made->queue = std::make_unique<TaskQueue>();
  *stream = reinterpret_cast<cudaStream_t>(made.get());
  absl::MutexLock lock(&mutex_);
  streams_.insert(made.get());
  all_streams_.push_back(std::move(made));
  return cudaSuccess;
}

cudaError_t EmulatedCuda::StreamDestroy(EntryError /*error*/, cudaStream_t stream) {
  absl::MutexLock lock(&mutex_);
  StreamState* const state = Find(stream);
  if (state == nullptr) return cudaErrorInvalidResourceHandle;
  if (state->capture != nullptr) {
    state->capture->invalidated = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  streams_.erase(state);
  return cudaSuccess;
}

cudaError_t EmulatedCuda::EventCreate(cudaEvent_t* event, unsigned flags) {
  auto made = std::make_unique<EventState>();
  made->device = current_device();
  made->timing = (flags & cudaEventDisableTiming) == 0;
  *event = reinterpret_cast<cudaEvent_t>(made.get());
  absl::MutexLock lock(&mutex_);
  events_[made.get()] = std::move(made);
  return cudaSuccess;
}

cudaError_t EmulatedCuda::EventDestroy(EntryError /*error*/, cudaEvent_t event) {
  absl::MutexLock lock(&mutex_);
  if (events_.erase(event) == 0) return cudaErrorInvalidResourceHandle;
  return cudaSuccess;
}

cudaError_t EmulatedCuda::EventRecord(cudaEvent_t event, cudaStream_t stream) {
  StreamState* state = nullptr;
  auto point = std::make_shared<Point>();
  {
    absl::MutexLock lock(&mutex_);
    state = Find(stream);
    EventState* const recorded = Find(event);
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

cudaError_t EmulatedCuda::StreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  if (flags != 0) return cudaErrorInvalidValue;
  StreamState* state = nullptr;
  std::shared_ptr<Point> point;
  {
    absl::MutexLock lock(&mutex_);
    state = Find(stream);
    const EventState* const awaited = Find(event);
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

cudaError_t EmulatedCuda::EventQuery(cudaEvent_t event) {
  if (const cudaError_t error = ForbidInCapture(); error != cudaSuccess) return error;
  absl::MutexLock lock(&mutex_);
  const EventState* const found = Find(event);
  if (found == nullptr) return cudaErrorInvalidResourceHandle;
  if (found->capture != nullptr) {
    found->capture->invalidated = true;
    return cudaErrorCapturedEvent;
  }
  const bool happened = found->point == nullptr || found->point->happened();
  return happened ? ErrorOf(found->device) : cudaErrorNotReady;
}

cudaError_t EmulatedCuda::EventElapsed(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  absl::MutexLock lock(&mutex_);
  const EventState* const first = Find(begin);
  const EventState* const last = Find(end);
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
