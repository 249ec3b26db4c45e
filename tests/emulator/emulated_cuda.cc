#include "tests/emulator/emulated_cuda.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "glog/logging.h"
#include "tests/emulator/block_runner.h"
#include "tests/emulator/launch_bounds.h"

namespace cadre::emulated {
namespace {

using Machines = Slots<EmulatedCuda, cudaError_t, kMaxMachines>;

struct KnownError {
  cudaError_t error;
  const char* name;
  // Whether the device is unusable after the error.
  bool fatal = false;
};

// The errors that a machine returns or that tests inject.
#define CADRE_ERROR(error) error, #error
constexpr KnownError kKnownErrors[] = {
    {CADRE_ERROR(cudaSuccess)},
    {CADRE_ERROR(cudaErrorInvalidValue)},
    {CADRE_ERROR(cudaErrorMemoryAllocation)},
    {CADRE_ERROR(cudaErrorInvalidConfiguration)},
    {CADRE_ERROR(cudaErrorDevicesUnavailable), true},
    {CADRE_ERROR(cudaErrorInvalidDeviceFunction)},
    {CADRE_ERROR(cudaErrorNoDevice)},
    {CADRE_ERROR(cudaErrorInvalidDevice)},
    {CADRE_ERROR(cudaErrorECCUncorrectable), true},
    {CADRE_ERROR(cudaErrorInvalidResourceHandle)},
    {CADRE_ERROR(cudaErrorNotReady)},
    {CADRE_ERROR(cudaErrorIllegalAddress), true},
    {CADRE_ERROR(cudaErrorLaunchFailure), true},
    {CADRE_ERROR(cudaErrorIllegalState)},
    {CADRE_ERROR(cudaErrorStreamCaptureUnsupported)},
    {CADRE_ERROR(cudaErrorStreamCaptureInvalidated)},
    {CADRE_ERROR(cudaErrorStreamCaptureMerge)},
    {CADRE_ERROR(cudaErrorStreamCaptureUnmatched)},
    {CADRE_ERROR(cudaErrorStreamCaptureUnjoined)},
    {CADRE_ERROR(cudaErrorStreamCaptureIsolation)},
    {CADRE_ERROR(cudaErrorCapturedEvent)},
    {CADRE_ERROR(cudaErrorStreamCaptureWrongThread)},
    {CADRE_ERROR(cudaErrorNotSupported)},
    {CADRE_ERROR(cudaErrorUnknown), true},
};
#undef CADRE_ERROR

KnownError KnownErrorOf(cudaError_t error) {
  for (const KnownError& known : kKnownErrors) {
    if (known.error == error) return known;
  }
  return {error, "unrecognized error code"};
}

const char* CudaErrorName(cudaError_t error) { return KnownErrorOf(error).name; }
const char* CudaErrorText(cudaError_t /*error*/) { return "an emulated error"; }

// CUDA 13.0, of the driver and of the runtime.
cudaError_t Version(int* version) {
  *version = 13000;
  return cudaSuccess;
}

template <int kSlot>
constexpr CudaApi kCudaTable = {
    .driver_version = &Version,
    .runtime_version = &Version,
    .device_count = Machines::kCall<kSlot, "device_count", &EmulatedCuda::DeviceCount>,
    .set_device = Machines::kCall<kSlot, "set_device", &EmulatedCuda::SetDevice>,
    .properties = Machines::kCall<kSlot, "properties", &EmulatedCuda::Properties>,
    .memory_info = Machines::kCall<kSlot, "memory_info", &EmulatedCuda::MemoryInfo>,
    .malloc = Machines::kCall<kSlot, "malloc", &EmulatedCuda::Malloc>,
    .free = Machines::kCall<kSlot, "free", &EmulatedCuda::Free>,
    .host_alloc = Machines::kCall<kSlot, "host_alloc", &EmulatedCuda::HostAlloc>,
    .free_host = Machines::kCall<kSlot, "free_host", &EmulatedCuda::FreeHost>,
    .copy_async = Machines::kCall<kSlot, "copy_async", &EmulatedCuda::CopyAsync>,
    .set_async = Machines::kCall<kSlot, "set_async", &EmulatedCuda::SetAsync>,
    .stream_create = Machines::kCall<kSlot, "stream_create", &EmulatedCuda::StreamCreate>,
    .stream_destroy = Machines::kCall<kSlot, "stream_destroy", &EmulatedCuda::StreamDestroy>,
    .stream_wait_event =
        Machines::kCall<kSlot, "stream_wait_event", &EmulatedCuda::StreamWaitEvent>,
    .event_create = Machines::kCall<kSlot, "event_create", &EmulatedCuda::EventCreate>,
    .event_destroy = Machines::kCall<kSlot, "event_destroy", &EmulatedCuda::EventDestroy>,
    .event_record = Machines::kCall<kSlot, "event_record", &EmulatedCuda::EventRecord>,
    .event_query = Machines::kCall<kSlot, "event_query", &EmulatedCuda::EventQuery>,
    .event_elapsed = Machines::kCall<kSlot, "event_elapsed", &EmulatedCuda::EventElapsed>,
    .load_kernels = Machines::kCall<kSlot, "load_kernels", &EmulatedCuda::LoadKernels>,
    .launch = Machines::kCall<kSlot, "launch", &EmulatedCuda::Launch>,
    .begin_capture = Machines::kCall<kSlot, "begin_capture", &EmulatedCuda::BeginCapture>,
    .end_capture = Machines::kCall<kSlot, "end_capture", &EmulatedCuda::EndCapture>,
    .graph_instantiate =
        Machines::kCall<kSlot, "graph_instantiate", &EmulatedCuda::GraphInstantiate>,
    .graph_launch = Machines::kCall<kSlot, "graph_launch", &EmulatedCuda::GraphLaunch>,
    .graph_exec_destroy =
        Machines::kCall<kSlot, "graph_exec_destroy", &EmulatedCuda::GraphExecDestroy>,
    .graph_destroy = Machines::kCall<kSlot, "graph_destroy", &EmulatedCuda::GraphDestroy>,
    .last_error = [] { return Machines::At(kSlot).LastError(); },
    .error_name = &CudaErrorName,
    .error_text = &CudaErrorText,
};

template <int... kSlots>
constexpr std::array<const CudaApi*, sizeof...(kSlots)> CudaTables(
    std::integer_sequence<int, kSlots...> /*slots*/) {
  return {&kCudaTable<kSlots>...};
}
constexpr auto kCudaTables = CudaTables(std::make_integer_sequence<int, kMaxMachines>());

std::atomic<uint64_t> machines_made = 0;

}  // namespace

EmulatedCuda::EmulatedCuda(Mode mode, int devices)
    : mode_(mode), number_(++machines_made), slot_(Machines::Take(this)), device_count_(devices) {}

EmulatedCuda::~EmulatedCuda() {
  // Waits for the pending work of all streams.
  std::vector<std::unique_ptr<StreamState>> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams.swap(all_streams_);
  }
  streams.clear();
  Machines::Release(slot_);
}

