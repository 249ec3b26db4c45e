// Memory of a CUDA device, pinned memory, and copies.
//
// A copy from pageable memory is synchronous in CUDA, so CopyIn copies through a ring of pinned
// staging memory: the host fills chunks of the ring while the device reads earlier ones, and blocks
// only when the ring is full. CopyOut alternates between two pinned buffers: the host empties one
// while the device fills the other. Callers with pinned memory of their own use the Async forms,
// which stage nothing.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hardware.h"
#include "base/status.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_machine.h"
#include "glog/logging.h"

namespace cadre {
namespace {

constexpr size_t kStagingAlignment = 256;
// Minimum number of chunks of the ring, so that the host fills one while others are read.
constexpr size_t kMinStagingChunks = 4;
constexpr int64_t kMinPinnedLimit = int64_t{8} << 30;

}  // namespace

size_t CudaDevice::RingBytes(const CudaDeviceOptions& options) {
  const int64_t least = kStagingAlignment * kMinStagingChunks;
  const int64_t bytes = std::max(options.staging_bytes, least);
  return static_cast<size_t>(bytes) / kStagingAlignment * kStagingAlignment;
}

size_t CudaDevice::chunk_bytes() const { return RingBytes(options_) / kMinStagingChunks; }

// ---- memory

int64_t DefaultPinnedLimit(uint64_t usable, uint64_t limit) {
  const auto half = static_cast<int64_t>(usable / 2);
  if (half == 0 || (limit > 0 && limit <= usable)) return half;
  return std::max(half, kMinPinnedLimit);
}

MemoryUpstream CudaDevice::Upstream() {
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
        return free;
      },
  };
}

void* CudaDevice::Allocate(size_t bytes, absl::string_view purpose) {
  if (bytes == 0 || failed()) return nullptr;
  if (RefusedWhileCapturing(absl::StrCat("allocating memory for ", purpose))) return nullptr;
  Bind();
  absl::StatusOr<void*> memory = memory_.Allocate(bytes, purpose, allocation_label_);
  if (!memory.ok()) {
    Fail(memory.status());
    return nullptr;
  }
  const auto all = [](Stream) { return true; };
  JoinAll(all);
  if (!failed()) {
    Enqueued(api_.set_async(*memory, 0, bytes, streams_[Index(current_)]), "zeroing new memory");
  }
  if (!failed()) ForkAll(all);
  if (!failed()) return *memory;
  memory_.Free(*memory);
  return nullptr;
}

void CudaDevice::Free(void* memory) {
  if (memory == nullptr) return;
  // The captured work may use this memory, which might be reused before the graph is launched.
  RefusedWhileCapturing("freeing memory");
  memory_.Free(memory);
}

void* CudaDevice::AllocateHost(size_t bytes) {
  if (bytes == 0 || failed()) return nullptr;
  if (RefusedWhileCapturing("allocating pinned memory")) return nullptr;
  Bind();
  const int64_t limit = options_.host_memory_limit > 0
                            ? options_.host_memory_limit
                            : DefaultPinnedLimit(UsableMemoryBytes(), MemoryLimitBytes());
  // No limit if the memory of the host is unknown.
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
        allocation_label_.empty() ? "" : absl::StrCat(" (", allocation_label_, ")"), ": in use ",
        MemoryText(pinned_bytes_), bounded ? absl::StrCat(", limit ", MemoryText(limit)) : "")));
    return nullptr;
  }
  if (!Check(error, "allocating pinned host memory")) return nullptr;
  std::memset(memory, 0, bytes);
  pinned_[static_cast<std::byte*>(memory)] = bytes;
  pinned_bytes_ += bytes;
  return memory;
}

void CudaDevice::FreeHost(void* memory) {
  if (memory == nullptr) return;
  RefusedWhileCapturing("freeing pinned memory");
  const auto found = pinned_.find(static_cast<std::byte*>(memory));
  CHECK(found != pinned_.end()) << "not this device's pinned memory";
  pinned_bytes_ -= found->second;
  pinned_.erase(found);
  // Waiting would make the capture invalid, so the memory is leaked.
  if (log_ != nullptr) return;
  Bind();
  // Copies may be pending, and the driver would wait for the whole device without a timeout.
  if (Settle()) api_.free_host(memory);
}

// ---- copies

std::optional<StagingRing::Place> CudaDevice::StagingPlace(size_t bytes) {
  while (!failed()) {
    if (const auto place = ring_.Take(bytes)) return *place;
    const cudaEvent_t oldest = staging_read_[ring_.oldest().slot];
    const cudaError_t error = api_.event_query(oldest);
    if (error == cudaErrorNotReady) {
      api_.last_error();
      if (!BlockHost(oldest, HostSync::kStaging).ok()) break;
    } else if (!Check(error, "copying to the device")) {
      break;
    }
    ring_.Retire();
  }
  return std::nullopt;
}

