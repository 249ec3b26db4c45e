#include "tests/emulator/emulated_machine.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "glog/logging.h"
#include "tests/emulator/block_runner.h"

namespace cadre::emulated {

// --- the machine and its faults -----------------------------------------------------------------

void Machine::set_versions(int driver, int runtime) {
  driver_ = driver;
  runtime_ = runtime;
}

void Machine::FailNext(absl::string_view function, cudaError_t error, int64_t after) {
  absl::MutexLock lock(&mutex_);
  faults_.push_back({std::string(function), error, after});
}

void Machine::Break(cudaError_t error, int device) { Kill(device, error); }

int64_t Machine::calls(absl::string_view function) const {
  absl::MutexLock lock(&mutex_);
  const auto found = calls_.find(std::string(function));
  return found == calls_.end() ? 0 : found->second;
}

void Machine::ResetCalls() {
  absl::MutexLock lock(&mutex_);
  calls_.clear();
}

EmulatedCuda::Live Machine::live() const {
  EmulatedCuda::Live live;
  live.pinned = pinned_.allocations();
  absl::MutexLock lock(&mutex_);
  for (const DeviceState& device : devices_) {
    if (device.memory == nullptr) continue;
    live.allocations += device.memory->allocations();
    live.bytes += static_cast<int64_t>(device.memory->used());
  }
  live.streams = static_cast<int64_t>(streams_.size());
  live.events = static_cast<int64_t>(events_.size());
  live.graphs = static_cast<int64_t>(graphs_.size());
  live.graph_execs = static_cast<int64_t>(execs_.size());
  return live;
}

DeviceMemory& Machine::memory(int device) {
  absl::MutexLock lock(&mutex_);
  DeviceState& state = devices_[device];
  if (state.memory == nullptr) {
    state.memory =
        std::make_unique<DeviceMemory>(memory_bytes_, mode_ == EmulatedCuda::Mode::kInline);
  }
  return *state.memory;
}

void Machine::Kill(int device, cudaError_t error) {
  cudaError_t none = cudaSuccess;
  devices_[device].error.compare_exchange_strong(none, error);
}

cudaError_t Machine::ErrorOf(int device) const { return devices_[device].error.load(); }

cudaError_t Machine::DriverError() const {
  if (driver_ / 1000 < runtime_ / 1000) return cudaErrorInsufficientDriver;
  return device_count_ == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t Machine::InjectedBy(const char* function) {
  for (auto fault = faults_.begin(); fault != faults_.end(); ++fault) {
    if (fault->function != function || fault->after-- > 0) continue;
    const cudaError_t error = fault->error;
    faults_.erase(fault);
    return error;
  }
  return cudaSuccess;
}

Machine::Entry Machine::Enter(const char* function, Kind kind) {
  cudaError_t injected = cudaSuccess;
  {
    absl::MutexLock lock(&mutex_);
    ++calls_[function];
    injected = InjectedBy(function);
  }
  if (const cudaError_t error = DriverError(); error != cudaSuccess) return {.error = error};
  const int device = current_device();
  if (const cudaError_t dead = ErrorOf(device); dead != cudaSuccess) return {.error = dead};
  if (injected == cudaSuccess) return {};
  if (!IsFatal(injected)) return {.error = injected};
  if (kind == Kind::kWork) return {.later = injected};
  Kill(device, injected);
  return {.error = injected};
}

cudaError_t Machine::Leave(cudaError_t error) {
  if (error != cudaSuccess) thread_state().last_error = error;
  return error;
}

cudaError_t Machine::LastError() {
  {
    absl::MutexLock lock(&mutex_);
    ++calls_["last_error"];
  }
  ThreadState& state = thread_state();
  const cudaError_t last = std::exchange(state.last_error, cudaSuccess);
  const cudaError_t dead = ErrorOf(state.device);
  return dead != cudaSuccess ? dead : last;
}

void Machine::CountHiddenWait() {
  absl::MutexLock lock(&mutex_);
  ++calls_["hidden_wait"];
}

// --- devices ------------------------------------------------------------------------------------

cudaError_t Machine::DriverVersion(int* version) {
  *version = driver_;
  return cudaSuccess;
}

cudaError_t Machine::RuntimeVersion(int* version) {
  *version = runtime_;
  return cudaSuccess;
}

cudaError_t Machine::DeviceCount(int* count) {
  *count = 0;
  const Entry entry = Enter("device_count");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  *count = device_count_;
  return cudaSuccess;
}

cudaError_t Machine::SetDevice(int device) {
  const Entry entry = Enter("set_device");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  if (device < 0 || device >= device_count_) return Leave(cudaErrorInvalidDevice);
  thread_state().device = device;
  return Leave(ErrorOf(device));
}

cudaError_t Machine::Properties(cudaDeviceProp* properties, int device) {
  const Entry entry = Enter("properties");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  if (device < 0 || device >= device_count_) return Leave(cudaErrorInvalidDevice);
  std::memset(static_cast<void*>(properties), 0, sizeof(*properties));
  std::snprintf(properties->name, sizeof(properties->name), "emulated");
  properties->totalGlobalMem = memory_bytes_;
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = 2;
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

cudaError_t Machine::MemoryInfo(size_t* free, size_t* total) {
  const Entry entry = Enter("memory_info");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  const DeviceMemory& all = memory(current_device());
  *total = all.total();
  *free = all.total() - std::min(all.total(), all.used());
  return cudaSuccess;
}

// --- memory -------------------------------------------------------------------------------------

cudaError_t Machine::Malloc(void** memory_made, size_t bytes) {
  const Entry entry = Enter("malloc");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  if (const cudaError_t error = ForbidInCapture(); error != cudaSuccess) return Leave(error);
  *memory_made = nullptr;
  if (bytes == 0) return cudaSuccess;
  *memory_made = memory(current_device()).Allocate(bytes);
  return Leave(*memory_made == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t Machine::Free(void* freed) {
  const Entry entry = Enter("free");
  if (entry.error == cudaSuccess) {
    if (const cudaError_t error = ForbidInCapture(); error != cudaSuccess) return Leave(error);
  }
  if (freed == nullptr) return Leave(entry.error);
  for (int device = 0; device < device_count_; ++device) {
    if (!memory(device).Covers(freed)) continue;
    // Like CUDA, waits for all work of the device.
    CountHiddenWait();
    DrainDevice(device);
    const bool was_there = memory(device).Free(freed);
    if (entry.error != cudaSuccess) return Leave(entry.error);
    return Leave(was_there ? cudaSuccess : cudaErrorInvalidValue);
  }
  return Leave(entry.error != cudaSuccess ? entry.error : cudaErrorInvalidValue);
}

cudaError_t Machine::HostAlloc(void** memory_made, size_t bytes, unsigned /*flags*/) {
  const Entry entry = Enter("host_alloc");
  if (entry.error != cudaSuccess) return Leave(entry.error);
  if (const cudaError_t error = ForbidInCapture(); error != cudaSuccess) return Leave(error);
  *memory_made = nullptr;
  if (bytes == 0) return cudaSuccess;
  *memory_made = pinned_.Allocate(bytes);
  return Leave(*memory_made == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t Machine::FreeHost(void* freed) {
  const Entry entry = Enter("free_host");
  if (entry.error == cudaSuccess) {
    if (const cudaError_t error = ForbidInCapture(); error != cudaSuccess) return Leave(error);
  }
  if (freed == nullptr) return Leave(entry.error);
  CountHiddenWait();
  for (int device = 0; device < device_count_; ++device) DrainDevice(device);
  const bool was_there = pinned_.Free(freed);
  if (entry.error != cudaSuccess) return Leave(entry.error);
  return Leave(was_there ? cudaSuccess : cudaErrorInvalidValue);
}

std::vector<StreamState*> Machine::StreamsOf(int device) {
  std::vector<StreamState*> streams;
  absl::MutexLock lock(&mutex_);
  for (const auto& stream : all_streams_) {
    if (stream->device == device) streams.push_back(stream.get());
  }
  return streams;
}

void Machine::DrainDevice(int device) {
  for (const StreamState* stream : StreamsOf(device)) {
    if (stream->queue != nullptr) stream->queue->Drain();
  }
}

// --- work ---------------------------------------------------------------------------------------

bool Machine::Lives(cudaStream_t stream) const {
  return streams_.count(reinterpret_cast<const StreamState*>(stream)) > 0;
}

bool Machine::Lives(cudaEvent_t event) const { return events_.count(event) > 0; }

void Machine::Do(const StreamState& stream, const Work& work) {
  if (ErrorOf(stream.device) != cudaSuccess) return;
  stream.memory->Open();
  const cudaError_t error = work();
  stream.memory->Close();
  if (error != cudaSuccess) Kill(stream.device, error);
}

cudaError_t Machine::Submit(StreamState* stream, Work work) {
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

cudaError_t Machine::CheckCopy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
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

cudaError_t Machine::CopyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                               cudaStream_t stream) {
  const Entry entry = Enter("copy_async", Kind::kWork);
  if (entry.error != cudaSuccess) return Leave(entry.error);
  auto* state = reinterpret_cast<StreamState*>(stream);
  bool captured = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!Lives(stream)) return Leave(cudaErrorInvalidResourceHandle);
    captured = state->capture != nullptr;
  }
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = CheckCopy(to, from, bytes, kind, *state); error != cudaSuccess) {
    return Leave(error);
  }
  const void* host = kind == cudaMemcpyHostToDevice ? from : to;
  const bool pinned = kind == cudaMemcpyDeviceToDevice || pinned_.Holds(host, bytes);
  if (captured && !pinned) {
    absl::MutexLock lock(&mutex_);
    state->capture->invalidated = true;
    return Leave(cudaErrorStreamCaptureUnsupported);
  }
  if (!pinned && kind == cudaMemcpyHostToDevice) {
    // Read immediately, like CUDA with its staging buffer.
    const auto* begin = static_cast<const char*>(from);
    auto staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
    return Leave(Submit(state, [=, later = entry.later] {
      if (later == cudaSuccess) std::memcpy(to, staged->data(), bytes);
      return later;
    }));
  }
  const cudaError_t error = Submit(state, [=, later = entry.later] {
    if (later == cudaSuccess) std::memcpy(to, from, bytes);
    return later;
  });
  if (!pinned) {
    CountHiddenWait();
    if (state->queue != nullptr) state->queue->Drain();
  }
  return Leave(error);
}

cudaError_t Machine::SetAsync(void* set, int value, size_t bytes, cudaStream_t stream) {
  const Entry entry = Enter("set_async", Kind::kWork);
  if (entry.error != cudaSuccess) return Leave(entry.error);
  auto* state = reinterpret_cast<StreamState*>(stream);
  {
    absl::MutexLock lock(&mutex_);
    if (!Lives(stream)) return Leave(cudaErrorInvalidResourceHandle);
  }
  if (bytes == 0) return cudaSuccess;
  if (!memory(state->device).Holds(set, bytes)) return Leave(cudaErrorInvalidValue);
  return Leave(Submit(state, [=, later = entry.later] {
    if (later == cudaSuccess) std::memset(set, value, bytes);
    return later;
  }));
}

cudaError_t Machine::CheckLaunch(dim3 grid, dim3 block, const StreamState& stream,
                                 const std::function<void()>& on_host) {
  constexpr unsigned kMaxGridRows = 65535;
  // A kernel that was compiled for devices cannot run here.
  if (!on_host) return cudaErrorInvalidDeviceFunction;
  if (stream.device != current_device()) return cudaErrorInvalidResourceHandle;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const bool shaped = threads > 0 && threads <= kMaxThreads && block.z <= 64 && grid.x > 0 &&
                      grid.x <= 0x7FFFFFFF && grid.y > 0 && grid.y <= kMaxGridRows && grid.z > 0 &&
                      grid.z <= kMaxGridRows;
  return shaped ? cudaSuccess : cudaErrorInvalidConfiguration;
}

cudaError_t Machine::Launch(const void* kernel, dim3 grid, dim3 block, void** /*arguments*/,
                            cudaStream_t stream, const std::function<void()>& on_host) {
  const Entry entry = Enter("launch", Kind::kWork);
  if (entry.error != cudaSuccess) return Leave(entry.error);
  auto* state = reinterpret_cast<StreamState*>(stream);
  {
    absl::MutexLock lock(&mutex_);
    if (!Lives(stream)) return Leave(cudaErrorInvalidResourceHandle);
  }
  const cudaError_t error = CheckLaunch(grid, block, *state, on_host);
  if (error != cudaSuccess) return Leave(error);
  return Leave(Submit(state, [=, later = entry.later] {
    if (later == cudaSuccess) RunGrid(grid, block, on_host, kernel);
    return later;
  }));
}

}  // namespace cadre::emulated
