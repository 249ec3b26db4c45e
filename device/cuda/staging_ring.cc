// Chunks are contiguous, because a copy is one call of the driver. If the space at the end of the
// ring is too short for a chunk, it is skipped, and becomes free again when the chunk before it is
// retired. The queue of chunks shows whether the ring is empty or full if head_ == tail.
#include "device/cuda/staging_ring.h"

#include "glog/logging.h"

namespace cadre {
namespace {

constexpr size_t kAlignment = 256;

}  // namespace

std::optional<StagingRing::Place> StagingRing::Take(size_t bytes) {
  CHECK(bytes > 0 && bytes <= bytes_);
  if (std::ssize(chunks_) == slots_) return std::nullopt;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::optional<size_t> offset = FindOffset(rounded);
  if (!offset) return std::nullopt;
  const Place place{.offset = *offset, .slot = next_slot_};
  chunks_.push_back({place, *offset + rounded});
  head_ = *offset + rounded;
  next_slot_ = (next_slot_ + 1) % slots_;
  return place;
}

std::optional<size_t> StagingRing::FindOffset(size_t bytes) const {
  if (chunks_.empty()) return 0;
  const size_t tail = chunks_.front().place.offset;
  // The bytes in use are [tail, head_), or, after the head has wrapped around, [tail, end) and [0,
  // head_).
  if (head_ > tail) {
    if (bytes_ - head_ >= bytes) return head_;
    return tail >= bytes ? std::optional<size_t>(0) : std::nullopt;
  }
  return tail - head_ >= bytes ? std::optional<size_t>(head_) : std::nullopt;
}

void StagingRing::Retire() {
  CHECK(!chunks_.empty());
  chunks_.pop_front();
}

}  // namespace cadre
