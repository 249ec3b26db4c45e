// An emulated machine with CUDA devices, for tests: it implements the functions of
// device/cuda/cuda_api.h, is as strict as CUDA, and behaves deterministically even if CUDA leaves a
// behaviour undefined.
//
// Like CUDA: streams and events, copies that read unpinned memory immediately and pinned memory
// later, captures and their rules, sticky errors, implicit synchronisation by free. Stricter: new
// device memory contains NaN; copies must be within allocations; there is no default stream; a
// capture may not copy from or to unpinned memory. Modes:
//   kInline   Work runs in the call that enqueues it. Device memory can be accessed only while work
//             runs; an access by the host ends the process.
//   kThreads  Work runs in a thread per stream, and per branch of a graph, as asynchronously as on
//             a device. ThreadSanitizer sees the same order of streams as a device guarantees.
//
// One object is one machine; several machines in one process are independent. The object owns
// everything that its functions make and must outlive its use. The functions of the table are as
// thread-safe as CUDA's; the methods of this class are thread-safe.
//
// emulated_cuda.cc has memory and work, emulated_order.cc streams and events, emulated_capture.cc
// captures and graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <type_traits>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "device/cuda/cuda_api.h"
#include "tests/emulator/call_table.h"
#include "tests/emulator/emulated_memory.h"
#include "tests/emulator/emulated_stream.h"

namespace cadre::emulated {

inline constexpr int kMaxDevices = 8;
// Maximum number of machines at the same time.
inline constexpr int kMaxMachines = 32;

class EmulatedCuda;
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
  EmulatedCuda* machine = nullptr;
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

using GraphState = std::vector<GraphNode>;

class EmulatedCuda {
 public:
  enum class Mode : uint8_t { kInline, kThreads };

  explicit EmulatedCuda(Mode mode, int devices = 1);
  // Waits for all work that was enqueued.
  ~EmulatedCuda();
  EmulatedCuda(const EmulatedCuda&) = delete;
  EmulatedCuda& operator=(const EmulatedCuda&) = delete;

  // The functions of this machine. Valid during the object's lifetime.
  const CudaApi& api() const;

  // --- properties of the machine; set before its first use --------------------------------------
  // Memory of each device, initially 2 GiB; only pages that are accessed occupy memory of the host.
  void set_memory(size_t bytes) { memory_bytes_ = bytes; }
  void set_devices(int devices) { device_count_ = devices; }
  // Processors of each device, initially 2. Kernels choose their launch shapes accordingly.
  void set_processors(int processors) { processors_ = processors; }

  // --- faults -----------------------------------------------------------------------------------
  // The next call of `function` (a member of CudaApi) after `after` others fails. Fatal errors
  // (illegal address, lost device) are sticky; those of a launch, copy or memset are reported by
  // later calls, as on a device.
  void FailNext(absl::string_view function, cudaError_t error, int64_t after = 0) {
    calls_.FailNext(function, error, after);
  }
  // The device fails now, not in a call.
  void Break(cudaError_t error, int device = 0);

  // --- observations ----------------------------------------------------------------------------
  // Calls of a function of CudaApi since the start or ResetCalls. In addition, "hidden_wait" counts
  // implicit synchronisations of the host (free, free_host, copies to unpinned memory).
  int64_t calls(absl::string_view function) const { return calls_.calls(function); }
  void ResetCalls() { calls_.Reset(); }
  // Objects that were created and not yet destroyed.
  struct Live {
    int64_t allocations = 0, pinned = 0, streams = 0, events = 0, graphs = 0, graph_execs = 0;
    int64_t bytes = 0;
    int64_t objects() const {
      return allocations + pinned + streams + events + graphs + graph_execs;
    }
  };
  Live live() const;
  // The shape of the last launch, which may have been captured.
  struct LaunchedShape {
    dim3 grid, block;
  };
  LaunchedShape last_launch() const {
    absl::MutexLock lock(&mutex_);
    return last_launch_;
  }

  // --- for other parts of the emulator --------------------------------------------------
  // Enqueues work on a stream of any machine, like a kernel: it may access device memory, is
  // captured if the stream is, and its result becomes the device's error. It may wait for other
  // streams' work.
  static cudaError_t Enqueue(cudaStream_t stream, std::function<cudaError_t()> work);
  // Waits for the work of a stream of any machine. Returns the error of its device, or success.
  static cudaError_t Drain(cudaStream_t stream);
  // The current device of the calling thread on each machine, by the machine's number. Machines on
  // which the thread has set no device are omitted; their first device is current.
  static std::map<uint64_t, int> ChosenDevices();
  // Whether the stream belongs to one of `devices`.
  static bool IsOf(cudaStream_t stream, const std::map<uint64_t, int>& devices);
  // Whether [memory, memory + bytes) lies within one allocation of the stream's device.
  static bool OnDevice(cudaStream_t stream, const void* memory, size_t bytes);
  // Counts a call of an emulated library by its name; calls of operations, but not the making of
  // plans, also as "library". True if the call must return an error, which FailNext injects.
  bool LibraryFails(absl::string_view operation) {
    const bool any =
        !absl::StartsWith(operation, "plan of ") && calls_.Enter("library") != cudaSuccess;
    return calls_.Enter(operation) != cudaSuccess || any;
  }