const CudaApi& EmulatedCuda::api() const { return *kCudaTables[slot_]; }

std::array<EmulatedCuda::ThreadState, kMaxMachines>& EmulatedCuda::ThreadStates() {
  static thread_local std::array<ThreadState, kMaxMachines> states;
  return states;
}

EmulatedCuda::ThreadState& EmulatedCuda::thread_state() const {
  ThreadState& state = ThreadStates()[slot_];
  if (state.machine != number_) state = {.machine = number_};
  return state;
}

cudaError_t EmulatedCuda::Enqueue(cudaStream_t stream, std::function<cudaError_t()> work) {
  auto* state = reinterpret_cast<StreamState*>(stream);
  return state->machine->Submit(state, std::move(work));
}

cudaError_t EmulatedCuda::Drain(cudaStream_t stream) {
  auto* state = reinterpret_cast<StreamState*>(stream);
  if (state->queue != nullptr) state->queue->Drain();
  return state->machine->ErrorOf(state->device);
}

std::map<uint64_t, int> EmulatedCuda::ChosenDevices() {
  std::map<uint64_t, int> chosen;
  for (const ThreadState& state : ThreadStates()) chosen[state.machine] = state.device;
  return chosen;
}

bool EmulatedCuda::IsOf(cudaStream_t stream, const std::map<uint64_t, int>& devices) {
  const auto* state = reinterpret_cast<StreamState*>(stream);
  const auto chosen = devices.find(state->machine->number_);
  return state->device == (chosen == devices.end() ? 0 : chosen->second);
}