void CudaDevice::CopyIn(const void* host, void* device, size_t bytes) {
  if (bytes == 0 || failed()) return;
  // A launch of the graph would read staging memory that has been reused.
  if (RefusedWhileCapturing("copying from memory that is not pinned")) return;
  const cudaStream_t stream = this->stream();
  const auto* from = static_cast<const std::byte*>(host);
  auto* to = static_cast<std::byte*>(device);
  while (bytes > 0) {
    const size_t chunk = std::min(bytes, chunk_bytes());
    const auto place = StagingPlace(chunk);
    if (!place) return;
    std::byte* const staged = staging_ + place->offset;
    std::memcpy(staged, from, chunk);
    const bool begun = Enqueued(api_.copy_async(to, staged, chunk, cudaMemcpyHostToDevice, stream),
                                "copying to the device");
    if (!begun || !Check(api_.event_record(staging_read_[place->slot], stream), "marking a copy")) {
      return;
    }
    from += chunk;
    to += chunk;
    bytes -= chunk;
  }
}

bool CudaDevice::IsPinned(const void* host, size_t bytes) const {
  const auto* const begin = static_cast<const std::byte*>(host);
  auto found = pinned_.upper_bound(begin);
  if (found == pinned_.begin()) return false;
  --found;
  return begin + bytes <= found->first + found->second;
}

void CudaDevice::CopyToDeviceAsync(const void* host, void* device, size_t bytes) {
  if (bytes == 0 || failed()) return;
  if (!IsPinned(host, bytes)) {
    Fail(absl::InternalError("CopyToDeviceAsync from memory that is not pinned"));
    return;
  }
  Enqueued(api_.copy_async(device, host, bytes, cudaMemcpyHostToDevice, stream()),
           "copying to the device");
}

void CudaDevice::StartCopyOut(const void* device, size_t bytes, int side) {
  const size_t i = side;
  const cudaStream_t stream = this->stream();
  if (Check(api_.copy_async(copied_out_[i], device, bytes, cudaMemcpyDeviceToHost, stream),
            "copying from the device")) {
    Check(api_.event_record(copied_out_marks_[i], stream), "marking a copy");
  }
}

absl::Status CudaDevice::CopyOut(const void* device, void* host, size_t bytes) {
  if (RefusedWhileCapturing("copying out to the host")) {
    return absl::FailedPreconditionError("a capture cannot wait for the device");
  }
  if (bytes == 0 || failed()) return status();
  const int64_t syncs = host_syncs_for(HostSync::kCopyOut);
  const auto* from = static_cast<const std::byte*>(device);
  auto* to = static_cast<std::byte*>(host);
  // The host empties one half while the device fills the other.
  StartCopyOut(from, std::min(bytes, chunk_bytes()), 0);
  for (int side = 0; bytes > 0 && !failed(); side = 1 - side) {
    const size_t chunk = std::min(bytes, chunk_bytes());
    const size_t rest = bytes - chunk;
    if (rest > 0) StartCopyOut(from + chunk, std::min(rest, chunk_bytes()), 1 - side);
    const size_t i = side;
    if (failed() || !BlockHost(copied_out_marks_[i], HostSync::kCopyOut).ok()) break;
    std::memcpy(to, copied_out_[i], chunk);
    from += chunk;
    to += chunk;
    bytes = rest;
  }
  // The copy counts as one host sync, whatever the number of chunks.
  host_syncs_[static_cast<size_t>(HostSync::kCopyOut)] = syncs + 1;
  return status();
}

void CudaDevice::CopyToHostAsync(const void* device, void* host, size_t bytes) {
  if (bytes == 0 || failed()) return;
  if (!IsPinned(host, bytes)) {
    Fail(absl::InternalError("CopyToHostAsync to memory that is not pinned"));
    return;
  }
  Enqueued(api_.copy_async(host, device, bytes, cudaMemcpyDeviceToHost, stream()),
           "copying from the device");
}

void CudaDevice::Copy(const void* from, void* to, size_t bytes) {
  if (bytes == 0 || failed()) return;
  Enqueued(api_.copy_async(to, from, bytes, cudaMemcpyDeviceToDevice, stream()),
           "copying within the device");
}

void CudaDevice::Zero(void* memory, size_t bytes) {
  if (bytes == 0 || failed()) return;
  Enqueued(api_.set_async(memory, 0, bytes, stream()), "zeroing memory");
}

}  // namespace cadre
