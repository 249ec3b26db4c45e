// A CUDA device: its streams (cuda_streams.h), a caching allocator with a limit, pinned staging
// memory, and graphs. See device.h for threads and errors.
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
// The implementation is in cuda_device.cc (construction), cuda_device_memory.cc (memory, copies)
// and cuda_device_graph.cc.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "device/cuda/caching_allocator.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/cuda_streams.h"
#include "device/cuda/graph_capture.h"
#include "device/cuda/staging_ring.h"
#include "device/device.h"

namespace cadre {

class CudaDevice final : public CudaStreams {
 public:
  // Errors: FailedPrecondition, with what to install or update; NotFound for an ordinal out of
  // range; Unavailable for a device that does not respond.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Make(const CudaApi& api,
                                                          const CudaDeviceOptions& options);
  ~CudaDevice() override;

  DeviceKind kind() const override { return DeviceKind::kCuda; }
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

  void set_allocation_label(absl::string_view label) override {
    allocation_label_ = std::string(label);
  }

 private:
  static constexpr int kStagingSlots = 64;

  CudaDevice(const CudaApi& api, const CudaDeviceOptions& options, CudaCard card,
             const CachingAllocator::Limits& limits)
      : CudaStreams(api, options, std::move(card)),
        ring_(RingBytes(options), kStagingSlots),
        memory_(Upstream(), limits) {}
  // Creates streams, events and staging memory. Called once.
  absl::Status Open();

  static size_t RingBytes(const CudaDeviceOptions& options);
  // Maximum bytes of one staged copy, and of each half of CopyOut.
  size_t chunk_bytes() const;
  MemoryUpstream Upstream();

  bool IsPinned(const void* host, size_t bytes) const;

  std::optional<StagingRing::Place> StagingPlace(size_t bytes);
  void StartCopyOut(const void* device, size_t bytes, int side);

  cudaGraph_t EndCapture();
  absl::StatusOr<std::unique_ptr<DeviceGraph>> MakeGraph(const absl::Status& worked,
                                                         cudaGraph_t graph);

  std::byte* staging_ = nullptr;
  StagingRing ring_;
  std::array<cudaEvent_t, kStagingSlots> staging_read_ = {};
  std::array<std::byte*, 2> copied_out_ = {};
  std::array<cudaEvent_t, 2> copied_out_marks_ = {};

  CachingAllocator memory_;
  std::string allocation_label_;
  std::map<const std::byte*, size_t> pinned_;
  int64_t pinned_bytes_ = 0;

  std::string capture_refusal_;
};

// Maximum pinned memory in bytes: half of `usable`, the memory of the host or the limit of the
// control group (cgroup), whichever is lower. If `limit`, that of the control group, does not apply
// (0: there is none), at least 8 GiB, because virtual machines may start with little memory and
// receive more. 0: no maximum, because the memory is unknown.
int64_t DefaultPinnedLimit(uint64_t usable, uint64_t limit);

}  // namespace cadre
