// A caching allocator of device memory: segments from the driver are divided into chunks, and freed
// chunks are reused, because allocating from the driver synchronises with the device. The .cc file
// describes the algorithm. The allocator never accesses the memory that it manages, so tests may
// use any numbers as addresses.
//
// Guarantees: chunks are aligned to 512 bytes and do not overlap; held() never exceeds the limit;
// after everything has been freed, ReleaseCached returns all segments to the driver. Segments that
// are entirely free are released before a request fails.
//
// Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

struct MemoryUse {
  std::string purpose;
  int64_t bytes = 0;
};

// The source of segments: the driver, or a test.
struct MemoryUpstream {
  // Returns at least `bytes`, aligned to 512. Errors: ResourceExhausted.
  std::function<absl::StatusOr<void*>(size_t bytes)> allocate;
  std::function<void(void* memory)> free;
  // Blocks until no enqueued work uses the memory. Called before segments are released.
  std::function<absl::Status()> settle;
  // Free bytes, for messages; negative if unknown.
  std::function<int64_t()> available;
};

class CachingAllocator {
 public:
  struct Limits {
    // Maximum of held().
    int64_t max_held = 0;
    // Memory of the device, for messages.
    int64_t total = 0;
  };

  CachingAllocator(MemoryUpstream upstream, const Limits& limits);
  // The destructor releases nothing: call ReleaseCached first.
  ~CachingAllocator() = default;
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // `allocation_label` is for messages and may be empty. Errors: ResourceExhausted, naming the
  // request, its purpose and the largest uses; other errors of upstream. Requires: bytes > 0.
  absl::StatusOr<void*> Allocate(size_t bytes, absl::string_view purpose,
                                 absl::string_view allocation_label);
  // Requires: `memory` came from Allocate and was not freed since.
  void Free(void* memory);
  // Releases segments that are entirely free.
  absl::Status ReleaseCached();

  // Bytes requested and not freed, and the maximum of that number.
  int64_t in_use() const { return in_use_; }
  int64_t peak() const { return peak_; }
  // Bytes held from upstream.
  int64_t held() const { return held_; }
  int64_t limit() const { return limits_.max_held; }
  // Largest first, then by name.
  std::vector<MemoryUse> uses() const;

 private:
  using Address = std::byte*;
  struct Pool {
    // Free chunks by size.
    std::set<std::pair<size_t, Address>> free;
  };
  struct Segment {
    size_t bytes = 0;
    Pool* pool = nullptr;
  };
  struct Chunk {
    size_t bytes = 0;
    Address segment = nullptr;
    bool free = true;
    // Bytes that the caller requested, for a chunk in use.
    size_t requested = 0;
    std::string purpose;
  };
  using Chunks = std::map<Address, Chunk>;

  Pool& PoolOf(size_t bytes);
  bool CanRelease() const;
  // Null if no free chunk is large enough.
  Address Take(Pool& pool, size_t bytes);
  absl::Status Grow(Pool& pool, size_t bytes);
  absl::Status TakeSegment(Pool& pool, size_t bytes);
  void* Give(Address address, size_t requested, absl::string_view purpose);
  void MergeWithNext(Chunks::iterator chunk, Pool& pool);
  absl::StatusOr<Address> FindRoom(size_t bytes);
  std::string WhatHoldsHowMuch() const;
  absl::Status Exhausted(size_t bytes, absl::string_view purpose,
                         absl::string_view allocation_label) const;

  const MemoryUpstream upstream_;
  const Limits limits_;
  Pool small_, large_;
  std::map<Address, Segment> segments_;
  Chunks chunks_;
  std::map<std::string, int64_t, std::less<>> by_purpose_;
  int64_t in_use_ = 0, peak_ = 0, held_ = 0;
};

// "1.2 GiB".
std::string MemoryText(int64_t bytes);

}  // namespace cadre
