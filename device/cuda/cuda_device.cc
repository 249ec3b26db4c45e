#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "device/cuda/cuda_device_lanes.h"
#include "device/cuda/cuda_event.h"
#include "device/cuda/cuda_machine.h"
#include "glog/logging.h"

namespace cadre {
namespace {

// bf16 and the asynchronous copies that our kernels and cuDNN's use.
constexpr int kLeastCapability = 80;
// The host asks without a pause for so long: most waits are over by then.
constexpr absl::Duration kSpin = absl::Microseconds(100);
constexpr absl::Duration kLongestPause = absl::Microseconds(50);
// For work under way on a device that failed: what has not ended by then (a collective whose
// peers are gone and that nobody aborted) keeps its memory until the process ends.
constexpr absl::Duration kEndPatience = absl::Seconds(30);
// Below zero is above the default; CUDA takes the nearest that the device has.
constexpr int kHighPriority = -1;
constexpr int kNormalPriority = 0;

int PriorityOf(Lane lane) {
  return lane == Lane::kMoves || lane == Lane::kCommunication ? kHighPriority : kNormalPriority;
}

}  // namespace

// ---- life

absl::Status CudaDeviceOfLanes::Open() {
  Bind();
  for (const Lane lane : kAllLanes) {
    if (!Check(api_.stream_create(&streams_[Index(lane)], cudaStreamNonBlocking, PriorityOf(lane)),
               "making a stream")) {
      return status();
    }
    marks_[Index(lane)] = MakeMark();
    captured_marks_[Index(lane)] = MakeMark();
  }
  for (cudaEvent_t& mark : staging_read_) mark = MakeMark();
  for (cudaEvent_t& mark : copied_out_marks_) mark = MakeMark();
  // Of one piece: the ring, and the two halves through which CopyOut goes.
  void* memory = nullptr;
  const size_t bytes = RingBytes(options_) + 2 * piece_bytes();
  if (Check(api_.host_alloc(&memory, bytes, cudaHostAllocDefault), "allocating staging memory")) {
    staging_ = static_cast<std::byte*>(memory);
    copied_out_ = {staging_ + RingBytes(options_), staging_ + RingBytes(options_) + piece_bytes()};
  }
  return status();
}

CudaDeviceOfLanes::~CudaDeviceOfLanes() {
  Bind();
  if (!Settle()) {
    LOG(ERROR) << name() << ": work that does not end keeps " << MemoryText(memory_.held())
               << " until the process ends";
    return;
  }
  for (const MemoryUse& use : memory_.uses()) {
    LOG(ERROR) << name() << ": " << MemoryText(use.bytes) << " of " << use.purpose
               << " outlive their device";
  }
  if (absl::Status released = memory_.ReleaseCached(); !released.ok()) LOG(ERROR) << released;
  if (staging_ != nullptr) api_.free_host(staging_);
  const auto destroy = [this](const auto& marks) {
    for (cudaEvent_t mark : marks) {
      if (mark != nullptr) api_.event_destroy(mark);
    }
  };
  destroy(marks_);
  destroy(captured_marks_);
  destroy(staging_read_);
  destroy(copied_out_marks_);
  for (cudaStream_t stream : streams_) {
    if (stream != nullptr) api_.stream_destroy(stream);
  }
  // Errors of the way down are nobody's any more.
  api_.last_error();
}

// ---- errors

void CudaDeviceOfLanes::Fail(absl::Status error) {
  CHECK(!error.ok());
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok()) return;
    status_ = error;
    failed_.store(true, std::memory_order_release);
  }
  // A group that was released is no trouble.
  if (absl::IsCancelled(error)) {
    LOG(INFO) << name() << ": " << error;
  } else {
    LOG(ERROR) << name() << ": " << error;
  }
}

bool CudaDeviceOfLanes::Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  // Else the next one who asks the runtime for its last error takes this one for theirs.
  api_.last_error();
  if (book_ != nullptr && IsCaptureError(error)) {
    book_->Refuse(absl::StrCat(what, ": ", api_.error_text(error)));
    return false;
  }
  if (LosesDevice(error)) lost_.store(true, std::memory_order_release);
  Fail(CudaStatus(api_, error, what));
  return false;
}

bool CudaDeviceOfLanes::lost() const {
  if (lost_.load(std::memory_order_acquire) || !failed()) return lost_;
  // A library may have met the error first, and told it in its own words; the runtime repeats it.
  Bind();
  size_t free = 0;
  size_t total = 0;
  return LosesDevice(api_.memory_info(&free, &total));
}