bool EmulatedCuda::OnDevice(cudaStream_t stream, const void* memory, size_t bytes) {
  auto* state = reinterpret_cast<StreamState*>(stream);
  return state->machine->memory(state->device).Holds(memory, bytes);
}

EmulatedCuda::Live EmulatedCuda::live() const {
  Live live;
  live.pinned = pinned_.allocations();
  absl::MutexLock lock(&mutex_);
  for (const DeviceState& device : devices_) {
    if (device.memory == nullptr) continue;
    live.allocations += device.memory->allocations();
    live.bytes += device.memory->used();
  }
  live.streams = streams_.size();
  live.events = events_.size();
  live.graphs = graphs_.size();
  live.graph_execs = execs_.size();
  return live;
}

DeviceMemory& EmulatedCuda::memory(int device) {
  absl::MutexLock lock(&mutex_);
  DeviceState& state = devices_[device];
  if (state.memory == nullptr) {
    state.memory = std::make_unique<DeviceMemory>(memory_bytes_, mode_ == Mode::kInline);
  }
  return *state.memory;
}

void EmulatedCuda::Break(cudaError_t error, int device) {
  cudaError_t none = cudaSuccess;
  devices_[device].error.compare_exchange_strong(none, error);
}

cudaError_t EmulatedCuda::ErrorOf(int device) const { return devices_[device].error.load(); }

cudaError_t EmulatedCuda::Enter(const char* function, LaterError* later) {
  const cudaError_t injected = calls_.Enter(function);
  if (device_count_ == 0) return cudaErrorNoDevice;
  const int device = current_device();
  if (const cudaError_t dead = ErrorOf(device); dead != cudaSuccess) return dead;
  if (!KnownErrorOf(injected).fatal) return injected;
  if (later != nullptr) {
    later->value = injected;
    return cudaSuccess;
  }
  Break(injected, device);
  return injected;
}

cudaError_t EmulatedCuda::LastError() {
  calls_.Enter("last_error");
  ThreadState& state = thread_state();
  // The error of a device that failed is sticky, but only once a call of this table has returned
  // it: before, only a library, which has a runtime of its own, may have received it.
  if (state.last_error == ErrorOf(state.device)) return state.last_error;
  return std::exchange(state.last_error, cudaSuccess);
}

// --- devices ------------------------------------------------------------------------------------

cudaError_t EmulatedCuda::DeviceCount(int* count) {
  *count = device_count_;
  return cudaSuccess;
}

cudaError_t EmulatedCuda::SetDevice(int device) {
  if (device < 0 || device >= device_count_) return cudaErrorInvalidDevice;
  thread_state().device = device;
  return ErrorOf(device);
}

cudaError_t EmulatedCuda::Properties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= device_count_) return cudaErrorInvalidDevice;
  std::memset(static_cast<void*>(properties), 0, sizeof(*properties));
  std::snprintf(properties->name, sizeof(properties->name), "emulated");
  properties->totalGlobalMem = memory_bytes_;
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = processors_;
  properties->warpSize = kWarp;
  properties->maxThreadsPerBlock = kMaxThreads;
  properties->maxThreadsPerMultiProcessor = 2 * kMaxThreads;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = 48 << 10;
  properties->regsPerBlock = 64 << 10;
  properties->l2CacheSize = 1 << 20;
  properties->unifiedAddressing = 1;
  properties->asyncEngineCount = 2;
  properties->concurrentKernels = 1;
  return cudaSuccess;
}

