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
// The machine consists of devices (emulated_devices.h) and of streams, events, captures and graphs
// (emulated_stream_table.h); this class has the table of functions, faults, pinned memory, copies
// and launches.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <type_traits>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "device/cuda/cuda_api.h"
#include "tests/emulator/call_table.h"
#include "tests/emulator/emulated_devices.h"
#include "tests/emulator/emulated_memory.h"
#include "tests/emulator/emulated_stream_table.h"

namespace cadre::emulated {

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
  void set_memory(size_t bytes) { devices_.set_memory(bytes); }
  void set_devices(int devices) { devices_.set_count(devices); }
  // Processors of each device, initially 2. Kernels choose their launch shapes accordingly.
  void set_processors(int processors) { devices_.set_processors(processors); }

  // --- faults -----------------------------------------------------------------------------------
  // The next call of `function` (a member of CudaApi) after `after` others fails. Fatal errors
  // (illegal address, lost device) are sticky; those of a launch, copy or memset are reported by
  // later calls, as on a device.
  void FailNext(absl::string_view function, cudaError_t error, int64_t after = 0) {
    calls_.FailNext(function, error, after);
  }
  // The device fails now, not in a call.
  void Break(cudaError_t error, int device = 0) { devices_.Break(error, device); }

  // --- observations ----------------------------------------------------------------------------
  // Calls of a function of CudaApi since the start or ResetCalls. In addition, "hidden_wait" counts
  // implicit synchronisations of the host (free, free_host, copies to unpinned memory).
  int64_t calls(absl::string_view function) const { return calls_.calls(function); }
  void ResetCalls() { calls_.Reset(); }
  LiveObjects live() const;
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
  // See Devices::Chosen.
  static std::map<uint64_t, int> ChosenDevices() { return Devices::Chosen(); }
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
  // Counts the call and checks for errors of the machine and injected ones; then calls the method
  // of this class or of a part of the machine, and stores the call's error as the last one of the
  // thread.
  template <typename Part, typename... Parameters, typename... Arguments>
  cudaError_t Call(const char* function, cudaError_t (Part::*method)(Parameters...),
                   Arguments&... arguments) {
    using Method = decltype(method);
    constexpr bool kWorks = std::is_invocable_v<Method, Part*, LaterError, Arguments&...>;
    constexpr bool kDestroys = std::is_invocable_v<Method, Part*, EntryError, Arguments&...>;
    Part& part = PartOf<Part>();
    LaterError later = {cudaSuccess};
    cudaError_t error = Enter(function, kWorks ? &later : nullptr);
    if constexpr (kDestroys) {
      const cudaError_t own = (part.*method)(EntryError{error}, arguments...);
      if (error == cudaSuccess) error = own;
    } else if (error == cudaSuccess) {
      if constexpr (kWorks) {
        error = (part.*method)(later, arguments...);
      } else {
        error = (part.*method)(arguments...);
      }
    }
    if (error != cudaSuccess) devices_.thread_state().last_error = error;
    return error;
  }
  cudaError_t Malloc(void** memory, size_t bytes);
  cudaError_t Free(EntryError error, void* memory);
  cudaError_t HostAlloc(void** memory, size_t bytes, unsigned flags);
  cudaError_t FreeHost(EntryError error, void* memory);
  cudaError_t CopyAsync(LaterError later, void* to, const void* from, size_t bytes,
                        cudaMemcpyKind kind, cudaStream_t stream);
  cudaError_t SetAsync(LaterError later, void* memory, int value, size_t bytes,
                       cudaStream_t stream);
  // Kernels are functions of the host, which are always loaded.
  cudaError_t LoadKernels() { return cudaSuccess; }
  cudaError_t Launch(LaterError later, const void* kernel, dim3 grid, dim3 block, void** arguments,
                     cudaStream_t stream, const std::function<void()>& on_host);
  cudaError_t LastError();

 private:
  template <typename Part>
  Part& PartOf() {
    if constexpr (std::is_same_v<Part, Devices>) {
      return devices_;
    } else if constexpr (std::is_same_v<Part, StreamTable>) {
      return streams_;
    } else {
      return *this;
    }
  }
  // Counts the call. Returns its error, or success. A fatal error that is injected into a call with
  // `later` is stored there instead.
  cudaError_t Enter(const char* function, LaterError* later);
  void CountHiddenWait() { calls_.Enter("hidden_wait"); }
  cudaError_t CheckCopy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                        const StreamState& stream);
  cudaError_t CheckLaunch(const void* kernel, dim3 grid, dim3 block, const StreamState& stream,
                          const std::function<void()>& on_host);

  // The slot of this machine's functions in the table of machines.
  const int slot_;
  Devices devices_;
  StreamTable streams_;
  PinnedMemory pinned_;
  CallLog<cudaError_t> calls_;
  mutable absl::Mutex mutex_;
  LaunchedShape last_launch_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::emulated

namespace cadre {

using emulated::EmulatedCuda;

}  // namespace cadre
