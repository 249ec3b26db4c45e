// The streams of a CUDA device, and the errors of all calls to it: what a Device (device.h) does
// without its memory, copies and graphs, which CudaDevice adds; and the interface with which
// kernels, libraries and NCCL enqueue work. See device.h for threads and errors.
//
// Blocking. The host polls, first without a pause, then in intervals of up to 50 microseconds, so
// that Fail, called by another thread (a transport whose peer died), can end the wait; a blocking
// call of the driver could not be interrupted. Work that has not ended after `patience` is an
// error.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/graph_capture.h"
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

// The position of a stream in arrays that have an element per stream.
inline size_t Index(Stream stream) { return static_cast<size_t>(stream); }

// Properties of one device.
struct CudaCard {
  std::string name;
  int processors = 0;
  int capability = 0;
  int64_t memory = 0;
  int64_t free = 0;
};

class CudaStreams : public Device {
 public:
  ~CudaStreams() override;

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

 protected:
  CudaStreams(const CudaApi& api, const CudaDeviceOptions& options, CudaCard card)
      : api_(api), options_(options), card_(std::move(card)) {}
  // Creates streams and events. Called once.
  absl::Status OpenStreams();

  // Makes the device current in the calling thread.
  void Bind() const { api_.set_device(options_.ordinal); }
  // During a capture, makes the capture fail because of `what` and returns true.
  bool RefusedWhileCapturing(absl::string_view what);

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
  // Waits for all work, even after an error, and returns true if none is pending.
  bool Settle();

  const CudaApi api_;
  const CudaDeviceOptions options_;
  const CudaCard card_;
  std::array<cudaStream_t, kDeviceStreams> streams_ = {};
  Stream current_ = Stream::kCompute;
  // Marks: one event per stream for ordering and waiting, and one per stream for use in captures.
  std::array<cudaEvent_t, kDeviceStreams> marks_ = {};
  std::array<cudaEvent_t, kDeviceStreams> captured_marks_ = {};

  std::array<int64_t, kHostSyncs> host_syncs_ = {};
  // Mutable: stream() adds the stream to the capture.
  mutable std::unique_ptr<CaptureLog> log_;

  std::atomic<bool> lost_ = false;

 private:
  // As Settle, but does not count as a host sync.
  bool Quiet();

  // Pending work did not end in time, so nothing waits for it any more.
  bool wedged_ = false;

  std::atomic<bool> failed_ = false;
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
