#include "tests/emulator/emulated_cuda.h"

#include <algorithm>
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
    .device_count = Machines::kCall<kSlot, "device_count", &Devices::DeviceCount>,
    .set_device = Machines::kCall<kSlot, "set_device", &Devices::SetDevice>,
    .properties = Machines::kCall<kSlot, "properties", &Devices::Properties>,
    .memory_info = Machines::kCall<kSlot, "memory_info", &Devices::MemoryInfo>,
    .malloc = Machines::kCall<kSlot, "malloc", &EmulatedCuda::Malloc>,
    .free = Machines::kCall<kSlot, "free", &EmulatedCuda::Free>,
    .host_alloc = Machines::kCall<kSlot, "host_alloc", &EmulatedCuda::HostAlloc>,
    .free_host = Machines::kCall<kSlot, "free_host", &EmulatedCuda::FreeHost>,
    .copy_async = Machines::kCall<kSlot, "copy_async", &EmulatedCuda::CopyAsync>,
    .set_async = Machines::kCall<kSlot, "set_async", &EmulatedCuda::SetAsync>,
    .stream_create = Machines::kCall<kSlot, "stream_create", &StreamTable::StreamCreate>,
    .stream_destroy = Machines::kCall<kSlot, "stream_destroy", &StreamTable::StreamDestroy>,
    .stream_wait_event = Machines::kCall<kSlot, "stream_wait_event", &StreamTable::StreamWaitEvent>,
    .event_create = Machines::kCall<kSlot, "event_create", &StreamTable::EventCreate>,
    .event_destroy = Machines::kCall<kSlot, "event_destroy", &StreamTable::EventDestroy>,
    .event_record = Machines::kCall<kSlot, "event_record", &StreamTable::EventRecord>,
    .event_query = Machines::kCall<kSlot, "event_query", &StreamTable::EventQuery>,
    .event_elapsed = Machines::kCall<kSlot, "event_elapsed", &StreamTable::EventElapsed>,
    .load_kernels = Machines::kCall<kSlot, "load_kernels", &EmulatedCuda::LoadKernels>,
    .launch = Machines::kCall<kSlot, "launch", &EmulatedCuda::Launch>,
    .begin_capture = Machines::kCall<kSlot, "begin_capture", &StreamTable::BeginCapture>,
    .end_capture = Machines::kCall<kSlot, "end_capture", &StreamTable::EndCapture>,
    .graph_instantiate =
        Machines::kCall<kSlot, "graph_instantiate", &StreamTable::GraphInstantiate>,
    .graph_launch = Machines::kCall<kSlot, "graph_launch", &StreamTable::GraphLaunch>,
    .graph_exec_destroy =
        Machines::kCall<kSlot, "graph_exec_destroy", &StreamTable::GraphExecDestroy>,
    .graph_destroy = Machines::kCall<kSlot, "graph_destroy", &StreamTable::GraphDestroy>,
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

}  // namespace

EmulatedCuda::EmulatedCuda(Mode mode, int devices)
    : slot_(Machines::Take(this)),
      devices_(slot_, mode == Mode::kInline, devices),
      streams_(devices_, mode == Mode::kThreads) {}

EmulatedCuda::~EmulatedCuda() {
  streams_.End();
  Machines::Release(slot_);
}

const CudaApi& EmulatedCuda::api() const { return *kCudaTables[slot_]; }

cudaError_t EmulatedCuda::Enqueue(cudaStream_t stream, std::function<cudaError_t()> work) {
  auto* state = reinterpret_cast<StreamState*>(stream);
  return state->table->Submit(state, std::move(work));
}

cudaError_t EmulatedCuda::Drain(cudaStream_t stream) {
  auto* state = reinterpret_cast<StreamState*>(stream);
  if (state->queue != nullptr) state->queue->Drain();
  return state->table->devices().ErrorOf(state->device);
}

bool EmulatedCuda::IsOf(cudaStream_t stream, const std::map<uint64_t, int>& devices) {
  const auto* state = reinterpret_cast<StreamState*>(stream);
  return state->table->devices().IsChosen(state->device, devices);
}

bool EmulatedCuda::OnDevice(cudaStream_t stream, const void* memory, size_t bytes) {
  const auto* state = reinterpret_cast<StreamState*>(stream);
  return state->memory->Holds(memory, bytes);
}

LiveObjects EmulatedCuda::live() const {
  LiveObjects live{.pinned = pinned_.allocations()};
  devices_.Count(live);
  streams_.Count(live);
  return live;
}

cudaError_t EmulatedCuda::Enter(const char* function, LaterError* later) {
  const cudaError_t injected = calls_.Enter(function);
  if (devices_.count() == 0) return cudaErrorNoDevice;
  const int device = devices_.current();
  if (const cudaError_t dead = devices_.ErrorOf(device); dead != cudaSuccess) return dead;
  if (!KnownErrorOf(injected).fatal) return injected;
  if (later != nullptr) {
    later->value = injected;
    return cudaSuccess;
  }
  devices_.Break(injected, device);
  return injected;
}

