#include "tests/emulator/emulated_devices.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/emulator/block_runner.h"

namespace cadre::emulated {

uint64_t Devices::NextNumber() {
  static std::atomic<uint64_t> machines_made = 0;
  return ++machines_made;
}

DeviceMemory& Devices::memory(int device) {
  absl::MutexLock lock(&mutex_);
  std::unique_ptr<DeviceMemory>& memory = devices_[device].memory;
  if (memory == nullptr) memory = std::make_unique<DeviceMemory>(memory_bytes_, guarded_);
  return *memory;
}

void Devices::Break(cudaError_t error, int device) {
  cudaError_t none = cudaSuccess;
  devices_[device].error.compare_exchange_strong(none, error);
}

void Devices::Count(LiveObjects& live) const {
  absl::MutexLock lock(&mutex_);
  for (const Device& device : devices_) {
    if (device.memory == nullptr) continue;
    live.allocations += device.memory->allocations();
    live.bytes += device.memory->used();
  }
}

std::array<Devices::ThreadState, kMaxMachines>& Devices::ThreadStates() {
  static thread_local std::array<ThreadState, kMaxMachines> states;
  return states;
}

Devices::ThreadState& Devices::thread_state() const {
  ThreadState& state = ThreadStates()[slot_];
  if (state.machine != number_) state = {.machine = number_};
  return state;
}

std::map<uint64_t, int> Devices::Chosen() {
  std::map<uint64_t, int> chosen;
  for (const ThreadState& state : ThreadStates()) chosen[state.machine] = state.device;
  return chosen;
}

bool Devices::IsChosen(int device, const std::map<uint64_t, int>& chosen) const {
  const auto found = chosen.find(number_);
  return device == (found == chosen.end() ? 0 : found->second);
}

cudaError_t Devices::DeviceCount(int* count) {
  *count = count_;
  return cudaSuccess;
}

cudaError_t Devices::SetDevice(int device) {
  if (device < 0 || device >= count_) return cudaErrorInvalidDevice;
  thread_state().device = device;
  return ErrorOf(device);
}

cudaError_t Devices::Properties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= count_) return cudaErrorInvalidDevice;
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

cudaError_t Devices::MemoryInfo(size_t* free, size_t* total) {
  const DeviceMemory& all = memory(current());
  *total = all.total();
  *free = all.total() - std::min(all.total(), all.used());
  return cudaSuccess;
}

}  // namespace cadre::emulated
