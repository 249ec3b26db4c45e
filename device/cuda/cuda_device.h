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
// makes the capture fail, as does an error of a library (FailOperation), and capture_refusal() and
// the log name it. The first launch of a kernel may load the kernel,
// which cannot be captured either, so work should run once before it is captured. Graphs keep
// addresses: the memory that they use must outlive them.
//
// Blocking. The host polls, first without a pause, then in intervals of up to 50 microseconds, so
// that Fail, called by another thread (a transport whose peer died), can end the wait; a blocking
// call of the driver could not be interrupted. Work that has not ended after `patience` is an
// error.
//
// The implementation is in cuda_device.cc (construction, errors, streams, waiting),
// cuda_device_memory.cc (memory, copies) and cuda_device_graph.cc.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "device/cuda/caching_allocator.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/graph_capture.h"
#include "device/cuda/staging_ring.h"
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
  // Maximum pinned memory of AllocateHost; 0: DefaultPinnedLimit.
  int64_t host_memory_limit = 0;
  // Size of CopyIn's pinned staging ring. CopyIn blocks when that many bytes are in flight. CopyOut
  // uses half as much in addition.
  int64_t staging_bytes = int64_t{32} << 20;
  // Maximum time to wait for enqueued work; longer than a slow peer may take.
  absl::Duration patience = absl::Minutes(20);
  // The host waits for every operation, so that an error names the operation that failed and not a
  // later one. Nothing is captured then. NCCL's operations are waited for with the next operation
  // of their stream.
  bool synchronous = false;
};

// The reason for which the host blocked.
enum class HostSync : uint8_t {
  kEvent,      // Await
  kDevice,     // Synchronize
  kCopyOut,    // CopyOut
  kStaging,    // CopyIn found all staging memory in flight
  kMemory,     // memory was returned to the driver, or a graph was destroyed
  kOperation,  // CudaDeviceOptions::synchronous
};
inline constexpr int kHostSyncs = 6;

inline constexpr std::array<Stream, kDeviceStreams> kAllStreams = {
    Stream::kCompute, Stream::kMoves, Stream::kMessages, Stream::kCommunication, Stream::kCopies};

// Properties of one device.
struct CudaCard {
  std::string name;
  int processors = 0;
  int capability = 0;
  int64_t memory = 0;
  int64_t free = 0;
};

