// Who has which piece of a device's memory: pieces are cut from large segments, and what is freed
// is kept and given out again, because taking memory from the driver and giving it back makes the
// whole device stand still.
//
// A request takes the smallest free piece that is large enough and leaves the rest of it free;
// freed neighbours become one. Requests of up to 1 MiB have segments of their own, so that they do
// not nibble at the large ones. Memory is never touched here: addresses are numbers, and the
// upstream may be anything.
//
// Guarantees: pieces are aligned to 512 bytes and do not overlap; held() never passes the limit;
// when everything has been freed, ReleaseCached gives everything back. What is free but scattered
// is given back and asked for anew before a request fails.
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

// Where segments come from.
struct MemoryUpstream {
  // Of at least so many bytes, aligned to 512. ResourceExhausted: there is no more.
  std::function<absl::StatusOr<void*>(size_t bytes)> allocate;
  std::function<void(void* memory)> free;
  // Called before segments that were used are given back: returns when nothing uses them any more.
  std::function<absl::Status()> settle;
  // Bytes that it still has, for messages; below 0: not known.
  std::function<int64_t()> available;
};

class CachingAllocator {
 public:
  struct Limits {
    // Most bytes that are held from upstream at a time.
    int64_t most = 0;
    // What the device has, for messages.
    int64_t total = 0;
  };

  CachingAllocator(MemoryUpstream upstream, const Limits& limits);
  // Gives nothing back by itself: see ReleaseCached.
  ~CachingAllocator() = default;
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // `asking`, for people, may be empty. Errors: ResourceExhausted, which says what was asked for
  // what, and what holds how much; those of the upstream. Requires: bytes > 0.
  absl::StatusOr<void*> Allocate(size_t bytes, absl::string_view purpose, absl::string_view asking);
  // Requires: `memory` came from Allocate and was not freed since.
  void Free(void* memory);
  // Gives segments back of which nothing is in use.
  absl::Status ReleaseCached();

  // As asked for; the most at any time.
  int64_t in_use() const { return in_use_; }
  int64_t peak() const { return peak_; }
  // From upstream; the most at any time.
  int64_t held() const { return held_; }
  int64_t limit() const { return limits_.most; }
  // Largest first, then by name.
  std::vector<MemoryUse> uses() const;

 private:
  using Address = std::byte*;
  struct Pool {
    // Free pieces by size.
    std::set<std::pair<size_t, Address>> free;
  };
  struct Segment {
    size_t bytes = 0;
    Pool* pool = nullptr;
  };
  struct Piece {
    size_t bytes = 0;
    Address segment = nullptr;
    bool free = true;
    // Of one that is in use.
    size_t asked = 0;
    std::string purpose;
  };
  using Pieces = std::map<Address, Piece>;

  Pool& PoolOf(size_t bytes);
  bool CanRelease() const;
  // Null where no free piece is large enough.
  Address Take(Pool& pool, size_t bytes);
  absl::Status Grow(Pool& pool, size_t bytes);
  absl::Status TakeSegment(Pool& pool, size_t bytes);
  void* Give(Address address, size_t asked, absl::string_view purpose);
  void MergeWithNext(Pieces::iterator piece, Pool& pool);
  absl::StatusOr<Address> FindRoom(size_t bytes);
  std::string WhatHoldsHowMuch() const;
  absl::Status Exhausted(size_t bytes, absl::string_view purpose, absl::string_view asking) const;

  const MemoryUpstream upstream_;
  const Limits limits_;
  Pool small_, large_;
  std::map<Address, Segment> segments_;
  Pieces pieces_;
  std::map<std::string, int64_t, std::less<>> by_purpose_;
  int64_t in_use_ = 0, peak_ = 0, held_ = 0;
};

// "1.2 GiB".
std::string MemoryText(int64_t bytes);

}  // namespace cadre
