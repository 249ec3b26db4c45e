// The sums by which the coordinator compares the changes of the groups (v1::ChangeSums), over one
// shard; those that need the mean of the groups are made of a sixteenth of the positions, so that
// the changes of all groups fit in the cache until the mean is known.
//
// Equal calls produce equal bits. Thread-compatible.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class BlockChanges {
 public:
  // Starts a block of positions, with the values of the version before, which must stay valid until
  // End. `weights`: those of the groups.
  void Begin(std::span<const float> before, std::span<const float> weights);
  // The next group's values at these positions, 0 where they are not trained, and the sum of the
  // squares of its changes. Requires: in group order, at most one call for each weight.
  void Add(std::span<const float> x, double squared);
  // Adds the sums of the block to `sums`. Requires: all groups are added.
  void End(v1::ChangeSums& sums);

 private:
  std::span<const float> before_;
  std::span<const float> weights_;
  std::vector<double> squared_;
  // The sampled changes of all groups, one group after the other.
  std::vector<float> sample_;
  size_t sample_size_ = 0;
};

}  // namespace cadre
