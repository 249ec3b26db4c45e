// A CUDA device: streams for lanes, a caching allocator with a bound, pinned staging, graphs for
// recordings.
//
// See device.h for threads and errors. Everything here is also what kernels and NCCL need of it.
//
// Lanes and memory. Allocate is a fence: what any lane is given before it happens before the zeros
// are written, and what any lane is given after it happens after. So memory may be freed as soon as
// nothing more that uses it will be enqueued, whatever is still under way, and may be used on every
// lane as soon as it is had. The host does not wait for that; it does where cached memory goes back
// to the driver to make room, and in FreeHost.
//
// Recordings. Playing one means what enqueueing its work now would mean: it comes after what its
// lanes were given before, and what they are given next comes after it; events that the work
// records have then been recorded, and events that it waits for and does not record are waited for
// before all of it. Lanes that the work uses are led there and back without being asked. What it
// cannot keep: Allocate, Free, CopyIn, Await, Synchronize, CopyOut and Play; each spoils the
// recording and is named in the log. Kernels that were never launched may have to be loaded first,
// which it cannot keep either: what is recorded is best done once before. Recordings keep
// addresses: memory that they use outlives them.
//
// Waiting. The host asks the device again and again, at first without a pause, then in steps of up
// to 50 microseconds, because whoever else sees that the work cannot end (a transport whose peer
// died) ends the wait by Fail, which a blocking call of the driver would not hear. What has not
// ended after `patience` is an error.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "device/cuda/caching_allocator.h"
#include "device/cuda/cuda_api.h"
#include "device/device.h"

namespace cadre {

struct CudaDeviceOptions {
  // Which of the machine's devices.
  int ordinal = 0;
  // Most memory that is taken from the device; 0: all that is free at the start but a reserve of
  // `reserve_bytes`, a fifth at most, which is for what libraries take beside us: the modules and
  // workspaces of cuBLAS and cuDNN, kernels that cuDNN compiles, and the buffers of several
  // communicators of NCCL, for every peer and channel.
  int64_t memory_limit = 0;
  int64_t reserve_bytes = int64_t{3} << 30;
  // Most pinned memory that AllocateHost gives; 0: half of what this machine lets a process have.
  int64_t host_memory_limit = 0;
  // Of the pinned memory through which CopyIn goes: as much may be under way without a wait.
  // CopyOut has half as much besides.
  int64_t staging_bytes = int64_t{32} << 20;
  // Longest that the host stands still for what was enqueued: longer than a slow peer may take.
  absl::Duration patience = absl::Minutes(20);
};

// Why the host stood still.
enum class HostWait : uint8_t {
  kEvent,    // Await
  kDevice,   // Synchronize
  kCopyOut,  // CopyOut
  kStaging,  // CopyIn found all staging memory under way
  kMemory,   // memory went back to the driver, or a recording was destroyed
};
inline constexpr int kHostWaits = 5;

class CudaDevice : public Device {
 public:
  // Errors: FailedPrecondition, saying what to install or to update; NotFound for an ordinal that
  // is not there; Unavailable for a device that does not answer.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Make(const CudaApi& api,
                                                          const CudaDeviceOptions& options);

  DeviceKind kind() const override { return DeviceKind::kCuda; }

  virtual const CudaApi& api() const = 0;
  // Of the current lane. Also makes the device the calling thread's, so that what takes the stream
  // can be called at once.
  virtual cudaStream_t stream() const = 0;
  virtual cudaStream_t stream(Lane lane) const = 0;
  virtual int ordinal() const = 0;
  // Streaming multiprocessors; 10 * major + minor of the compute capability.
  virtual int processors() const = 0;
  virtual int capability() const = 0;

  // False, after keeping the error, for one that is not success. `what`, for people, was tried.
  virtual bool Check(cudaError_t error, const char* what) = 0;
  // True once there is an error: whoever would enqueue does nothing.
  virtual bool failed() const = 0;
  // Between RecordWork's begin and end.
  virtual bool recording() const = 0;
  // The times of waits() that were for `why`.
  virtual int64_t waits_for(HostWait why) const = 0;
  // Most bytes that Allocate takes from the device.
  virtual int64_t memory_limit() const = 0;
  // What holds how much, largest first; together bytes_in_use().
  virtual std::vector<MemoryUse> memory_uses() const = 0;
};

// The status that an error means: see the codes of device.h.
absl::Status CudaStatus(const CudaApi& api, cudaError_t error, absl::string_view what);

// True for errors after which this process cannot use the device any more.
bool LosesDevice(cudaError_t error);

// What is here: "NVIDIA H200, driver 13.0, runtime 13.0" ("2 x NVIDIA H200, ..."); the error where
// there is none.
absl::StatusOr<std::string> DescribeCuda(const CudaApi& api);

}  // namespace cadre
