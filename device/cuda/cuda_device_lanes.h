// The CUDA device as CudaDevice::Make makes it, for its own files alone: cuda_device.cc (life,
// errors, lanes, waiting), cuda_device_memory.cc (memory, copies) and cuda_device_recording.cc.
//
// See cuda_device.h.
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
#include "device/cuda/graph_recording.h"
#include "device/cuda/staging_ring.h"

namespace cadre {

inline constexpr std::array<Lane, kDeviceLanes> kAllLanes = {Lane::kCompute, Lane::kMoves,
                                                             Lane::kCommunication, Lane::kCopies};

// One of the machine's, as it is found.
struct CudaCard {
  std::string name;
  int processors = 0;
  int capability = 0;
  int64_t memory = 0;
  int64_t free = 0;
};

class CudaDeviceOfLanes final : public CudaDevice {
 public:
  CudaDeviceOfLanes(const CudaApi& api, const CudaDeviceOptions& options, CudaCard card,
                    const CachingAllocator::Limits& limits)
      : api_(api),
        options_(options),
        card_(std::move(card)),
        ring_(RingBytes(options), kStagingSlots),
        memory_(Upstream(), limits) {}

  // Streams, events and staging; once.
  absl::Status Open();
  ~CudaDeviceOfLanes() override;

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

  void Use(Lane lane) override { lane_ = lane; }
  Lane lane() const override { return lane_; }
  std::unique_ptr<DeviceEvent> MakeEvent() override;
  void Record(DeviceEvent& event) override;
  void WaitFor(const DeviceEvent& event) override;
  absl::Status Await(const DeviceEvent& event) override;
  absl::Status Synchronize() override;
  int64_t waits() const override { return std::accumulate(waits_.begin(), waits_.end(), 0L); }
  int64_t waits_for(HostWait why) const override { return waits_[static_cast<size_t>(why)]; }

  void CopyIn(const void* host, void* device, size_t bytes) override;
  void CopyInLater(const void* host, void* device, size_t bytes) override;
  absl::Status CopyOut(const void* device, void* host, size_t bytes) override;
  void CopyOutLater(const void* device, void* host, size_t bytes) override;
  void Copy(const void* from, void* to, size_t bytes) override;
  void Zero(void* memory, size_t bytes) override;

  bool can_record() const override { return true; }
  absl::StatusOr<std::unique_ptr<DeviceRecording>> RecordWork(
      const std::function<absl::Status()>& work) override;
  void Play(DeviceRecording& recording) override;

  const CudaApi& api() const override { return api_; }
  cudaStream_t stream() const override { return stream(lane_); }
  cudaStream_t stream(Lane lane) const override;
  int ordinal() const override { return options_.ordinal; }
  int processors() const override { return card_.processors; }
  int capability() const override { return card_.capability; }
  bool Check(cudaError_t error, const char* what) override;
  bool failed() const override { return failed_.load(std::memory_order_acquire); }
  bool recording() const override { return book_ != nullptr; }
  void set_asking(absl::string_view who) override { asking_ = std::string(who); }

 private:
  static constexpr int kStagingSlots = 64;

  static size_t RingBytes(const CudaDeviceOptions& options);
  // Most bytes of a copy that go through the staging ring, or a half of CopyOut's, at a time.
  size_t piece_bytes() const;
  static size_t Index(Lane lane) { return static_cast<size_t>(lane); }
  MemoryUpstream Upstream();

  // The calling thread's calls are to this device from now on.
  void Bind() const { api_.set_device(options_.ordinal); }
  // While recording, notes that the work did what a recording cannot keep.
  bool RefusedWhileRecording(absl::string_view what);
  bool IsPinned(const void* host, size_t bytes) const;

  cudaEvent_t MakeMark();
  // What the current lane is given next comes after what `lane`, or each of those chosen, was
  // given.
  void LeadHere(Lane lane, const std::array<cudaEvent_t, kDeviceLanes>& marks);
  void LeadFromAll(const std::function<bool(Lane)>& chosen);
  // The reverse.
  void LeadToAll(const std::function<bool(Lane)>& chosen);

  // Asks until the event has happened, the device failed or patience is over.
  absl::Status StandStill(cudaEvent_t event, HostWait why);
  absl::Status WaitForAll(HostWait why);
  // After an error, too: true when nothing is under way any more. The second does not count.
  bool Settle();
  bool Quiet();

  std::optional<StagingRing::Place> StagingPlace(size_t bytes);
  void StartCopyOut(const void* device, size_t bytes, int side);

  cudaGraph_t EndCapture();
  absl::StatusOr<std::unique_ptr<DeviceRecording>> KeepRecording(const absl::Status& worked,
                                                                 cudaGraph_t graph);

  const CudaApi api_;
  const CudaDeviceOptions options_;
  const CudaCard card_;
  std::array<cudaStream_t, kDeviceLanes> streams_ = {};
  Lane lane_ = Lane::kCompute;
  // One per lane for whatever orders lanes or waits for them, and the same for inside of captures.
  std::array<cudaEvent_t, kDeviceLanes> marks_ = {};
  std::array<cudaEvent_t, kDeviceLanes> captured_marks_ = {};

  std::byte* staging_ = nullptr;
  StagingRing ring_;
  std::array<cudaEvent_t, kStagingSlots> staging_read_ = {};
  std::array<std::byte*, 2> copied_out_ = {};
  std::array<cudaEvent_t, 2> copied_out_marks_ = {};

  CachingAllocator memory_;
  std::string asking_;
  std::map<const std::byte*, size_t> pinned_;
  int64_t pinned_bytes_ = 0;

  std::array<int64_t, kHostWaits> waits_ = {};
  // Mutable: whoever asks for a lane's stream leads it into the recording.
  mutable std::unique_ptr<RecordingBook> book_;
  // What was under way did not end: nothing more waits for it.
  bool wedged_ = false;

  std::atomic<bool> failed_ = false;
  std::atomic<bool> lost_ = false;
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
