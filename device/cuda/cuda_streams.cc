// Errors, streams, events and waiting of a CUDA device.
//
// Ordering. Streams are ordered by events only. A "mark" is an event that the device keeps for
// itself: JoinStream makes the current stream wait for another one, JoinAll for several, and
// ForkAll makes several wait for the current one. Synchronize joins all streams into one and waits
// for a single event.
//
// Waiting. The host polls events instead of calling cudaEventSynchronize: work that contains a
// collective may never end when a peer is lost, and only a poll can be cancelled, by Fail from
// another thread or by the patience of the options.
//
// Errors. CUDA reports asynchronous errors at any later call, on any thread. Every call is checked
// (Check); the first error is kept and everything after it returns immediately. Work that never
// ends (a collective whose peer is lost) keeps its memory and streams until the process exits,
// because the driver would block if they were freed.
#include "device/cuda/cuda_streams.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "device/cuda/cuda_machine.h"
#include "glog/logging.h"

namespace cadre {
namespace {

// The host polls without a pause for this long, which covers most waits.
constexpr absl::Duration kSpin = absl::Microseconds(100);
constexpr absl::Duration kLongestPause = absl::Microseconds(50);
// How long the destructor waits for pending work of a failed device. Work that has not ended by
// then (a collective that was not aborted although its peers are lost) keeps its memory until the
// process ends.
constexpr absl::Duration kEndPatience = absl::Seconds(30);
// Negative numbers are higher priorities than the default (0); CUDA uses the nearest that the
// device has.
constexpr int kHighPriority = -1;
constexpr int kNormalPriority = 0;

int PriorityOf(Stream stream) {
  const bool is_local = stream == Stream::kCompute || stream == Stream::kCopies;
  return is_local ? kNormalPriority : kHighPriority;
}

}  // namespace

absl::Status CudaStreams::OpenStreams() {
  Bind();
  for (const Stream stream : kAllStreams) {
    if (!Check(
            api_.stream_create(&streams_[Index(stream)], cudaStreamNonBlocking, PriorityOf(stream)),
            "making a stream")) {
      return status();
    }
    marks_[Index(stream)] = MakeMark();
    captured_marks_[Index(stream)] = MakeMark();
  }
  return status();
}

CudaStreams::~CudaStreams() {
  // The driver would wait for the pending work.
  if (wedged_) return;
  for (const auto& marks : {marks_, captured_marks_}) {
    for (cudaEvent_t mark : marks) {
      if (mark != nullptr) api_.event_destroy(mark);
    }
  }
  for (cudaStream_t stream : streams_) {
    if (stream != nullptr) api_.stream_destroy(stream);
  }
  // Clears errors of the destruction.
  api_.last_error();
}

// ---- errors

void CudaStreams::Fail(absl::Status error) {
  CHECK(!error.ok());
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok()) return;
    status_ = error;
    failed_.store(true, std::memory_order_release);
  }
  // Cancelled means that the group was released, which is not a failure.
  if (absl::IsCancelled(error)) {
    LOG(INFO) << name() << ": " << error;
  } else {
    LOG(ERROR) << name() << ": " << error;
  }
}

bool CudaStreams::Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  // Clears the error, so that a later call does not report it as its own.
  api_.last_error();
  if (log_ != nullptr && IsCaptureError(error)) {
    log_->Refuse(absl::StrCat(what, ": ", api_.error_text(error)));
    return false;
  }
  if (LosesDevice(error)) lost_.store(true, std::memory_order_release);
  Fail(CudaStatus(api_, error, what));
  return false;
}

bool CudaStreams::Enqueued(cudaError_t error, const char* what) {
  if (!Check(error, what)) return false;
  if (!options_.synchronous) return true;
  const cudaEvent_t mark = marks_[Index(current_)];
  return Check(api_.event_record(mark, streams_[Index(current_)]), what) &&
         BlockHost(mark, HostSync::kOperation, what).ok();
}

