// cudaMalloc and cudaFree synchronise with the device and cost up to a millisecond, so memory is
// taken from the driver in segments and divided here, as PyTorch's CUDACachingAllocator does.
//
// Structure. Segments come from the driver; chunks divide a segment without gaps, in a map ordered
// by address. Free chunks are also in a set ordered by size, one for small requests (up to 1 MiB,
// from segments of 8 MiB) and one for large ones, so that small allocations do not fragment large
// segments. Allocate takes the smallest free chunk that fits (best fit) and splits it; Free merges
// a chunk with its free neighbours in the segment. All are O(log n).
//
// Bound. `limits.max_held` counts segments, not requests, so that the process never takes more than
// its share of the device. If the limit or the driver refuses a new segment, the other set is
// searched; then segments that are entirely free are returned to the driver, which requires that
// the device's work has ended (upstream.settle); only then does the request fail. The error names
// the request and its purpose, the largest uses, and whether another process uses the memory.
//
// The allocator is independent of streams. CudaDevice::Allocate orders the streams around every
// allocation, so that a chunk may be freed while work on it is still enqueued.
#include "device/cuda/caching_allocator.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "glog/logging.h"

namespace cadre {
namespace {

// Vector loads and cuDNN require 16 to 128 bytes; the driver's own granularity is 512.
constexpr size_t kChunkBytes = 512;
// The device's pages have 2 MiB, so a smaller segment would waste the rest of a page.
constexpr size_t kPageBytes = size_t{2} << 20;
constexpr size_t kMaxSmallBytes = size_t{1} << 20;
constexpr size_t kSmallSegmentBytes = size_t{8} << 20;
// Requests below half of this size share segments of this size; larger ones get their own.
constexpr size_t kLargeSegmentBytes = size_t{32} << 20;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

std::string MemoryText(int64_t bytes) {
  constexpr int64_t kKib = 1024;
  if (bytes < kKib) return absl::StrCat(bytes, " bytes");
  double amount = static_cast<double>(bytes) / kKib;
  const char* unit = "KiB";
  for (const char* next : {"MiB", "GiB", "TiB"}) {
    if (amount < 1023.95) break;
    amount /= kKib;
    unit = next;
  }
  return absl::StrFormat("%.1f %s", amount, unit);
}

CachingAllocator::CachingAllocator(MemoryUpstream upstream, const Limits& limits)
    : upstream_(std::move(upstream)), limits_(limits) {}

CachingAllocator::Pool& CachingAllocator::PoolOf(size_t bytes) {
  return bytes <= kMaxSmallBytes ? small_ : large_;
}

absl::StatusOr<void*> CachingAllocator::Allocate(size_t bytes, absl::string_view purpose,
                                                 absl::string_view allocation_label) {
  CHECK_GT(bytes, 0U);
  // This check also prevents overflow in the sums below.
  if (bytes > static_cast<size_t>(limits_.max_held))
    return Exhausted(bytes, purpose, allocation_label);
  absl::StatusOr<Address> room = FindRoom(RoundUp(bytes, kChunkBytes));
  if (absl::IsResourceExhausted(room.status())) return Exhausted(bytes, purpose, allocation_label);
  if (!room.ok()) return room.status();
  return Give(*room, bytes, purpose);
}

absl::StatusOr<CachingAllocator::Address> CachingAllocator::FindRoom(size_t bytes) {
  Pool& pool = PoolOf(bytes);
  if (Address found = Take(pool, bytes)) return found;
  absl::Status grown = Grow(pool, bytes);
  if (absl::IsResourceExhausted(grown)) {
    if (Address found = Take(&pool == &small_ ? large_ : small_, bytes)) return found;
    if (CanRelease()) {
      CADRE_RETURN_IF_ERROR(ReleaseCached());
      grown = TakeSegment(pool, RoundUp(bytes, kPageBytes));
    }
  }
  CADRE_RETURN_IF_ERROR(grown);
  const Address found = Take(pool, bytes);
  CHECK(found != nullptr);
  return found;
}

bool CachingAllocator::CanRelease() const {
  return std::any_of(segments_.begin(), segments_.end(), [this](const auto& segment) {
    const Chunk& first = chunks_.at(segment.first);
    return first.free && first.bytes == segment.second.bytes;
  });
}

CachingAllocator::Address CachingAllocator::Take(Pool& pool, size_t bytes) {
  const auto found = pool.free.lower_bound({bytes, nullptr});
  if (found == pool.free.end()) return nullptr;
  const Address address = found->second;
  pool.free.erase(found);
  Chunk& chunk = chunks_.at(address);
  if (const size_t rest = chunk.bytes - bytes; rest > 0) {
    chunks_[address + bytes] = {.bytes = rest, .segment = chunk.segment};
    pool.free.insert({rest, address + bytes});
    chunk.bytes = bytes;
  }
  chunk.free = false;
  return address;
}

absl::Status CachingAllocator::Grow(Pool& pool, size_t bytes) {
  const size_t minimum = RoundUp(bytes, kPageBytes);
  const size_t wish = &pool == &small_                 ? kSmallSegmentBytes
                      : bytes < kLargeSegmentBytes / 2 ? kLargeSegmentBytes
                                                       : minimum;
  absl::Status taken = TakeSegment(pool, wish);
  if (absl::IsResourceExhausted(taken) && wish > minimum) taken = TakeSegment(pool, minimum);
  return taken;
}

absl::Status CachingAllocator::TakeSegment(Pool& pool, size_t bytes) {
  if (held_ + static_cast<int64_t>(bytes) > limits_.max_held) {
    return absl::ResourceExhaustedError("the limit");
  }
  CADRE_ASSIGN_OR_RETURN(void* const memory, upstream_.allocate(bytes));
  const auto address = static_cast<Address>(memory);
  CHECK_EQ(reinterpret_cast<uintptr_t>(address) % kChunkBytes, 0U);
  segments_[address] = {.bytes = bytes, .pool = &pool};
  chunks_[address] = {.bytes = bytes, .segment = address};
  pool.free.insert({bytes, address});
  held_ += bytes;
  return absl::OkStatus();
}

void* CachingAllocator::Give(Address address, size_t requested, absl::string_view purpose) {
  Chunk& chunk = chunks_.at(address);
  chunk.requested = requested;
  chunk.purpose = std::string(purpose);
  by_purpose_[chunk.purpose] += requested;
  in_use_ += requested;
  peak_ = std::max(peak_, in_use_);
  return address;
}

void CachingAllocator::Free(void* memory) {
  auto chunk = chunks_.find(static_cast<Address>(memory));
  CHECK(chunk != chunks_.end() && !chunk->second.free) << "not this allocator's memory";
  const int64_t requested = chunk->second.requested;
  const auto purpose = by_purpose_.find(chunk->second.purpose);
  if ((purpose->second -= requested) == 0) by_purpose_.erase(purpose);
  in_use_ -= requested;
  chunk->second.free = true;
  chunk->second.requested = 0;
  chunk->second.purpose.clear();

  Pool& pool = *segments_.at(chunk->second.segment).pool;
  MergeWithNext(chunk, pool);
  if (chunk->first != chunk->second.segment) {
    const auto before = std::prev(chunk);
    if (before->second.free) {
      pool.free.erase({before->second.bytes, before->first});
      MergeWithNext(before, pool);
      chunk = before;
    }
  }
  pool.free.insert({chunk->second.bytes, chunk->first});
}

void CachingAllocator::MergeWithNext(Chunks::iterator chunk, Pool& pool) {
  const auto next = std::next(chunk);
  if (next == chunks_.end() || !next->second.free) return;
  // Adjacent segments are not merged, since each is released separately.
  if (next->second.segment != chunk->second.segment) return;
  pool.free.erase({next->second.bytes, next->first});
  chunk->second.bytes += next->second.bytes;
  chunks_.erase(next);
}

absl::Status CachingAllocator::ReleaseCached() {
  if (!CanRelease()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(upstream_.settle());
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto& [address, about] = *segment;
    const auto first = chunks_.find(address);
    if (!first->second.free || first->second.bytes != about.bytes) {
      ++segment;
      continue;
    }
    about.pool->free.erase({about.bytes, address});
    chunks_.erase(first);
    held_ -= about.bytes;
    upstream_.free(address);
    segment = segments_.erase(segment);
  }
  return absl::OkStatus();
}

std::vector<MemoryUse> CachingAllocator::uses() const {
  std::vector<MemoryUse> uses;
  uses.reserve(by_purpose_.size());
  for (const auto& [purpose, bytes] : by_purpose_) uses.push_back({purpose, bytes});
  std::stable_sort(uses.begin(), uses.end(), [](const MemoryUse& left, const MemoryUse& right) {
    return left.bytes > right.bytes;
  });
  return uses;
}

std::string CachingAllocator::WhatHoldsHowMuch() const {
  if (by_purpose_.empty()) return MemoryText(in_use_);
  return absl::StrCat(MemoryText(in_use_), ": ",
                      absl::StrJoin(uses(), ", ", [](std::string* out, const MemoryUse& use) {
                        absl::StrAppend(out, use.purpose, " ", MemoryText(use.bytes));
                      }));
}

absl::Status CachingAllocator::Exhausted(size_t bytes, absl::string_view purpose,
                                         absl::string_view allocation_label) const {
  // The request may exceed int64, in which case it is printed as it is.
  const std::string requested =
      bytes > static_cast<size_t>(INT64_MAX) ? absl::StrCat(bytes, " bytes") : MemoryText(bytes);
  const int64_t free = limits_.max_held - in_use_;
  size_t largest = std::max<int64_t>(0, limits_.max_held - held_);
  for (const Pool* pool : {&small_, &large_}) {
    if (!pool->free.empty()) largest = std::max(largest, pool->free.rbegin()->first);
  }
  std::string what = absl::StrCat(
      "cannot allocate ", requested, " for ", purpose,
      allocation_label.empty() ? "" : absl::StrCat(" (", allocation_label, ")"),
      ": the device has ", MemoryText(limits_.total), ", limit ", MemoryText(limits_.max_held),
      ", in use ", WhatHoldsHowMuch(), "; free ", MemoryText(free));
  if (free - static_cast<int64_t>(largest) > free / 8) {
    absl::StrAppend(&what, " in chunks of at most ", MemoryText(largest));
  }
  const int64_t available = upstream_.available ? upstream_.available() : -1;
  if (available >= 0 && available < limits_.max_held - held_) {
    absl::StrAppend(&what, ", of which the driver has only ", MemoryText(available),
                    " left: another program uses this device");
  }
  absl::StrAppend(&what, "; make the batch smaller, or micro_batches larger");
  return absl::ResourceExhaustedError(what);
}

}  // namespace cadre