  // --- the functions of CudaApi -----------------------------------------------------------------
  // The error with which the work of a call fails later, or success.
  struct LaterError {
    cudaError_t value;
  };
  // The error that a call returns, or success. Calls that destroy something do so in either case.
  struct EntryError {
    cudaError_t value;
  };
  // Counts the call and checks for errors of the machine and injected ones; then calls the method
  // and stores the call's error as the last one of the thread.
  template <typename Method, typename... Arguments>
  cudaError_t Call(const char* function, Method method, Arguments&... arguments) {
    constexpr bool kWorks = std::is_invocable_v<Method, EmulatedCuda*, LaterError, Arguments&...>;
    constexpr bool kDestroys =
        std::is_invocable_v<Method, EmulatedCuda*, EntryError, Arguments&...>;
    LaterError later = {cudaSuccess};
    cudaError_t error = Enter(function, kWorks ? &later : nullptr);
    if constexpr (kDestroys) {
      const cudaError_t own = (this->*method)(EntryError{error}, arguments...);
      if (error == cudaSuccess) error = own;
    } else if (error == cudaSuccess) {
      if constexpr (kWorks) {
        error = (this->*method)(later, arguments...);
      } else {
        error = (this->*method)(arguments...);
      }
    }
    if (error != cudaSuccess) thread_state().last_error = error;
    return error;
  }
  cudaError_t DeviceCount(int* count);
  cudaError_t SetDevice(int device);
  cudaError_t Properties(cudaDeviceProp* properties, int device);
  cudaError_t MemoryInfo(size_t* free, size_t* total);
  cudaError_t Malloc(void** memory, size_t bytes);
  cudaError_t Free(EntryError error, void* memory);
  cudaError_t HostAlloc(void** memory, size_t bytes, unsigned flags);
  cudaError_t FreeHost(EntryError error, void* memory);
  cudaError_t CopyAsync(LaterError later, void* to, const void* from, size_t bytes,
                        cudaMemcpyKind kind, cudaStream_t stream);
  cudaError_t SetAsync(LaterError later, void* memory, int value, size_t bytes,
                       cudaStream_t stream);
  cudaError_t StreamCreate(cudaStream_t* stream, unsigned flags, int priority);
  cudaError_t StreamDestroy(EntryError error, cudaStream_t stream);
  cudaError_t StreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
  cudaError_t EventCreate(cudaEvent_t* event, unsigned flags);
  cudaError_t EventDestroy(EntryError error, cudaEvent_t event);
  cudaError_t EventRecord(cudaEvent_t event, cudaStream_t stream);
  cudaError_t EventQuery(cudaEvent_t event);
  cudaError_t EventElapsed(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
  // Kernels are functions of the host, which are always loaded.
  cudaError_t LoadKernels() { return cudaSuccess; }
  cudaError_t Launch(LaterError later, const void* kernel, dim3 grid, dim3 block, void** arguments,
                     cudaStream_t stream, const std::function<void()>& on_host);
  cudaError_t BeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
  cudaError_t EndCapture(EntryError error, cudaStream_t stream, cudaGraph_t* graph);
  cudaError_t GraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                               unsigned long long flags);  // NOLINT: as CUDA has it
  cudaError_t GraphLaunch(LaterError later, cudaGraphExec_t graph, cudaStream_t stream);
  cudaError_t GraphExecDestroy(EntryError error, cudaGraphExec_t graph);
  cudaError_t GraphDestroy(EntryError error, cudaGraph_t graph);
  cudaError_t LastError();

 private:
  struct DeviceState {
    std::unique_ptr<DeviceMemory> memory;
    // The error with which the device failed, or success.
    std::atomic<cudaError_t> error = cudaSuccess;
  };
  // State of a host thread.
  struct ThreadState {
    uint64_t machine = 0;
    int device = 0;
    cudaError_t last_error = cudaSuccess;
  };

  // The states of the calling thread for all machines.
  static std::array<ThreadState, kMaxMachines>& ThreadStates();
  ThreadState& thread_state() const;
  int current_device() const { return thread_state().device; }
  // Counts the call. Returns its error, or success. A fatal error that is injected into a call with
  // `later` is stored there instead.
  cudaError_t Enter(const char* function, LaterError* later);
  void CountHiddenWait() { calls_.Enter("hidden_wait"); }
  cudaError_t Submit(StreamState* stream, Work work);
  DeviceMemory& memory(int device);
  cudaError_t ErrorOf(int device) const;

  // Null for an invalid handle.
  StreamState* Find(cudaStream_t stream) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  EventState* Find(cudaEvent_t event) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  cudaError_t CheckLaunch(const void* kernel, dim3 grid, dim3 block, const StreamState& stream,
                          const std::function<void()>& on_host);

  const Mode mode_;
  // The number of this machine among all machines that were created, and the slot of its functions
  // in the table of machines.
  uint64_t number_ = 0;
  int slot_ = 0;
  std::atomic<size_t> memory_bytes_ = size_t{2} << 30;
  std::atomic<int> device_count_;
  std::atomic<int> processors_ = 2;
  std::array<DeviceState, kMaxDevices> devices_;
  PinnedMemory pinned_;
  CallLog<cudaError_t> calls_;

  mutable absl::Mutex mutex_;
  // Streams are kept until the machine ends, because their work may still be running.
  std::vector<std::unique_ptr<StreamState>> all_streams_ ABSL_GUARDED_BY(mutex_);
  std::set<const StreamState*> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, std::unique_ptr<EventState>> events_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, std::unique_ptr<GraphState>> graphs_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, std::shared_ptr<GraphPlayer>> execs_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Capture>> captures_ ABSL_GUARDED_BY(mutex_);
  LaunchedShape last_launch_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::emulated

namespace cadre {

using emulated::EmulatedCuda;

}  // namespace cadre