cudaError_t EmulatedCuda::MemoryInfo(size_t* free, size_t* total) {
  const DeviceMemory& all = memory(current_device());
  *total = all.total();
  *free = all.total() - std::min(all.total(), all.used());
  return cudaSuccess;
}

// --- memory -------------------------------------------------------------------------------------

cudaError_t EmulatedCuda::Malloc(void** memory_made, size_t bytes) {
  if (const cudaError_t error = ForbidInCapture(); error != cudaSuccess) return error;
  *memory_made = nullptr;
  if (bytes == 0) return cudaSuccess;
  *memory_made = memory(current_device()).Allocate(bytes);
  return *memory_made == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t EmulatedCuda::Free(EntryError error, void* address) {
  if (error.value == cudaSuccess) {
    if (const cudaError_t forbidden = ForbidInCapture(); forbidden != cudaSuccess) return forbidden;
  }
  if (address == nullptr) return cudaSuccess;
  for (int device = 0; device < device_count_; ++device) {
    if (!memory(device).Covers(address)) continue;
    // Like CUDA, waits for all work of the device.
    CountHiddenWait();
    DrainDevice(device);
    return memory(device).Free(address) ? cudaSuccess : cudaErrorInvalidValue;
  }
  return cudaErrorInvalidValue;
}

cudaError_t EmulatedCuda::HostAlloc(void** memory_made, size_t bytes, unsigned /*flags*/) {
  if (const cudaError_t error = ForbidInCapture(); error != cudaSuccess) return error;
  *memory_made = nullptr;
  if (bytes == 0) return cudaSuccess;
  *memory_made = pinned_.Allocate(bytes);
  return *memory_made == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t EmulatedCuda::FreeHost(EntryError error, void* address) {
  if (error.value == cudaSuccess) {
    if (const cudaError_t forbidden = ForbidInCapture(); forbidden != cudaSuccess) return forbidden;
  }
  if (address == nullptr) return cudaSuccess;
  CountHiddenWait();
  for (int device = 0; device < device_count_; ++device) DrainDevice(device);
  return pinned_.Free(address) ? cudaSuccess : cudaErrorInvalidValue;
}

std::vector<StreamState*> EmulatedCuda::StreamsOf(int device) {
  std::vector<StreamState*> streams;
  absl::MutexLock lock(&mutex_);
  for (const auto& stream : all_streams_) {
    if (stream->device == device) streams.push_back(stream.get());
  }
  return streams;
}

void EmulatedCuda::DrainDevice(int device) {
  for (const StreamState* stream : StreamsOf(device)) {
    if (stream->queue != nullptr) stream->queue->Drain();
  }
}

// --- work ---------------------------------------------------------------------------------------

StreamState* EmulatedCuda::Find(cudaStream_t stream) const {
  auto* const state = reinterpret_cast<StreamState*>(stream);
  return streams_.count(state) > 0 ? state : nullptr;
}

EventState* EmulatedCuda::Find(cudaEvent_t event) const {
  const auto found = events_.find(event);
  return found == events_.end() ? nullptr : found->second.get();
}

void EmulatedCuda::Do(const StreamState& stream, const Work& work) {
  if (ErrorOf(stream.device) != cudaSuccess) return;
  stream.memory->Open();
  const cudaError_t error = work();
  stream.memory->Close();
  if (error != cudaSuccess) Break(error, stream.device);
}

cudaError_t EmulatedCuda::Submit(StreamState* stream, Work work) {
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

cudaError_t EmulatedCuda::CheckCopy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                    const StreamState& stream) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind == cudaMemcpyHostToHost || kind == cudaMemcpyDefault) return cudaErrorInvalidValue;
  const DeviceMemory& device = memory(stream.device);
  const auto fits = [&device, bytes](const void* place, bool on_device) {
    return on_device ? device.Holds(place, bytes) : !device.Covers(place);
  };
  if (!fits(to, to_device) || !fits(from, from_device)) {
    LOG(ERROR) << "a copy of " << bytes << " bytes, kind " << kind << ", from " << from << " to "
               << to << " is not within one allocation";
    return cudaErrorInvalidValue;
  }
  const auto* begin = static_cast<const char*>(from);
  auto* into = static_cast<char*>(to);
  return begin < into + bytes && into < begin + bytes ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t EmulatedCuda::CopyAsync(LaterError later, void* to, const void* from, size_t bytes,
                                    cudaMemcpyKind kind, cudaStream_t stream) {
  StreamState* state = nullptr;
  bool captured = false;
  {
    absl::MutexLock lock(&mutex_);
    state = Find(stream);
    if (state == nullptr) return cudaErrorInvalidResourceHandle;
    captured = state->capture != nullptr;
  }
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = CheckCopy(to, from, bytes, kind, *state); error != cudaSuccess) {
    return error;
  }
  const void* host = kind == cudaMemcpyHostToDevice ? from : to;
  const bool pinned = kind == cudaMemcpyDeviceToDevice || pinned_.Holds(host, bytes);
  if (captured && !pinned) {
    absl::MutexLock lock(&mutex_);
    state->capture->invalidated = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  if (!pinned && kind == cudaMemcpyHostToDevice) {
    // Read immediately, like CUDA with its staging buffer.
    const auto* begin = static_cast<const char*>(from);
    auto staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
    return Submit(state, [=, error = later.value] {
      if (error == cudaSuccess) std::memcpy(to, staged->data(), bytes);
      return error;
    });
  }
  const cudaError_t error = Submit(state, [=, error = later.value] {
    if (error == cudaSuccess) std::memcpy(to, from, bytes);
    return error;
  });
  if (!pinned) {
    CountHiddenWait();
    if (state->queue != nullptr) state->queue->Drain();
  }
  return error;
}

cudaError_t EmulatedCuda::SetAsync(LaterError later, void* set, int value, size_t bytes,
                                   cudaStream_t stream) {
  StreamState* state = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    state = Find(stream);
    if (state == nullptr) return cudaErrorInvalidResourceHandle;
  }
  if (bytes == 0) return cudaSuccess;
  if (!memory(state->device).Holds(set, bytes)) return cudaErrorInvalidValue;
  return Submit(state, [=, error = later.value] {
    if (error == cudaSuccess) std::memset(set, value, bytes);
    return error;
  });
}

