// A machine with CUDA devices, played on the host: what device/cuda/cuda_api.h asks of the CUDA
// runtime, as strict as CUDA is and deterministic where CUDA is not.
//
// Like CUDA: streams and events, copies that read unpinned memory at once and pinned memory later,
// captures and their rules, sticky errors, implicit synchronisation of free. Stricter: device
// memory is full of not-a-numbers when it is given out; copies are checked against what was
// allocated; there is no default stream; a capture may not copy from or to unpinned memory. Modes:
//   kInline   work is done in the call that enqueues it. Device memory cannot be touched but while
//             work runs: host code that looks inside dies at once.
//   kThreads  a thread per stream, and per branch of a graph: as asynchronous as a device is. What
//             orders streams for a sanitizer is only what orders them on a device.
//
// One object is one machine; several in one process are independent. Owns all that its functions
// make; must outlive who uses them. Threads: as CUDA's functions, and those of this class are
// thread-safe.
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

  // Its functions are of this machine alone. Valid as long as this is.
  const CudaApi& api() const;
  Mode mode() const;

  // --- what kind of machine it is; before anything is made --------------------------------------
  // Of each device. 2 GiB at first; only what is touched is taken from the host.
  void set_memory(size_t bytes);
  // As CUDA counts: 13000 is 13.0. A driver of 0: none is there.
  void set_versions(int driver, int runtime);
  void set_devices(int devices);

  // --- faults -----------------------------------------------------------------------------------
  // The call of `function` (a name of CudaApi) that comes after `after` others fails. Errors after
  // which nothing works (illegal address, lost device) stay; what a launch, copy or memset does
  // wrong shows in calls after it, as on a device.
  void FailNext(absl::string_view function, cudaError_t error, int64_t after = 0);
  // A device dies by itself.
  void Break(cudaError_t error, int device = 0);

  // --- what happened ----------------------------------------------------------------------------
  // Calls of a function of CudaApi since the beginning or ResetCalls. Besides: "hidden_wait", each
  // time that the host waited though the call's name does not say so (free, free_host, copies to
  // unpinned memory).
  int64_t calls(absl::string_view function) const;
  void ResetCalls();
  // What was made and not yet given back.
  struct Live {
    int64_t allocations = 0, pinned = 0, streams = 0, events = 0, graphs = 0, graph_execs = 0;
    int64_t bytes = 0;
    int64_t objects() const {
      return allocations + pinned + streams + events + graphs + graph_execs;
    }
  };
  Live live() const;

  // --- for other parts of the emulated machine --------------------------------------------------
  // Work on a stream of whatever machine made it, as a kernel is: it may touch device memory, is
  // captured where the stream is, and what it returns becomes the device's error. It may wait for
  // other streams' work.
  static cudaError_t Enqueue(cudaStream_t stream, std::function<cudaError_t()> work);
  // The device that the calling thread has chosen on each machine, by the machine's number; a
  // machine for which it has chosen none is not among them, and its first device is meant.
  static std::map<uint64_t, int> ChosenDevices();
  // Whether the stream is of the device that was chosen in `devices`.
  static bool IsOf(cudaStream_t stream, const std::map<uint64_t, int>& devices);
  // Whether [memory, memory + bytes) lies within one allocation of the stream's device.
  static bool OnDevice(cudaStream_t stream, const void* memory, size_t bytes);

 private:
  const std::unique_ptr<emulated::Machine> machine_;
};

}  // namespace cadre
