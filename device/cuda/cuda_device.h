// A CUDA device: one CUDA stream per Stream, a caching allocator with a limit, pinned staging
// memory, and graphs. Also the interface that kernels and NCCL use. See device.h for threads and
// errors.
//
// Streams and memory. Allocate is a fence: work that was enqueued before it on any stream runs
// before the zeros are written, and later work runs after. So memory may be freed once no further
// work on it will be enqueued, and may be used on any stream once it is allocated. The host does
// not block for that; it blocks only in FreeHost, and when cached memory is returned to the driver.
//
// Graphs. LaunchGraph has the same effect as enqueuing the captured work: it is ordered after
// earlier and before later work on every stream that the work uses, it waits for the events that
// the work waits for unless the work itself records them, and it records the events that the work
// records. Streams that the work uses are forked from and joined to the current one automatically.
// Allocate, Free, CopyIn, Await, Synchronize, CopyOut and LaunchGraph cannot be captured; each
// makes the capture fail, and the log names it. The first launch of a kernel may load the kernel,
// which cannot be captured either, so work should run once before it is captured. Graphs keep
// addresses: the memory that they use must outlive them.
//
// Blocking. The host polls, first without a pause, then in intervals of up to 50 microseconds, so
// that Fail, called by another thread (a transport whose peer died), can end the wait; a blocking
// call of the driver could not be interrupted. Work that has not ended after `patience` is an
// error.
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
  // Index of the device on this host.
  int ordinal = 0;
  // Maximum memory taken from the device. 0: all memory that is free at the start except
  // `reserve_bytes` (at most a fifth of it). That reserve is for libraries: the modules and
  // workspaces of cuBLAS and cuDNN, kernels that cuDNN compiles, and NCCL's buffers for every
  // communicator, peer and channel.
  int64_t memory_limit = 0;
  int64_t reserve_bytes = int64_t{3} << 30;
  // Maximum pinned memory of AllocateHost; 0: half of the memory that this process may use.
  int64_t host_memory_limit = 0;
  // Size of CopyIn's pinned staging ring. CopyIn blocks when that many bytes are in flight. CopyOut
  // uses half as much in addition.
  int64_t staging_bytes = int64_t{32} << 20;
  // Maximum time to wait for enqueued work; longer than a slow peer may take.
  absl::Duration patience = absl::Minutes(20);
};

// The reason for which the host blocked.
enum class HostSync : uint8_t {
  kEvent,    // Await
  kDevice,   // Synchronize
  kCopyOut,  // CopyOut
  kStaging,  // CopyIn found all staging memory in flight
  kMemory,   // memory was returned to the driver, or a graph was destroyed
};
inline constexpr int kHostSyncs = 5;

class CudaDevice : public Device {
 public:
  // Errors: FailedPrecondition, with what to install or update; NotFound for an ordinal out of
  // range; Unavailable for a device that does not respond.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Make(const CudaApi& api,
                                                          const CudaDeviceOptions& options);

  DeviceKind kind() const override { return DeviceKind::kCuda; }

  virtual const CudaApi& api() const = 0;
  // The current stream as a CUDA stream. Also makes the device current in the calling thread, so
  // that functions that take the stream can be called.
  virtual cudaStream_t stream() const = 0;
  virtual cudaStream_t stream(Stream stream) const = 0;
  virtual int ordinal() const = 0;
  // The number of streaming multiprocessors; and 10 * major + minor of the compute capability.
  virtual int processors() const = 0;
  virtual int capability() const = 0;

  // Returns true for success; otherwise keeps the error as the device's and returns false. `what`
  // describes the attempt.
  virtual bool Check(cudaError_t error, const char* what) = 0;
  // True after an error: callers then enqueue nothing.
  virtual bool failed() const = 0;
  // True while CaptureGraph captures.
  virtual bool capturing() const = 0;
  // The part of host_syncs() with this reason.
  virtual int64_t host_syncs_for(HostSync why) const = 0;
  // Maximum bytes that Allocate takes from the device.
  virtual int64_t memory_limit() const = 0;
  // Bytes by purpose, largest first; their sum is bytes_in_use().
  virtual std::vector<MemoryUse> memory_uses() const = 0;
};

// The status of an error, with the codes of device.h.
absl::Status CudaStatus(const CudaApi& api, cudaError_t error, absl::string_view what);

// True for errors after which this process cannot use the device any more.
bool LosesDevice(cudaError_t error);

// "NVIDIA H200, driver 13.0, runtime 13.0" ("2 x NVIDIA H200, ..."), or the error if there is none.
absl::StatusOr<std::string> DescribeCuda(const CudaApi& api);

}  // namespace cadre
