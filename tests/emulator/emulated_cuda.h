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
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "device/cuda/cuda_api.h"

namespace cadre {

namespace emulated {
class Machine;
}  // namespace emulated

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
  Mode mode() const;

  // --- properties of the machine; set before its first use --------------------------------------
  // Memory of each device, initially 2 GiB; only pages that are accessed occupy memory of the host.
  void set_memory(size_t bytes);
  // In CUDA's format: 13000 is 13.0. Driver 0 means that no driver is installed.
  void set_versions(int driver, int runtime);
  void set_devices(int devices);

  // --- faults -----------------------------------------------------------------------------------
  // The next call of `function` (a member of CudaApi) after `after` others fails. Fatal errors
  // (illegal address, lost device) are sticky; those of a launch, copy or memset are reported by
  // later calls, as on a device.
  void FailNext(absl::string_view function, cudaError_t error, int64_t after = 0);
  // The device fails now, not in a call.
  void Break(cudaError_t error, int device = 0);

  // --- observations ----------------------------------------------------------------------------
  // Calls of a function of CudaApi since the start or ResetCalls. In addition, "hidden_wait" counts
  // implicit synchronisations of the host (free, free_host, copies to unpinned memory).
  int64_t calls(absl::string_view function) const;
  void ResetCalls();
  // Objects that were created and not yet destroyed.
  struct Live {
    int64_t allocations = 0, pinned = 0, streams = 0, events = 0, graphs = 0, graph_execs = 0;
    int64_t bytes = 0;
    int64_t objects() const {
      return allocations + pinned + streams + events + graphs + graph_execs;
    }
  };
  Live live() const;

  // --- for other parts of the emulator --------------------------------------------------
  // Enqueues work on a stream of any machine, like a kernel: it may access device memory, is
  // captured if the stream is, and its result becomes the device's error. It may wait for other
  // streams' work.
  static cudaError_t Enqueue(cudaStream_t stream, std::function<cudaError_t()> work);
  // The current device of the calling thread on each machine, by the machine's number. Machines on
  // which the thread has set no device are omitted; their first device is current.
  static std::map<uint64_t, int> ChosenDevices();
  // Whether the stream belongs to one of `devices`.
  static bool IsOf(cudaStream_t stream, const std::map<uint64_t, int>& devices);
  // Whether [memory, memory + bytes) lies within one allocation of the stream's device.
  static bool OnDevice(cudaStream_t stream, const void* memory, size_t bytes);

 private:
  const std::unique_ptr<emulated::Machine> machine_;
};

}  // namespace cadre
