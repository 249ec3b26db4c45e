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

// What vector loads and cuDNN want is 16 to 128; the driver's own pieces are of 512.
constexpr size_t kPieceBytes = 512;
// Pages of the device are of 2 MiB: less would be taken from it anyway.
constexpr size_t kPageBytes = size_t{2} << 20;
constexpr size_t kMostSmallBytes = size_t{1} << 20;
constexpr size_t kSmallSegmentBytes = size_t{8} << 20;
// Requests below half of it share segments of this size; larger ones get segments that fit.
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
  return bytes <= kMostSmallBytes ? small_ : large_;
}

absl::StatusOr<void*> CachingAllocator::Allocate(size_t bytes, absl::string_view purpose,
                                                 absl::string_view asking) {
  CHECK_GT(bytes, 0U);
  // Also keeps the sums below from running over.
  if (bytes > static_cast<size_t>(limits_.most)) return Exhausted(bytes, purpose, asking);
  absl::StatusOr<Address> room = FindRoom(RoundUp(bytes, kPieceBytes));
  if (absl::IsResourceExhausted(room.status())) return Exhausted(bytes, purpose, asking);
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
    const Piece& first = pieces_.at(segment.first);
    return first.free && first.bytes == segment.second.bytes;
  });
}

CachingAllocator::Address CachingAllocator::Take(Pool& pool, size_t bytes) {
  const auto found = pool.free.lower_bound({bytes, nullptr});
  if (found == pool.free.end()) return nullptr;
  const Address address = found->second;
  pool.free.erase(found);
  Piece& piece = pieces_.at(address);
  if (const size_t rest = piece.bytes - bytes; rest > 0) {
    pieces_[address + bytes] = {.bytes = rest, .segment = piece.segment};
    pool.free.insert({rest, address + bytes});
    piece.bytes = bytes;
  }
  piece.free = false;
  return address;
}

absl::Status CachingAllocator::Grow(Pool& pool, size_t bytes) {
  const size_t least = RoundUp(bytes, kPageBytes);
  const size_t wish = &pool == &small_                 ? kSmallSegmentBytes
                      : bytes < kLargeSegmentBytes / 2 ? kLargeSegmentBytes
                                                       : least;
  absl::Status taken = TakeSegment(pool, wish);
  if (absl::IsResourceExhausted(taken) && wish > least) taken = TakeSegment(pool, least);
  return taken;
}

absl::Status CachingAllocator::TakeSegment(Pool& pool, size_t bytes) {
  if (held_ + static_cast<int64_t>(bytes) > limits_.most) {
    return absl::ResourceExhaustedError("the limit");
  }
  CADRE_ASSIGN_OR_RETURN(void* const memory, upstream_.allocate(bytes));
  const auto address = static_cast<Address>(memory);
  CHECK_EQ(reinterpret_cast<uintptr_t>(address) % kPieceBytes, 0U);
  segments_[address] = {.bytes = bytes, .pool = &pool};
  pieces_[address] = {.bytes = bytes, .segment = address};
  pool.free.insert({bytes, address});
  held_ += static_cast<int64_t>(bytes);
  return absl::OkStatus();
}

void* CachingAllocator::Give(Address address, size_t asked, absl::string_view purpose) {
  Piece& piece = pieces_.at(address);
  piece.asked = asked;
  piece.purpose = std::string(purpose);
  by_purpose_[piece.purpose] += static_cast<int64_t>(asked);
  in_use_ += static_cast<int64_t>(asked);
  peak_ = std::max(peak_, in_use_);
  return address;
}

void CachingAllocator::Free(void* memory) {
  auto piece = pieces_.find(static_cast<Address>(memory));
  CHECK(piece != pieces_.end() && !piece->second.free) << "not this allocator's memory";
  const auto asked = static_cast<int64_t>(piece->second.asked);
  const auto purpose = by_purpose_.find(piece->second.purpose);
  if ((purpose->second -= asked) == 0) by_purpose_.erase(purpose);
  in_use_ -= asked;
  piece->second.free = true;
  piece->second.asked = 0;
  piece->second.purpose.clear();

  Pool& pool = *segments_.at(piece->second.segment).pool;
  MergeWithNext(piece, pool);
  if (piece->first != piece->second.segment) {
    const auto before = std::prev(piece);
    if (before->second.free) {
      pool.free.erase({before->second.bytes, before->first});
      MergeWithNext(before, pool);
      piece = before;
    }
  }
  pool.free.insert({piece->second.bytes, piece->first});
}

void CachingAllocator::MergeWithNext(Pieces::iterator piece, Pool& pool) {
  const auto next = std::next(piece);
  if (next == pieces_.end() || !next->second.free) return;
  // Segments may lie side by side by chance, and are given back one by one.
  if (next->second.segment != piece->second.segment) return;
  pool.free.erase({next->second.bytes, next->first});
  piece->second.bytes += next->second.bytes;
  pieces_.erase(next);
}

absl::Status CachingAllocator::ReleaseCached() {
  if (!CanRelease()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(upstream_.settle());
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto& [address, about] = *segment;
    const auto first = pieces_.find(address);
    if (!first->second.free || first->second.bytes != about.bytes) {
      ++segment;
      continue;
    }
    about.pool->free.erase({about.bytes, address});
    pieces_.erase(first);
    held_ -= static_cast<int64_t>(about.bytes);
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
                                         absl::string_view asking) const {
  // A request may be of more than int64 counts: nonsense, but told as it is.
  const std::string asked = bytes > static_cast<size_t>(INT64_MAX)
                                ? absl::StrCat(bytes, " bytes")
                                : MemoryText(static_cast<int64_t>(bytes));
  const int64_t free = limits_.most - in_use_;
  size_t largest = static_cast<size_t>(std::max<int64_t>(0, limits_.most - held_));
  for (const Pool* pool : {&small_, &large_}) {
    if (!pool->free.empty()) largest = std::max(largest, pool->free.rbegin()->first);
  }
  std::string what =
      absl::StrCat("cannot allocate ", asked, " for ", purpose,
                   asking.empty() ? "" : absl::StrCat(" (", asking, ")"), ": the device has ",
                   MemoryText(limits_.total), ", limit ", MemoryText(limits_.most), ", in use ",
                   WhatHoldsHowMuch(), "; free ", MemoryText(free));
  if (free - static_cast<int64_t>(largest) > free / 8) {
    absl::StrAppend(&what, " in pieces of at most ", MemoryText(static_cast<int64_t>(largest)));
  }
  const int64_t available = upstream_.available ? upstream_.available() : -1;
  if (available >= 0 && available < limits_.most - held_) {
    absl::StrAppend(&what, ", of which the driver has only ", MemoryText(available),
                    " left: another program uses this device");
  }
  absl::StrAppend(&what, "; make the batch smaller, or micro_batches larger");
  return absl::ResourceExhaustedError(what);
}

}  // namespace cadre
