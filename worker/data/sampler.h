// Which sample stands where in the endless sequence of per-epoch permutations.
//
// Position p is in epoch p / size, at place p % size of that epoch's permutation. Step t of group g
// of G, with B samples per group and step, takes positions (t G + g) B up to + B. So every sample
// comes once per epoch whatever B and G are, and who trains it changes nothing. The whole state of
// reading the data is therefore the step: whoever resumes at step t resumes here.
//
// Thread-compatible: it remembers the permutations of two epochs.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

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

// First position of the batch of `group` at `step`.
inline int64_t BatchPosition(int64_t step, int64_t group, int64_t groups, int64_t batch) {
  return (step * groups + group) * batch;
}

}  // namespace cadre
