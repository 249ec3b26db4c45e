// Memory of a CUDA device, pinned memory, and copies.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hardware.h"
#include "base/status.h"
#include "device/cuda/cuda_device_lanes.h"
#include "glog/logging.h"

namespace cadre {
namespace {

constexpr size_t kStagingAlignment = 256;
// A large copy goes in so many pieces of the ring at least, so that the host fills one while others
// are read.
constexpr size_t kLeastStagingPieces = 4;

}  // namespace

size_t CudaDeviceOfLanes::RingBytes(const CudaDeviceOptions& options) {
  const auto least = static_cast<int64_t>(kStagingAlignment * kLeastStagingPieces);
  const int64_t bytes = std::max(options.staging_bytes, least);
  return static_cast<size_t>(bytes) / kStagingAlignment * kStagingAlignment;
}

size_t CudaDeviceOfLanes::piece_bytes() const { return RingBytes(options_) / kLeastStagingPieces; }

// ---- memory

MemoryUpstream CudaDeviceOfLanes::Upstream() {
  return {
      .allocate = [this](size_t bytes) -> absl::StatusOr<void*> {
        void* memory = nullptr;
        const cudaError_t error = api_.malloc(&memory, bytes);
        if (error == cudaSuccess) return memory;
        api_.last_error();
        if (LosesDevice(error)) lost_.store(true, std::memory_order_release);
        return CudaStatus(api_, error, "allocating memory");
      },
      .free = [this](void* memory) { api_.free(memory); },
      .settle = [this]() -> absl::Status {
        if (Settle()) return absl::OkStatus();
        return absl::DeadlineExceededError("work that uses the device's memory does not end");
      },
      .available = [this]() -> int64_t {
        size_t free = 0;
        size_t total = 0;
        if (api_.memory_info(&free, &total) != cudaSuccess) return -1;
        return static_cast<int64_t>(free);
      },
  };
}

void* CudaDeviceOfLanes::Allocate(size_t bytes, absl::string_view purpose) {
  if (bytes == 0 || failed()) return nullptr;
  if (RefusedWhileRecording(absl::StrCat("allocating memory for ", purpose))) return nullptr;
  Bind();
  absl::StatusOr<void*> memory = memory_.Allocate(bytes, purpose, asking_);
  if (!memory.ok()) {
    Fail(memory.status());
    return nullptr;
  }
  const auto all = [](Lane) { return true; };
  LeadFromAll(all);
  if (!failed()) {
    Check(api_.set_async(*memory, 0, bytes, streams_[Index(lane_)]), "zeroing new memory");
  }
  if (!failed()) LeadToAll(all);
  if (!failed()) return *memory;
  memory_.Free(*memory);
  return nullptr;
}

void CudaDeviceOfLanes::Free(void* memory) {
  if (memory == nullptr) return;
  // It may be what the recording uses, and be given to others before it is played.
  RefusedWhileRecording("freeing memory");
  memory_.Free(memory);
}

void* CudaDeviceOfLanes::AllocateHost(size_t bytes) {
  if (bytes == 0 || failed()) return nullptr;
  if (RefusedWhileRecording("allocating pinned memory")) return nullptr;
  Bind();
  const int64_t limit = options_.host_memory_limit > 0
                            ? options_.host_memory_limit
                            : static_cast<int64_t>(UsableMemoryBytes() / 2);
  // A machine that does not say what it has sets no bound here.
  const bool bounded = limit > 0;
  void* memory = nullptr;
  cudaError_t error = cudaErrorMemoryAllocation;
  if (!bounded || (bytes <= static_cast<size_t>(limit) &&
                   pinned_bytes_ + static_cast<int64_t>(bytes) <= limit)) {
    error = api_.host_alloc(&memory, bytes, cudaHostAllocDefault);
  }
  if (error == cudaErrorMemoryAllocation) {
    api_.last_error();
    Fail(absl::ResourceExhaustedError(absl::StrCat(
        "cannot allocate ", bytes, " bytes of pinned host memory",
        asking_.empty() ? "" : absl::StrCat(" (", asking_, ")"), ": in use ",
        MemoryText(pinned_bytes_), bounded ? absl::StrCat(", limit ", MemoryText(limit)) : "")));
    return nullptr;
  }
  if (!Check(error, "allocating pinned host memory")) return nullptr;
  std::memset(memory, 0, bytes);
  pinned_[static_cast<std::byte*>(memory)] = bytes;
  pinned_bytes_ += static_cast<int64_t>(bytes);
  return memory;
}

void CudaDeviceOfLanes::FreeHost(void* memory) {
  if (memory == nullptr) return;
  RefusedWhileRecording("freeing pinned memory");
  const auto found = pinned_.find(static_cast<std::byte*>(memory));
  CHECK(found != pinned_.end()) << "not this device's pinned memory";
  pinned_bytes_ -= static_cast<int64_t>(found->second);
  pinned_.erase(found);
  // A recording that is being made has enqueued nothing, and waiting would spoil it in CUDA's eyes,
  // too; the memory is left to the process.
  if (book_ != nullptr) return;
  Bind();
  // Copies may still be under way, and the driver would wait for all of the device without an end.
  if (Settle()) api_.free_host(memory);
}

// ---- copies

std::optional<StagingRing::Place> CudaDeviceOfLanes::StagingPlace(size_t bytes) {
  while (!failed()) {
    if (const auto place = ring_.Take(bytes)) return *place;
    const cudaEvent_t oldest = staging_read_[static_cast<size_t>(ring_.oldest().slot)];
    const cudaError_t error = api_.event_query(oldest);
    if (error == cudaErrorNotReady) {
      api_.last_error();
      if (!StandStill(oldest, HostWait::kStaging).ok()) break;
    } else if (!Check(error, "copying to the device")) {
      break;
    }
    ring_.Retire();
  }
  return std::nullopt;
}

void CudaDeviceOfLanes::CopyIn(const void* host, void* device, size_t bytes) {
  if (bytes == 0 || failed()) return;
  // It would be played from staging memory that others have long been given.
  if (RefusedWhileRecording("copying from memory that is not pinned")) return;
  const cudaStream_t stream = this->stream();
  const auto* from = static_cast<const std::byte*>(host);
  auto* to = static_cast<std::byte*>(device);
  while (bytes > 0) {
    const size_t piece = std::min(bytes, piece_bytes());
    const auto place = StagingPlace(piece);
    if (!place) return;
    std::byte* const staged = staging_ + place->offset;
    std::memcpy(staged, from, piece);
    const bool begun = Check(api_.copy_async(to, staged, piece, cudaMemcpyHostToDevice, stream),
                             "copying to the device");
    if (!begun || !Check(api_.event_record(staging_read_[static_cast<size_t>(place->slot)], stream),
                         "marking a copy")) {
      return;
    }
    from += piece;
    to += piece;
    bytes -= piece;
  }
}

bool CudaDeviceOfLanes::IsPinned(const void* host, size_t bytes) const {
  const auto* const begin = static_cast<const std::byte*>(host);
  auto found = pinned_.upper_bound(begin);
  if (found == pinned_.begin()) return false;
  --found;
  return begin + bytes <= found->first + found->second;
}

void CudaDeviceOfLanes::CopyInLater(const void* host, void* device, size_t bytes) {
  if (bytes == 0 || failed()) return;
  if (!IsPinned(host, bytes)) {
    Fail(absl::InternalError("CopyInLater from memory that is not pinned"));
    return;
  }
  Check(api_.copy_async(device, host, bytes, cudaMemcpyHostToDevice, stream()),
        "copying to the device");
}

void CudaDeviceOfLanes::StartCopyOut(const void* device, size_t bytes, int side) {
  const auto i = static_cast<size_t>(side);
  const cudaStream_t stream = this->stream();
  if (Check(api_.copy_async(copied_out_[i], device, bytes, cudaMemcpyDeviceToHost, stream),
            "copying from the device")) {
    Check(api_.event_record(copied_out_marks_[i], stream), "marking a copy");
  }
}

absl::Status CudaDeviceOfLanes::CopyOut(const void* device, void* host, size_t bytes) {
  if (RefusedWhileRecording("copying out to the host")) {
    return absl::FailedPreconditionError("a recording cannot wait on the host");
  }
  if (bytes == 0 || failed()) return status();
  const int64_t waits = waits_for(HostWait::kCopyOut);
  const auto* from = static_cast<const std::byte*>(device);
  auto* to = static_cast<std::byte*>(host);
  // One half is emptied while the other is filled.
  StartCopyOut(from, std::min(bytes, piece_bytes()), 0);
  for (int side = 0; bytes > 0 && !failed(); side = 1 - side) {
    const size_t piece = std::min(bytes, piece_bytes());
    const size_t rest = bytes - piece;
    if (rest > 0) StartCopyOut(from + piece, std::min(rest, piece_bytes()), 1 - side);
    const auto i = static_cast<size_t>(side);
    if (failed() || !StandStill(copied_out_marks_[i], HostWait::kCopyOut).ok()) break;
    std::memcpy(to, copied_out_[i], piece);
    from += piece;
    to += piece;
    bytes = rest;
  }
  // However many pieces it took, the caller asked once.
  waits_[static_cast<size_t>(HostWait::kCopyOut)] = waits + 1;
  return status();
}

void CudaDeviceOfLanes::CopyOutLater(const void* device, void* host, size_t bytes) {
  if (bytes == 0 || failed()) return;
  if (!IsPinned(host, bytes)) {
    Fail(absl::InternalError("CopyOutLater to memory that is not pinned"));
    return;
  }
  Check(api_.copy_async(host, device, bytes, cudaMemcpyDeviceToHost, stream()),
        "copying from the device");
}

void CudaDeviceOfLanes::Copy(const void* from, void* to, size_t bytes) {
  if (bytes == 0 || failed()) return;
  Check(api_.copy_async(to, from, bytes, cudaMemcpyDeviceToDevice, stream()),
        "copying within the device");
}

void CudaDeviceOfLanes::Zero(void* memory, size_t bytes) {
  if (bytes == 0 || failed()) return;
  Check(api_.set_async(memory, 0, bytes, stream()), "zeroing memory");
}

}  // namespace cadre
