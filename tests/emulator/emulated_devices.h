// The devices of an emulated machine (emulated_cuda.h): their memory, their errors, and which of
// them is current in each host thread.
//
// Thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tests/emulator/emulated_memory.h"

namespace cadre::emulated {

inline constexpr int kMaxDevices = 8;
// Maximum number of machines at the same time.
inline constexpr int kMaxMachines = 32;

// Objects that were created and not yet destroyed.
struct LiveObjects {
  int64_t allocations = 0, pinned = 0, streams = 0, events = 0, graphs = 0, graph_execs = 0;
  int64_t bytes = 0;
  int64_t objects() const { return allocations + pinned + streams + events + graphs + graph_execs; }
};

class Devices {
 public:
  // `slot`: of the machine in the table of machines. `guarded`: the host may access memory only
  // while work runs.
  Devices(int slot, bool guarded, int count) : slot_(slot), guarded_(guarded), count_(count) {}

  // --- properties; set before the first use ---
  void set_count(int count) { count_ = count; }
  void set_memory(size_t bytes) { memory_bytes_ = bytes; }
  void set_processors(int processors) { processors_ = processors; }

  int count() const { return count_; }
  DeviceMemory& memory(int device);
  // The device fails with `error`, unless it has failed before.
  void Break(cudaError_t error, int device);
  // The error with which the device failed, or success.
  cudaError_t ErrorOf(int device) const { return devices_[device].error.load(); }
  // Adds the allocations of all devices.
  void Count(LiveObjects& live) const;

  // The state of a host thread.
  struct ThreadState {
    uint64_t machine = 0;
    int device = 0;
    cudaError_t last_error = cudaSuccess;
  };
  ThreadState& thread_state() const;
  int current() const { return thread_state().device; }
  // The current device of the calling thread on each machine, by the machine's number. Machines on
  // which the thread has set no device are omitted; their first device is current.
  static std::map<uint64_t, int> Chosen();
  // Whether `device` of this machine is the one that `chosen` has for it.
  bool IsChosen(int device, const std::map<uint64_t, int>& chosen) const;

  // --- functions of CudaApi ---
  cudaError_t DeviceCount(int* count);
  cudaError_t SetDevice(int device);
  cudaError_t Properties(cudaDeviceProp* properties, int device);
  cudaError_t MemoryInfo(size_t* free, size_t* total);

 private:
  struct Device {
    std::unique_ptr<DeviceMemory> memory;
    std::atomic<cudaError_t> error = cudaSuccess;
  };

  // The states of the calling thread for all machines.
  static std::array<ThreadState, kMaxMachines>& ThreadStates();
  static uint64_t NextNumber();

  // The number of this machine among all machines that were created.
  const uint64_t number_ = NextNumber();
  const int slot_;
  const bool guarded_;
  std::atomic<int> count_;
  std::atomic<size_t> memory_bytes_ = size_t{2} << 30;
  std::atomic<int> processors_ = 2;
  std::array<Device, kMaxDevices> devices_;
  // Guards the pointers to the memory of the devices.
  mutable absl::Mutex mutex_;
};

}  // namespace cadre::emulated
