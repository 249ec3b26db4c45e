// Which sample stands where in the endless sequence of per-epoch permutations.
//
// Position p is in epoch p / size, at place p % size of that epoch's permutation. Step t of group g
// of G, with B samples per group and step, takes positions P + ((t - S) G + g) B up to + B, where
// the run began at step S and position P (0 and 0 but for what begins from a checkpoint). So every
// sample comes once per epoch whatever B and G are and become, and who trains it changes nothing.
// The whole state of reading the data is therefore a position.
//
// Thread-compatible: it remembers the permutations of two epochs.
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

  int64_t size() const { return size_; }
  int64_t Epoch(int64_t position) const { return position / size_; }
  // Requires: position >= 0.
  SampleRef SampleAt(int64_t position);

 private:
  struct Cached {
    int64_t epoch = -1;
    std::vector<uint32_t> order;
  };
  const std::vector<uint32_t>& Permutation(int64_t epoch);

  const uint64_t seed_;
  const int64_t size_;
  // Epoch e is kept in slot e % 2: the current and the next.
  std::array<Cached, 2> cached_;
};

// First position of the batch of `group` at `step`. Requires: step >= origin.step.
inline int64_t BatchPosition(const DataOrigin& origin, int64_t step, int64_t group, int64_t groups,
                             int64_t batch) {
  return origin.position + ((step - origin.step) * groups + group) * batch;
}

}  // namespace cadre
