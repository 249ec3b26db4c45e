// A loop over consecutive pieces of work, which several threads share: each takes the next piece,
// computes it, and appends its result after those of all pieces before. So the result does not
// depend on the number of threads if only `append` changes shared state.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace cadre {

// What is divided: the indices from `begin` to `end`, and the end of the piece that begins at an
// index. Requires: `end_of(i)` is above i and at most `end`.
struct Pieces {
  int64_t begin = 0;
  int64_t end = 0;
  std::function<int64_t(int64_t begin)> end_of;

  // Pieces of `size` indices, of which the last one may have fewer.
  static Pieces OfSize(int64_t end, int64_t size) {
    return {0, end, [end, size](int64_t begin) { return end - begin > size ? begin + size : end; }};
  }
};

// Processes one piece on the thread with index `thread`, which is less than the number of threads.
using PieceWork = std::function<absl::Status(int thread, int64_t begin, int64_t end)>;

// Calls `compute` and then `append` for every piece. Up to `threads` threads, one of which is the
// caller's, compute different pieces concurrently. Calls of `append` do not overlap, and are in the
// order of the pieces. Returns the error of the first piece that fails; `append` is not called for
// the pieces after it. Requires: threads > 0.
absl::Status ForEachPiece(const Pieces& pieces, int threads, const PieceWork& compute,
                          const PieceWork& append);

}  // namespace cadre
