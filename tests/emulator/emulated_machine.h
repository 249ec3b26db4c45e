// The implementation of EmulatedCuda. It enforces CUDA's rules: when which calls are allowed, what
// they return, and how errors propagate.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "tests/emulator/emulated_cuda.h"
#include "tests/emulator/emulated_memory.h"
#include "tests/emulator/emulated_stream.h"

namespace cadre::emulated {

inline constexpr int kMaxDevices = 8;
// Maximum number of machines at the same time.
inline constexpr int kMaxMachines = 32;

struct StreamState;

// A capture in progress. Guarded by its machine.
struct Capture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  // The streams that take part; first the stream on which the capture began.
  std::vector<StreamState*> branches;
  std::vector<GraphNode> nodes;
  bool invalidated = false;
  bool ended = false;
};

// The objects to which CUDA's handles point. Guarded by the machine's mutex, except for the work of
// `queue`.
struct StreamState {
  Machine* machine = nullptr;
  int device = 0;
  DeviceMemory* memory = nullptr;
  // Null if work runs in the call that enqueues it.
  std::unique_ptr<TaskQueue> queue;
  // Null if the stream is not captured.
  std::shared_ptr<Capture> capture;
  // The nodes that the next node depends on.
  std::vector<int> tail;
};

struct EventState {
  int device = 0;
  bool timing = false;
  // Null if never recorded.
  std::shared_ptr<Point> point;
  // The capture of the last record; null if it was outside of captures.
  std::shared_ptr<Capture> capture;
  std::vector<int> tail;
};

struct GraphState {
  std::vector<GraphNode> nodes;
};

struct GraphExecState {
  std::shared_ptr<GraphPlayer> player;
};

class Machine {
 public:
  Machine(EmulatedCuda::Mode mode, int devices);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  uint64_t number() const { return number_; }
  static std::map<uint64_t, int> ChosenDevices();
  const CudaApi& api() const;
  EmulatedCuda::Mode mode() const { return mode_; }
  void set_memory(size_t bytes) { memory_bytes_ = bytes; }
  void set_versions(int driver, int runtime);
  void set_devices(int devices) { device_count_ = devices; }
  void FailNext(absl::string_view function, cudaError_t error, int64_t after);
  void Break(cudaError_t error, int device);
  int64_t calls(absl::string_view function) const;
  void ResetCalls();
  EmulatedCuda::Live live() const;
  cudaError_t Submit(StreamState* stream, Work work);
  DeviceMemory& memory(int device);

