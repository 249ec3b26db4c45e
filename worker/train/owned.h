// What a rank owns of the model: intervals of the parameter order (all elements of all parameters
// in one fixed order), with their values in host memory.
//
// Values; thread-compatible.
#pragma once

#include <span>
#include <vector>

#include "plan/ownership.h"
#include "tensor/interval.h"

namespace cadre {

struct Owned {
  // values[i] belongs to position positions.begin + i.
  Interval positions;
  std::span<float> values;
};

// Appends what this rank owns of a bucket, whose slice [slice_begin(), slice_end()) of weights or
// state is `slice`.
void AppendOwned(const BucketOwnership& bucket, std::span<float> slice, std::vector<Owned>* owned);

// The parts of `owned` whose positions are in `range`, in the same order.
std::vector<Owned> PartsIn(Interval range, std::span<const Owned> owned);

}  // namespace cadre