bool CudaDeviceOfLanes::RefusedWhileRecording(absl::string_view what) {
  if (book_ != nullptr) book_->Refuse(what);
  return book_ != nullptr;
}

// ---- lanes

cudaStream_t CudaDeviceOfLanes::stream(Lane lane) const {
  Bind();
  const cudaStream_t stream = streams_[Index(lane)];
  if (book_ != nullptr && book_->Join(lane)) {
    // A failure spoils the capture, and its end tells.
    const size_t origin = Index(book_->origin());
    api_.event_record(captured_marks_[origin], streams_[origin]);
    api_.stream_wait_event(stream, captured_marks_[origin], 0);
  }
  return stream;
}

cudaEvent_t CudaDeviceOfLanes::MakeMark() {
  cudaEvent_t mark = nullptr;
  if (failed() || !Check(api_.event_create(&mark, cudaEventDisableTiming), "making an event")) {
    return nullptr;
  }
  return mark;
}

void CudaDeviceOfLanes::LeadHere(Lane lane, const std::array<cudaEvent_t, kDeviceLanes>& marks) {
  const cudaEvent_t mark = marks[Index(lane)];
  if (!Check(api_.event_record(mark, streams_[Index(lane)]), "marking a lane")) return;
  Check(api_.stream_wait_event(streams_[Index(lane_)], mark, 0), "waiting for a lane");
}

void CudaDeviceOfLanes::LeadFromAll(const std::function<bool(Lane)>& chosen) {
  for (const Lane lane : kAllLanes) {
    if (lane != lane_ && chosen(lane)) LeadHere(lane, marks_);
  }
}

void CudaDeviceOfLanes::LeadToAll(const std::function<bool(Lane)>& chosen) {
  const cudaEvent_t mark = marks_[Index(lane_)];
  if (!Check(api_.event_record(mark, streams_[Index(lane_)]), "marking a lane")) return;
  for (const Lane lane : kAllLanes) {
    if (lane == lane_ || !chosen(lane)) continue;
    Check(api_.stream_wait_event(streams_[Index(lane)], mark, 0), "waiting for a lane");
  }
}

std::unique_ptr<DeviceEvent> CudaDeviceOfLanes::MakeEvent() {
  Bind();
  auto state = std::make_shared<CudaEventState>(api_);
  state->happened = MakeMark();
  state->captured = MakeMark();
  return std::make_unique<CudaEvent>(std::move(state));
}

void CudaDeviceOfLanes::Record(DeviceEvent& event) {
  if (failed()) return;
  const std::shared_ptr<CudaEventState>& state = static_cast<CudaEvent&>(event).state();
  if (book_ != nullptr) {
    book_->RecordInside(state);
    Check(api_.event_record(state->captured, stream()), "recording an event");
    return;
  }
  state->recorded = Check(api_.event_record(state->happened, stream()), "recording an event");
}

void CudaDeviceOfLanes::WaitFor(const DeviceEvent& event) {
  if (failed()) return;
  const std::shared_ptr<CudaEventState>& state = static_cast<const CudaEvent&>(event).state();
  if (book_ != nullptr) {
    if (!book_->WaitInside(state)) return;
    Check(api_.stream_wait_event(stream(), state->captured, 0), "waiting for an event");
    return;
  }
  if (!state->recorded) return;
  Check(api_.stream_wait_event(stream(), state->happened, 0), "waiting for an event");
}

// ---- where the host stands still

