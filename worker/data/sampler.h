// Returns the sample at a position of the endless sequence of per-epoch permutations.
//
// Position p is in epoch p / size, at place p % size of that epoch's permutation. Step t of group g
// of G, with B samples per group and step, takes positions P + ((t - S) G + g) B up to + B, where
// the run began at step S and position P (both 0 unless it started from a checkpoint). So every
// sample occurs once per epoch, even if B and G change, and whichever group trains it. A position
// is the whole state of reading the data.
//
// Thread-compatible: caches the permutations of two epochs.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "model/data_position.h"
#include "worker/data/dataset.h"

namespace cadre {

class Sampler {
 public:
  // Requires: 0 < size < 2^32.
  Sampler(uint64_t seed, int64_t size) : seed_(seed), size_(size) {}

  // Requires: position >= 0.
  SampleRef SampleAt(int64_t position);

 private:
  struct Cached {
    int64_t epoch = -1;
    std::vector<uint32_t> order;
  };

  const uint64_t seed_;
  const int64_t size_;
  // Epoch e is cached in entry e % 2: batches cross at most one border of epochs.
  std::array<Cached, 2> cached_;
};

// First position of the batch of `group` at `step`. Requires: step >= origin.step.
inline int64_t BatchPosition(const DataOrigin& origin, int64_t step, int64_t group, int64_t groups,
                             int64_t batch) {
  return origin.position + ((step - origin.step) * groups + group) * batch;
}

}  // namespace cadre