cudaError_t EmulatedCuda::CheckLaunch(const void* kernel, dim3 grid, dim3 block,
                                      const StreamState& stream,
                                      const std::function<void()>& on_host) {
  constexpr unsigned kMaxGridRows = 65535;
  // A kernel that was compiled for devices cannot run here.
  if (!on_host) return cudaErrorInvalidDeviceFunction;
  if (stream.device != current_device()) return cudaErrorInvalidResourceHandle;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const bool shaped = threads > 0 && threads <= kMaxThreads && block.z <= 64 && grid.x > 0 &&
                      grid.x <= 0x7FFFFFFF && grid.y > 0 && grid.y <= kMaxGridRows && grid.z > 0 &&
                      grid.z <= kMaxGridRows;
  if (!shaped) return cudaErrorInvalidConfiguration;
  // CUDA only states that the launch fails; a device may return another error.
  const unsigned bound = LaunchBound(kernel);
  if (threads <= bound) return cudaSuccess;
  LOG(ERROR) << "a block of " << threads << " threads exceeds the kernel's launch bound of "
             << bound;
  return cudaErrorInvalidConfiguration;
}

cudaError_t EmulatedCuda::Launch(LaterError later, const void* kernel, dim3 grid, dim3 block,
                                 void** /*arguments*/, cudaStream_t stream,
                                 const std::function<void()>& on_host) {
  StreamState* state = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    state = Find(stream);
    if (state == nullptr) return cudaErrorInvalidResourceHandle;
  }
  const cudaError_t error = CheckLaunch(kernel, grid, block, *state, on_host);
  if (error != cudaSuccess) return error;
  {
    absl::MutexLock lock(&mutex_);
    last_launch_ = {grid, block};
  }
  return Submit(state, [=, error = later.value] {
    if (error == cudaSuccess) RunGrid(grid, block, on_host, kernel);
    return error;
  });
}

}  // namespace cadre::emulated
