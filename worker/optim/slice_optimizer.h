// The optimiser of one slice: the part of a bucket that this rank owns.
//
// State (the velocity) exists only here, with the owner of the slice; it is neither replicated nor
// averaged across groups.
//
// Thread-compatible. Borrows the kernels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

class SliceOptimizer {
 public:
  // Elements [begin, end) of the slice belong to one parameter.
  struct Segment {
    int64_t begin = 0;
    int64_t end = 0;
    // Weight decay acts on weights, not on biases.
    bool decays = true;
  };

  // Requires: segments are in order and cover the slice without gap; kernels outlive the object.
  SliceOptimizer(Kernels& kernels, const v1::Optimizer& optimizer, std::vector<Segment> segments);

  // One update. Requires: both spans have the size of the slice; gradient is of the mean loss over
  // the group's batch.
  void Update(float rate, std::span<const float> gradient, std::span<float> weights);

  // Bytes of optimiser state.
  int64_t state_bytes() const { return static_cast<int64_t>(velocity_.size() * sizeof(float)); }

 private:
  Kernels& kernels_;
  const v1::Sgd sgd_;
  const std::vector<Segment> segments_;
  std::vector<float> velocity_;
};

}  // namespace cadre
