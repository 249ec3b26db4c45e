// Which bytes of a ring of staging memory are under way: pieces are taken in a circle and come back
// in the order in which they were taken.
//
// Only bookkeeping: whoever owns the memory knows, by an event per slot, when the oldest piece has
// been read. Thread-compatible.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

namespace cadre {

class StagingRing {
 public:
  struct Place {
    // Of the piece's first byte in the ring.
    size_t offset = 0;
    // In [0, slots): of pieces that are under way, no two have the same.
    int slot = 0;
  };

  // At most `slots` pieces at a time. Requires: bytes is a multiple of 256; slots > 0.
  StagingRing(size_t bytes, int slots) : bytes_(bytes), slots_(slots) {}

  // Bytes side by side, aligned to 256; none where the oldest piece has to come back first.
  // Requires: 0 < bytes <= the ring's.
  std::optional<Place> Take(size_t bytes);
  // Requires: pieces are under way.
  const Place& oldest() const { return pieces_.front().place; }
  // The oldest has come back. Requires: as above.
  void Retire();
  bool empty() const { return pieces_.empty(); }

 private:
  struct Piece {
    Place place;
    size_t end = 0;
  };

  std::optional<size_t> FindOffset(size_t bytes) const;

  const size_t bytes_;
  const int slots_;
  std::deque<Piece> pieces_;
  size_t head_ = 0;
  int next_slot_ = 0;
};

}  // namespace cadre
