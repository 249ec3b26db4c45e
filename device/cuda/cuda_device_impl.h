// The implementation of CudaDevice. Private to its files: cuda_device.cc (construction, errors,
// streams, waiting), cuda_device_memory.cc (memory, copies) and cuda_device_graph.cc.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "device/cuda/caching_allocator.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/graph_capture.h"
#include "device/cuda/staging_ring.h"

namespace cadre {

inline constexpr std::array<Stream, kDeviceStreams> kAllStreams = {
    Stream::kCompute, Stream::kMoves, Stream::kCommunication, Stream::kCopies};

// Properties of one device.
struct CudaCard {
  std::string name;
  int processors = 0;
  int capability = 0;
  int64_t memory = 0;
  int64_t free = 0;
};

class CudaDeviceImpl final : public CudaDevice {
 public:
  CudaDeviceImpl(const CudaApi& api, const CudaDeviceOptions& options, CudaCard card,
                 const CachingAllocator::Limits& limits)
      : api_(api),
        options_(options),
        card_(std::move(card)),
        ring_(RingBytes(options), kStagingSlots),
        memory_(Upstream(), limits) {}

  // Creates streams, events and staging memory. Called once.
  absl::Status Open();
  ~CudaDeviceImpl() override;

  std::string name() const override { return absl::StrCat("cuda:", card_.name); }
  absl::Status status() const override {
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  void Fail(absl::Status error) override;
  bool lost() const override;

  void* Allocate(size_t bytes, absl::string_view purpose) override;
  void Free(void* memory) override;
  void* AllocateHost(size_t bytes) override;
  void FreeHost(void* memory) override;
  int64_t bytes_in_use() const override { return memory_.in_use(); }
  int64_t peak_bytes() const override { return memory_.peak(); }
  int64_t memory_limit() const override { return memory_.limit(); }
  std::vector<MemoryUse> memory_uses() const override { return memory_.uses(); }

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
  int64_t host_syncs_for(HostSync why) const override {
    return host_syncs_[static_cast<size_t>(why)];
  }

  void CopyIn(const void* host, void* device, size_t bytes) override;
  void CopyToDeviceAsync(const void* host, void* device, size_t bytes) override;
  absl::Status CopyOut(const void* device, void* host, size_t bytes) override;
  void CopyToHostAsync(const void* device, void* host, size_t bytes) override;
  void Copy(const void* from, void* to, size_t bytes) override;
  void Zero(void* memory, size_t bytes) override;

  bool can_capture() const override { return true; }
  absl::StatusOr<std::unique_ptr<DeviceGraph>> CaptureGraph(
      const std::function<absl::Status()>& work) override;
  void LaunchGraph(DeviceGraph& graph) override;

  const CudaApi& api() const override { return api_; }
  cudaStream_t stream() const override { return stream(current_); }
  cudaStream_t stream(Stream stream) const override;
  int ordinal() const override { return options_.ordinal; }
  int processors() const override { return card_.processors; }
  int capability() const override { return card_.capability; }
  bool Check(cudaError_t error, const char* what) override;
  bool failed() const override { return failed_.load(std::memory_order_acquire); }
  bool capturing() const override { return log_ != nullptr; }
  void set_allocation_label(absl::string_view who) override {
    allocation_label_ = std::string(who);
  }

 private:
  static constexpr int kStagingSlots = 64;

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
  absl::Status BlockHost(cudaEvent_t event, HostSync why);
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
  // Pending work did not end in time, so nothing waits for it any more.
  bool wedged_ = false;

  std::atomic<bool> failed_ = false;
  std::atomic<bool> lost_ = false;
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