cudaError_t EmulatedCuda::LastError() {
  calls_.Enter("last_error");
  Devices::ThreadState& state = devices_.thread_state();
  // The error of a device that failed is sticky, but only once a call of this table has returned
  // it: before, only a library, which has a runtime of its own, may have received it.
  if (state.last_error == devices_.ErrorOf(state.device)) return state.last_error;
  return std::exchange(state.last_error, cudaSuccess);
}

// --- memory -------------------------------------------------------------------------------------

cudaError_t EmulatedCuda::Malloc(void** memory_made, size_t bytes) {
  if (const cudaError_t error = streams_.ForbidInCapture(); error != cudaSuccess) return error;
  *memory_made = nullptr;
  if (bytes == 0) return cudaSuccess;
  *memory_made = devices_.memory(devices_.current()).Allocate(bytes);
  return *memory_made == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t EmulatedCuda::Free(EntryError error, void* address) {
  if (error.value == cudaSuccess) {
    if (const cudaError_t forbidden = streams_.ForbidInCapture(); forbidden != cudaSuccess)
      return forbidden;
  }
  if (address == nullptr) return cudaSuccess;
  for (int device = 0; device < devices_.count(); ++device) {
    if (!devices_.memory(device).Covers(address)) continue;
    // Like CUDA, waits for all work of the device.
    CountHiddenWait();
    streams_.DrainDevice(device);
    return devices_.memory(device).Free(address) ? cudaSuccess : cudaErrorInvalidValue;
  }
  return cudaErrorInvalidValue;
}

cudaError_t EmulatedCuda::HostAlloc(void** memory_made, size_t bytes, unsigned /*flags*/) {
  if (const cudaError_t error = streams_.ForbidInCapture(); error != cudaSuccess) return error;
  *memory_made = nullptr;
  if (bytes == 0) return cudaSuccess;
  *memory_made = pinned_.Allocate(bytes);
  return *memory_made == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t EmulatedCuda::FreeHost(EntryError error, void* address) {
  if (error.value == cudaSuccess) {
    if (const cudaError_t forbidden = streams_.ForbidInCapture(); forbidden != cudaSuccess)
      return forbidden;
  }
  if (address == nullptr) return cudaSuccess;
  CountHiddenWait();
  for (int device = 0; device < devices_.count(); ++device) streams_.DrainDevice(device);
  return pinned_.Free(address) ? cudaSuccess : cudaErrorInvalidValue;
}

// --- work ---------------------------------------------------------------------------------------

cudaError_t EmulatedCuda::CheckCopy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                    const StreamState& stream) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind == cudaMemcpyHostToHost || kind == cudaMemcpyDefault) return cudaErrorInvalidValue;
  const DeviceMemory& device = devices_.memory(stream.device);
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
  StreamState* const state = streams_.Find(stream);
  if (state == nullptr) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = CheckCopy(to, from, bytes, kind, *state); error != cudaSuccess) {
    return error;
  }
  const void* host = kind == cudaMemcpyHostToDevice ? from : to;
  const bool pinned = kind == cudaMemcpyDeviceToDevice || pinned_.Holds(host, bytes);
  if (!pinned && streams_.IsCaptured(*state)) {
    streams_.Invalidate(*state);
    return cudaErrorStreamCaptureUnsupported;
  }
  if (!pinned && kind == cudaMemcpyHostToDevice) {
    // Read immediately, like CUDA with its staging buffer.
    const auto* begin = static_cast<const char*>(from);
    auto staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
    return streams_.Submit(state, [=, error = later.value] {
      if (error == cudaSuccess) std::memcpy(to, staged->data(), bytes);
      return error;
    });
  }
  const cudaError_t error = streams_.Submit(state, [=, error = later.value] {
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
  StreamState* const state = streams_.Find(stream);
  if (state == nullptr) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  if (!devices_.memory(state->device).Holds(set, bytes)) return cudaErrorInvalidValue;
  return streams_.Submit(state, [=, error = later.value] {
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
  if (stream.device != devices_.current()) return cudaErrorInvalidResourceHandle;
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
  StreamState* const state = streams_.Find(stream);
  if (state == nullptr) return cudaErrorInvalidResourceHandle;
  const cudaError_t error = CheckLaunch(kernel, grid, block, *state, on_host);
  if (error != cudaSuccess) return error;
  {
    absl::MutexLock lock(&mutex_);
    last_launch_ = {grid, block};
  }
  return streams_.Submit(state, [=, error = later.value] {
    if (error == cudaSuccess) RunGrid(grid, block, on_host, kernel);
    return error;
  });
}

}  // namespace cadre::emulated