absl::Status CudaStreams::LoadKernels() {
  if (failed()) return status();
  Bind();
  Check(api_.load_kernels(), "loading the kernels of this program");
  return status();
}

cudaError_t CudaStreams::CauseOfLibraryError() {
  cudaError_t error = api_.last_error();
  // The query of a stream that is captured would end the capture.
  if (error == cudaSuccess && !capturing()) {
    Bind();
    const size_t i = Index(current_);
    error = api_.event_record(marks_[i], streams_[i]);
    if (error == cudaSuccess) error = api_.event_query(marks_[i]);
    if (error != cudaSuccess) api_.last_error();
    if (error == cudaErrorNotReady) error = cudaSuccess;
  }
  if (LosesDevice(error)) lost_.store(true, std::memory_order_release);
  return error;
}

void CudaStreams::FailOperation(const absl::Status& error) {
  if (RefusedWhileCapturing(error.message())) return;
  Fail(error);
}

bool CudaStreams::lost() const {
  if (lost_.load(std::memory_order_acquire) || !failed()) return lost_;
  // A library may have reported the runtime's error first, as its own error; the runtime then
  // returns it here.
  Bind();
  size_t free = 0;
  size_t total = 0;
  return LosesDevice(api_.memory_info(&free, &total));
}

bool CudaStreams::RefusedWhileCapturing(absl::string_view what) {
  if (log_ != nullptr) log_->Refuse(what);
  return log_ != nullptr;
}

// ---- streams

cudaStream_t CudaStreams::stream(Stream stream) const {
  Bind();
  const cudaStream_t handle = streams_[Index(stream)];
  if (log_ != nullptr && log_->Join(stream)) {
    // A failure makes the capture invalid, which EndCapture reports.
    const size_t origin = Index(log_->origin());
    api_.event_record(captured_marks_[origin], streams_[origin]);
    api_.stream_wait_event(handle, captured_marks_[origin], 0);
  }
  return handle;
}

cudaEvent_t CudaStreams::MakeMark() {
  cudaEvent_t mark = nullptr;
  if (failed() || !Check(api_.event_create(&mark, cudaEventDisableTiming), "making an event")) {
    return nullptr;
  }
  return mark;
}

void CudaStreams::JoinStream(Stream stream, const std::array<cudaEvent_t, kDeviceStreams>& marks) {
  const cudaEvent_t mark = marks[Index(stream)];
  if (!Check(api_.event_record(mark, streams_[Index(stream)]), "marking a stream")) return;
  Check(api_.stream_wait_event(streams_[Index(current_)], mark, 0), "waiting for a stream");
}

void CudaStreams::JoinAll(const std::function<bool(Stream)>& chosen) {
  for (const Stream stream : kAllStreams) {
    if (stream != current_ && chosen(stream)) JoinStream(stream, marks_);
  }
}

void CudaStreams::ForkAll(const std::function<bool(Stream)>& chosen) {
  const cudaEvent_t mark = marks_[Index(current_)];
  if (!Check(api_.event_record(mark, streams_[Index(current_)]), "marking a stream")) return;
  for (const Stream stream : kAllStreams) {
    if (stream == current_ || !chosen(stream)) continue;
    Check(api_.stream_wait_event(streams_[Index(stream)], mark, 0), "waiting for a stream");
  }
}

std::unique_ptr<DeviceEvent> CudaStreams::MakeEvent() {
  Bind();
  auto state = std::make_shared<CudaEventState>(api_);
  state->happened = MakeMark();
  state->captured = MakeMark();
  return std::make_unique<CudaEvent>(std::move(state));
}

void CudaStreams::Record(DeviceEvent& event) {
  if (failed()) return;
  const std::shared_ptr<CudaEventState>& state = static_cast<CudaEvent&>(event).state();
  if (log_ != nullptr) {
    log_->RecordInside(state);
    Check(api_.event_record(state->captured, stream()), "recording an event");
    return;
  }
  state->recorded = Check(api_.event_record(state->happened, stream()), "recording an event");
}