absl::Status CudaDeviceOfLanes::StandStill(cudaEvent_t event, HostWait why) {
  ++waits_[static_cast<size_t>(why)];
  const absl::Time begin = absl::Now();
  while (!failed()) {
    const cudaError_t error = api_.event_query(event);
    if (error == cudaSuccess) break;
    if (error != cudaErrorNotReady) {
      Check(error, "waiting for what was enqueued");
      break;
    }
    // Not an error, but kept as the last one by some versions.
    api_.last_error();
    const absl::Duration waited = absl::Now() - begin;
    if (waited > options_.patience) {
      Fail(absl::DeadlineExceededError(absl::StrCat(
          "what was enqueued on the device has not ended after ", absl::FormatDuration(waited))));
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

absl::Status CudaDeviceOfLanes::Await(const DeviceEvent& event) {
  if (RefusedWhileRecording("waiting for an event on the host")) {
    return absl::FailedPreconditionError("a recording cannot wait on the host");
  }
  const CudaEventState& state = *static_cast<const CudaEvent&>(event).state();
  if (failed() || !state.recorded) return status();
  Bind();
  return StandStill(state.happened, HostWait::kEvent);
}

absl::Status CudaDeviceOfLanes::Synchronize() {
  if (RefusedWhileRecording("waiting for all lanes on the host")) {
    return absl::FailedPreconditionError("a recording cannot wait on the host");
  }
  return WaitForAll(HostWait::kDevice);
}

absl::Status CudaDeviceOfLanes::WaitForAll(HostWait why) {
  if (failed()) return status();
  Bind();
  // All lanes' ends meet on one lane, so that there is one event to wait for.
  LeadFromAll([](Lane) { return true; });
  const cudaEvent_t mark = marks_[Index(lane_)];
  if (!Check(api_.event_record(mark, streams_[Index(lane_)]), "marking a lane")) return status();
  return StandStill(mark, why);
}

bool CudaDeviceOfLanes::Settle() { return WaitForAll(HostWait::kMemory).ok() || Quiet(); }

bool CudaDeviceOfLanes::Quiet() {
  if (wedged_) return false;
  const absl::Time deadline = absl::Now() + std::min(kEndPatience, options_.patience);
  for (const Lane lane : kAllLanes) {
    const size_t i = Index(lane);
    // Never opened.
    if (streams_[i] == nullptr || marks_[i] == nullptr) continue;
    cudaError_t error = api_.event_record(marks_[i], streams_[i]);
    while (error == cudaSuccess && (error = api_.event_query(marks_[i])) == cudaErrorNotReady &&
           absl::Now() < deadline) {
      error = cudaSuccess;
      absl::SleepFor(kLongestPause);
    }
    if (error != cudaSuccess) api_.last_error();
    // With the device everything ended that was on it.
    wedged_ = error == cudaErrorNotReady || (error != cudaSuccess && !LosesDevice(error));
    if (wedged_) {
      LOG(ERROR) << name() << ": work on it has not ended: " << api_.error_text(error);
      return false;
    }
  }
  return true;
}

// ---- what is here

namespace {

absl::StatusOr<CudaCard> LookAtCard(const CudaApi& api, int ordinal) {
  CADRE_ASSIGN_OR_RETURN(const CudaMachine machine, LookForCuda(api));
  if (ordinal < 0 || ordinal >= machine.devices) {
    return absl::NotFoundError(absl::StrCat("there is no GPU ", ordinal, ": this machine has ",
                                            machine.devices, ", counted from 0"));
  }
  cudaDeviceProp properties = {};
  size_t free = 0;
  size_t total = 0;
  cudaError_t error = api.set_device(ordinal);
  if (error == cudaSuccess) error = api.properties(&properties, ordinal);
  if (error == cudaSuccess) error = api.memory_info(&free, &total);
  if (error != cudaSuccess) {
    api.last_error();
    return CudaStatus(api, error, absl::StrCat("opening GPU ", ordinal));
  }
  return CudaCard{.name = properties.name,
                  .processors = properties.multiProcessorCount,
                  .capability = 10 * properties.major + properties.minor,
                  .memory = static_cast<int64_t>(total),
                  .free = static_cast<int64_t>(free)};
}

int64_t MemoryLimit(const CudaDeviceOptions& options, const CudaCard& card) {
  if (options.memory_limit > 0) return options.memory_limit;
  // A small device (a slice of one) keeps less for libraries.
  return card.free - std::min(options.reserve_bytes, card.free / 5);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Make(const CudaApi& api,
                                                             const CudaDeviceOptions& options) {
  CADRE_ASSIGN_OR_RETURN(CudaCard card, LookAtCard(api, options.ordinal));
  if (card.capability < kLeastCapability) {
    return absl::FailedPreconditionError(absl::StrCat(
        card.name, " has compute capability ", card.capability / 10, ".", card.capability % 10,
        "; this program needs ", kLeastCapability / 10, ".", kLeastCapability % 10, " or later"));
  }
  const CachingAllocator::Limits limits{.most = MemoryLimit(options, card), .total = card.memory};
  auto device = std::make_unique<CudaDeviceOfLanes>(api, options, std::move(card), limits);
  CADRE_RETURN_IF_ERROR(device->Open());
  return device;
}

}  // namespace cadre
