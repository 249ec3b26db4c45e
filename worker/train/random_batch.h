// Random inputs and labels of one rank's rows, for steps that are only timed. They depend on the
// rows alone, not on the plan.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/train/replica.h"

namespace cadre {

class RandomBatch {
 public:
  // `samples`: of the whole batch, over all ranks.
  RandomBatch(const Replica& replica, int64_t samples);
  // A view of this data as the batch of `step`. Borrows this object. `samples` as above.
  BatchView View(int64_t samples, int64_t step) const {
    return {samples, inputs_, labels_, step * samples};
  }

 private:
  std::vector<float> inputs_;
  std::vector<int32_t> labels_;
};

}  // namespace cadre