void CudaStreams::WaitFor(const DeviceEvent& event) {
  if (failed()) return;
  const std::shared_ptr<CudaEventState>& state = static_cast<const CudaEvent&>(event).state();
  if (log_ != nullptr) {
    if (!log_->WaitInside(state)) return;
    Check(api_.stream_wait_event(stream(), state->captured, 0), "waiting for an event");
    return;
  }
  if (!state->recorded) return;
  Check(api_.stream_wait_event(stream(), state->happened, 0), "waiting for an event");
}

// ---- blocking the host

absl::Status CudaStreams::BlockHost(cudaEvent_t event, HostSync why, absl::string_view what) {
  ++host_syncs_[static_cast<size_t>(why)];
  const absl::Time begin = absl::Now();
  while (!failed()) {
    const cudaError_t error = api_.event_query(event);
    if (error == cudaSuccess) break;
    if (error != cudaErrorNotReady) {
      Check(error, absl::StrCat("waiting for ", what).c_str());
      break;
    }
    // "Not ready" is not an error, but some versions keep it as the last error.
    api_.last_error();
    const absl::Duration waited = absl::Now() - begin;
    if (waited > options_.patience) {
      Fail(absl::DeadlineExceededError(
          absl::StrCat(what, " has not ended after ", absl::FormatDuration(waited))));
      break;
    }
    if (waited < kSpin) {
      std::this_thread::yield();
    } else {
      absl::SleepFor(std::min(kLongestPause, waited / 8));
    }
  }
  return status();
}

absl::Status CudaStreams::Await(const DeviceEvent& event) {
  if (RefusedWhileCapturing("waiting for an event on the host")) {
    return absl::FailedPreconditionError("a capture cannot wait for the device");
  }
  const CudaEventState& state = *static_cast<const CudaEvent&>(event).state();
  if (failed() || !state.recorded) return status();
  Bind();
  return BlockHost(state.happened, HostSync::kEvent);
}

absl::Status CudaStreams::Synchronize() {
  if (RefusedWhileCapturing("waiting for all streams on the host")) {
    return absl::FailedPreconditionError("a capture cannot wait for the device");
  }
  return WaitForAll(HostSync::kDevice);
}

absl::Status CudaStreams::WaitForAll(HostSync why) {
  if (failed()) return status();
  Bind();
  // Joins all streams into one, so that there is a single event to wait for.
  JoinAll([](Stream) { return true; });
  const cudaEvent_t mark = marks_[Index(current_)];
  if (!Check(api_.event_record(mark, streams_[Index(current_)]), "marking a stream"))
    return status();
  return BlockHost(mark, why);
}

bool CudaStreams::Settle() { return WaitForAll(HostSync::kMemory).ok() || Quiet(); }

bool CudaStreams::Quiet() {
  if (wedged_) return false;
  const absl::Time deadline = absl::Now() + std::min(kEndPatience, options_.patience);
  for (const Stream stream : kAllStreams) {
    const size_t i = Index(stream);
    // Null if Open failed.
    if (streams_[i] == nullptr || marks_[i] == nullptr) continue;
    cudaError_t error = api_.event_record(marks_[i], streams_[i]);
    while (error == cudaSuccess && (error = api_.event_query(marks_[i])) == cudaErrorNotReady &&
           absl::Now() < deadline) {
      error = cudaSuccess;
      absl::SleepFor(kLongestPause);
    }
    if (error != cudaSuccess) api_.last_error();
    // If the device is lost, its work has ended.
    wedged_ = error == cudaErrorNotReady || (error != cudaSuccess && !LosesDevice(error));
    if (wedged_) {
      LOG(ERROR) << name() << ": work on it has not ended: " << api_.error_text(error);
      return false;
    }
  }
  return true;
}

}  // namespace cadre