  // --- the functions of CudaApi -----------------------------------------------------------------
  cudaError_t DriverVersion(int* version);
  cudaError_t RuntimeVersion(int* version);
  cudaError_t DeviceCount(int* count);
  cudaError_t SetDevice(int device);
  cudaError_t Properties(cudaDeviceProp* properties, int device);
  cudaError_t MemoryInfo(size_t* free, size_t* total);
  cudaError_t Malloc(void** memory, size_t bytes);
  cudaError_t Free(void* memory);
  cudaError_t HostAlloc(void** memory, size_t bytes, unsigned flags);
  cudaError_t FreeHost(void* memory);
  cudaError_t CopyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t stream);
  cudaError_t SetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);
  cudaError_t StreamCreate(cudaStream_t* stream, unsigned flags, int priority);
  cudaError_t StreamDestroy(cudaStream_t stream);
  cudaError_t StreamSynchronize(cudaStream_t stream);
  cudaError_t StreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
  cudaError_t EventCreate(cudaEvent_t* event, unsigned flags);
  cudaError_t EventDestroy(cudaEvent_t event);
  cudaError_t EventRecord(cudaEvent_t event, cudaStream_t stream);
  cudaError_t EventQuery(cudaEvent_t event);
  cudaError_t EventSynchronize(cudaEvent_t event);
  cudaError_t EventElapsed(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
  cudaError_t Launch(const void* kernel, dim3 grid, dim3 block, void** arguments,
                     cudaStream_t stream, const std::function<void()>& on_host);
  cudaError_t BeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
  cudaError_t EndCapture(cudaStream_t stream, cudaGraph_t* graph);
  cudaError_t GraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                               unsigned long long flags);  // NOLINT: as CUDA has it
  cudaError_t GraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
  cudaError_t GraphExecDestroy(cudaGraphExec_t graph);
  cudaError_t GraphDestroy(cudaGraph_t graph);
  cudaError_t LastError();

 private:
  struct DeviceState {
    std::unique_ptr<DeviceMemory> memory;
    // The error with which the device failed, or success.
    std::atomic<cudaError_t> error = cudaSuccess;
  };
  struct Fault {
    std::string function;
    cudaError_t error;
    int64_t after;
  };
  // State of a host thread.
  struct ThreadState {
    uint64_t machine = 0;
    int device = 0;
    cudaError_t last_error = cudaSuccess;
  };
  // The result of the checks at the beginning of a call.
  struct Entry {
    // The error that the call returns, or success.
    cudaError_t error = cudaSuccess;
    // The error with which the call's work fails later, or success.
    cudaError_t later = cudaSuccess;
  };
  enum class Kind : uint8_t { kPlain, kWork };

  // The states of the calling thread for all machines.
  static std::array<ThreadState, kMaxMachines>& ThreadStates();
  ThreadState& thread_state() const;
  int current_device() const { return thread_state().device; }
  // Counts the call and checks for errors of the machine and injected faults.
  Entry Enter(const char* function, Kind kind = Kind::kPlain);
  cudaError_t InjectedBy(const char* function) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  cudaError_t DriverError() const;
  // Stores the error of a call as the last one.
  cudaError_t Leave(cudaError_t error);
  void CountHiddenWait();
  void Kill(int device, cudaError_t error);
  cudaError_t ErrorOf(int device) const;

  bool Lives(cudaStream_t stream) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Lives(cudaEvent_t event) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An error if the calling thread captures; for calls that CUDA forbids then.
  cudaError_t ForbidInCapture();
  cudaError_t WaitInCapture(StreamState& stream, const EventState& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes all streams from the capture.
  void End(Capture& capture) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool AllJoined(const Capture& capture, const std::vector<int>& tail);

  // Runs work of the stream. It takes no lock, so that work is ordered only as a device orders it.
  void Do(const StreamState& stream, const Work& work);
  std::vector<StreamState*> StreamsOf(int device);
  void DrainDevice(int device);
  cudaError_t CheckCopy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                        const StreamState& stream);
  cudaError_t CheckLaunch(dim3 grid, dim3 block, const StreamState& stream,
                          const std::function<void()>& on_host);

  const EmulatedCuda::Mode mode_;
  // The number of this machine among all machines that were created, and the slot of its functions
  // in the table of machines.
  uint64_t number_ = 0;
  int slot_ = 0;
  std::atomic<size_t> memory_bytes_ = size_t{2} << 30;
  std::atomic<int> device_count_;
  std::atomic<int> driver_ = 13000;
  std::atomic<int> runtime_ = 13000;
  std::array<DeviceState, kMaxDevices> devices_;
  PinnedMemory pinned_;

  mutable absl::Mutex mutex_;
  std::map<std::string, int64_t, std::less<>> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mutex_);
  // Streams are kept until the machine ends, because their work may still be running.
  std::vector<std::unique_ptr<StreamState>> all_streams_ ABSL_GUARDED_BY(mutex_);
  std::set<const StreamState*> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, std::unique_ptr<EventState>> events_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, std::unique_ptr<GraphState>> graphs_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, std::unique_ptr<GraphExecState>> execs_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Capture>> captures_ ABSL_GUARDED_BY(mutex_);
};

const char* ErrorName(cudaError_t error);
const char* ErrorText(cudaError_t error);
// Whether the device is unusable after the error.
bool IsFatal(cudaError_t error);

}  // namespace cadre::emulated
