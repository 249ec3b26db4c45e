// A ring buffer of staging memory, without the memory itself: chunks are taken in ring order and
// retired in the same order. The owner of the memory decides, by an event per slot, when the oldest
// chunk can be retired. Thread-compatible.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

namespace cadre {

class StagingRing {
 public:
  struct Place {
    // Offset of the chunk's first byte in the ring.
    size_t offset = 0;
    // In [0, slots), different for all chunks in flight.
    int slot = 0;
  };

  // At most `slots` chunks at a time. Requires: bytes is a multiple of 256; slots > 0.
  StagingRing(size_t bytes, int slots) : bytes_(bytes), slots_(slots) {}

  // Takes contiguous bytes, aligned to 256; nullopt if the oldest chunk must be retired first.
  // Requires: 0 < bytes <= the ring's size.
  std::optional<Place> Take(size_t bytes);
  // Requires: chunks are in flight.
  const Place& oldest() const { return chunks_.front().place; }
  // Retires the oldest chunk. Requires: as above.
  void Retire();
  bool empty() const { return chunks_.empty(); }

 private:
  struct Chunk {
    Place place;
    size_t end = 0;
  };

  std::optional<size_t> FindOffset(size_t bytes) const;

  const size_t bytes_;
  const int slots_;
  std::deque<Chunk> chunks_;
  size_t head_ = 0;
  int next_slot_ = 0;
};

}  // namespace cadre