class CudaDevice final : public Device {
 public:
  // Errors: FailedPrecondition, with what to install or update; NotFound for an ordinal out of
  // range; Unavailable for a device that does not respond.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Make(const CudaApi& api,
                                                          const CudaDeviceOptions& options);
  ~CudaDevice() override;

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override { return absl::StrCat("cuda:", card_.name); }
  absl::Status status() const override {
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  void Fail(absl::Status error) override;
  bool lost() const override;
  // Fail for an error of an operation that the calling thread enqueues, such as a library's call.
  // During a capture it makes the capture fail instead, because the caller then enqueues the work,
  // and an error that remains is returned again.
  void FailOperation(const absl::Status& error);

  void* Allocate(size_t bytes, absl::string_view purpose) override;
  void Free(void* memory) override;
  void* AllocateHost(size_t bytes) override;
  void FreeHost(void* memory) override;
  int64_t bytes_in_use() const override { return memory_.in_use(); }
  int64_t peak_bytes() const override { return memory_.peak(); }
  // Maximum bytes that Allocate takes from the device.
  int64_t memory_limit() const { return memory_.limit(); }
  // Bytes by purpose, largest first; their sum is bytes_in_use().
  std::vector<MemoryUse> memory_uses() const { return memory_.uses(); }

  void Use(Stream stream) override { current_ = stream; }
  Stream current_stream() const override { return current_; }
  std::unique_ptr<DeviceEvent> MakeEvent() override;
  void Record(DeviceEvent& event) override;
  void WaitFor(const DeviceEvent& event) override;
  absl::Status Await(const DeviceEvent& event) override;
  absl::Status Synchronize() override;
  int64_t host_syncs() const override {
    return std::accumulate(host_syncs_.begin(), host_syncs_.end(), 0L);
  }
  // The part of host_syncs() with this reason.
  int64_t host_syncs_for(HostSync why) const { return host_syncs_[static_cast<size_t>(why)]; }

  void CopyIn(const void* host, void* device, size_t bytes) override;
  void CopyToDeviceAsync(const void* host, void* device, size_t bytes) override;
  absl::Status CopyOut(const void* device, void* host, size_t bytes) override;
  void CopyToHostAsync(const void* device, void* host, size_t bytes) override;
  void Copy(const void* from, void* to, size_t bytes) override;
  void Zero(void* memory, size_t bytes) override;

  bool can_capture() const override { return true; }
  absl::StatusOr<std::unique_ptr<DeviceGraph>> CaptureGraph(
      const std::function<absl::Status()>& work) override;
  std::string capture_refusal() const override { return capture_refusal_; }
  void LaunchGraph(DeviceGraph& graph) override;

  const CudaApi& api() const { return api_; }
  // The current stream as a CUDA stream. Also makes the device current in the calling thread, so
  // that functions that take the stream can be called.
  cudaStream_t stream() const { return stream(current_); }
  cudaStream_t stream(Stream stream) const;
  int ordinal() const { return options_.ordinal; }
  bool synchronous() const { return options_.synchronous; }
  // The number of streaming multiprocessors; and 10 * major + minor of the compute capability.
  int processors() const { return card_.processors; }
  int capability() const { return card_.capability; }

  // Loads all kernels of this program. The driver otherwise loads a kernel at its first launch, for
  // which it may wait for the work that is running; a collective that waits for a peer never ends
  // then, if the peer waits for this rank.
  absl::Status LoadKernels();

  // Returns true for success; otherwise keeps the error as the device's and returns false. `what`
  // describes the attempt.
  bool Check(cudaError_t error, const char* what);
  // Check for a call that has enqueued an operation on the current stream, `what`. In synchronous
  // mode it also waits for the operation.
  bool Enqueued(cudaError_t error, const char* what);
  // The error of the device that is the cause of an error of a library, or success. Libraries have
  // a runtime of their own, whose last error is not that of this program's; but an error that
  // affects the device is returned by every runtime. Clears the last error.
  cudaError_t CauseOfLibraryError();
  // True after an error: callers then enqueue nothing.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // True while CaptureGraph captures.
  bool capturing() const { return log_ != nullptr; }
  void set_allocation_label(absl::string_view label) override {
    allocation_label_ = std::string(label);
  }

 private:
  static constexpr int kStagingSlots = 64;

  CudaDevice(const CudaApi& api, const CudaDeviceOptions& options, CudaCard card,
             const CachingAllocator::Limits& limits)
      : api_(api),
        options_(options),
        card_(std::move(card)),
        ring_(RingBytes(options), kStagingSlots),
        memory_(Upstream(), limits) {}
  // Creates streams, events and staging memory. Called once.
  absl::Status Open();

  static size_t RingBytes(const CudaDeviceOptions& options);
  // Maximum bytes of one staged copy, and of each half of CopyOut.
  size_t chunk_bytes() const;
  static size_t Index(Stream stream) { return static_cast<size_t>(stream); }
  MemoryUpstream Upstream();

  // Makes the device current in the calling thread.
  void Bind() const { api_.set_device(options_.ordinal); }
  // During a capture, makes the capture fail because of `what` and returns true.
  bool RefusedWhileCapturing(absl::string_view what);
  bool IsPinned(const void* host, size_t bytes) const;

  cudaEvent_t MakeMark();
  // JoinStream orders the current stream after `stream`; JoinAll orders it after every stream for
  // which `chosen` is true.
  void JoinStream(Stream stream, const std::array<cudaEvent_t, kDeviceStreams>& marks);
  void JoinAll(const std::function<bool(Stream)>& chosen);
  // Orders every stream for which `chosen` is true after the current stream.
  void ForkAll(const std::function<bool(Stream)>& chosen);

  // Polls until the event has completed, the device has failed or patience is exceeded.
  absl::Status BlockHost(cudaEvent_t event, HostSync why,
                         absl::string_view what = "what was enqueued on the device");
  absl::Status WaitForAll(HostSync why);
  // Both wait for all work, even after an error, and return true if none is pending. Quiet does not
  // count as a host sync.
  bool Settle();
  bool Quiet();

  std::optional<StagingRing::Place> StagingPlace(size_t bytes);
  void StartCopyOut(const void* device, size_t bytes, int side);

  cudaGraph_t EndCapture();
  absl::StatusOr<std::unique_ptr<DeviceGraph>> MakeGraph(const absl::Status& worked,
                                                         cudaGraph_t graph);

  const CudaApi api_;
  const CudaDeviceOptions options_;
  const CudaCard card_;
  std::array<cudaStream_t, kDeviceStreams> streams_ = {};
  Stream current_ = Stream::kCompute;
  // Marks: one event per stream for ordering and waiting, and one per stream for use in captures.
  std::array<cudaEvent_t, kDeviceStreams> marks_ = {};
  std::array<cudaEvent_t, kDeviceStreams> captured_marks_ = {};

  std::byte* staging_ = nullptr;
  StagingRing ring_;
  std::array<cudaEvent_t, kStagingSlots> staging_read_ = {};
  std::array<std::byte*, 2> copied_out_ = {};
  std::array<cudaEvent_t, 2> copied_out_marks_ = {};

  CachingAllocator memory_;
  std::string allocation_label_;
  std::map<const std::byte*, size_t> pinned_;
  int64_t pinned_bytes_ = 0;

  std::array<int64_t, kHostSyncs> host_syncs_ = {};
  // Mutable: stream() adds the stream to the capture.
  mutable std::unique_ptr<CaptureLog> log_;
  std::string capture_refusal_;
  // Pending work did not end in time, so nothing waits for it any more.
  bool wedged_ = false;

  std::atomic<bool> failed_ = false;
  std::atomic<bool> lost_ = false;
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Maximum pinned memory in bytes: half of `usable`, the memory of the host or the limit of the
// control group (cgroup), whichever is lower. If `limit`, that of the control group, does not apply
// (0: there is none), at least 8 GiB, because virtual machines may start with little memory and
// receive more. 0: no maximum, because the memory is unknown.
int64_t DefaultPinnedLimit(uint64_t usable, uint64_t limit);

}  // namespace cadre
